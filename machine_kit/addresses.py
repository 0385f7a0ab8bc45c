"""Addresses of machines.

An address is `<endpoint>#<name>`: the endpoint says which process (`ipc:///run/n0.sock`,
`tcp://host:port`), the name which machine in it. Machines with the same endpoint are in one
process.
"""

from typing import NewType

Address = NewType("Address", str)


def address(endpoint: str, name: str) -> Address:
    """The address of machine `name` in the process that listens at `endpoint`."""
    return Address(f"{endpoint}#{name}")


def endpoint_of(of: Address) -> str:
    """The process part of an address."""
    return of.rpartition("#")[0]


def name_of(of: Address) -> str:
    """The machine part of an address."""
    return of.rpartition("#")[2]
