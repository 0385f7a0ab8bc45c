"""Where partitions go first, where those of a lost worker go, and who holds more copies."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from machine_kit.addresses import Address

Key = tuple[int, int]


def place(
    size: int,
    workers: Sequence[Address],
    hosts: Mapping[Address, str],
    preferred: Mapping[int, Sequence[str]],
) -> list[Address]:
    """The worker of each partition of a group.

    Neighbours lie together, so that reductions combine them where they lie, and counts differ by
    one at most; within that, partitions go to hosts that have their data.
    """
    shares = [size // len(workers) + (n < size % len(workers)) for n in range(len(workers))]
    room = dict(zip(workers, shares, strict=True))
    placed: dict[int, Address] = {}
    for index in range(size):
        # Of several, the first that has room: it has this one's neighbours.
        near = [w for w in workers if room[w] and hosts[w] in preferred.get(index, ())]
        if near:
            placed[index] = near[0]
            room[near[0]] -= 1
    rest = iter([worker for worker in workers for _ in range(room[worker])])
    return [placed[index] if index in placed else next(rest) for index in range(size)]


def reassign(owners: Mapping[Key, Address], workers: Sequence[Address]) -> dict[Key, Address]:
    """New workers for the partitions of those that are gone: each goes to who has fewest."""
    counts = {(worker, size): 0 for worker in workers for size, _ in owners}
    for (size, _), worker in owners.items():
        if (worker, size) in counts:
            counts[worker, size] += 1
    moved: dict[Key, Address] = {}
    for key in sorted(owners):
        if owners[key] not in workers:
            least = min(workers, key=lambda worker: counts[worker, key[0]])
            counts[least, key[0]] += 1
            moved[key] = least
    return moved


def recopy(
    holders: Mapping[Key, Collection[Address]], hosts: Mapping[Address, str], copies: int
) -> dict[tuple[Address, Address], list[Key]]:
    """Which copies to make, by (from, to), so that each key has `copies` holders among `hosts`.

    New holders are on other hosts than the old ones, where there are any, and share the load.
    """
    orders: dict[tuple[Address, Address], list[Key]] = {}
    given = dict.fromkeys(hosts, 0)
    for key, held in holders.items():
        having = [worker for worker in held if worker in hosts]
        while having and len(having) < min(copies, len(hosts)):
            taken = {hosts[worker] for worker in having}
            others = [worker for worker in hosts if worker not in having]
            # The death of a host takes all copies there; but two on one host are better than one.
            to = min(others, key=lambda worker: (hosts[worker] in taken, given[worker]))
            given[to] += 1
            orders.setdefault((having[0], to), []).append(key)
            having.append(to)
    return orders
