"""Drivers of the machines: sockets, threads and clocks. Only `mailbox` imports zmq."""
