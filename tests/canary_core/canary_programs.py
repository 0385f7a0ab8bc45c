"""Random programs: drivers made of data, with functions whose results show any other order.

`make_ops` makes a program with a `random.Random` (Hypothesis has one that shrinks); `driver_of`
interprets it. Arithmetic is neither commutative nor associative, so a partition that runs a stage
twice, misses one, or reduces along another tree ends with another number.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from canary_core.driver import Driver, Run, State, Value
from minishark_lab.canary.cluster import spend

PRIME = 1_000_003
HANDLES_MAX = 10
ROUNDS_MAX = 4
LARGE = 700  # floats: more than values.OUT_OF_BAND_MIN bytes

Op = tuple[Any, ...]


def make_ops(rng: Random, depth: int = 0) -> list[Op]:
    kinds = ["map"] * 5 + ["broadcast", "reduce", "scatter", "state", "update", "single"] * 2
    kinds += ["load", "table", "drop", "if"] + ["loop"] * (2 if depth < 2 else 0)
    ops: list[Op] = []
    for _ in range(rng.randint(1, 9 if depth == 0 else 5)):
        kind = rng.choice(kinds)
        numbers = tuple(rng.randrange(1000) for _ in range(4))
        if kind == "loop":
            ops.append((kind, *numbers, make_ops(rng, depth + 1)))
        elif kind == "if":
            ops.append((kind, *numbers, make_ops(rng, depth + 1) if depth < 2 else []))
        else:
            ops.append((kind, *numbers))
    return ops


def source(name: str, index: int, partitions: int) -> int:
    return (len(name) * 7 + index * 13 + partitions) % PRIME


def driver_of(ops: list[Op], task_s: float = 0.0) -> Driver:
    def driver(run: Run) -> Any:
        env: list[Value] = [run.load(_loader(3)), run.single(5)]
        _execute(run, ops, env, task_s)
        return {"all": env, "count": len(env), "last": (env[-1],)}

    return driver


def _execute(run: Run, ops: list[Op], env: list[Value], task_s: float) -> None:
    for op in ops:
        made = _one(run, op, env, task_s)
        if made is None:
            continue
        if len(env) < HANDLES_MAX:
            env.append(made)
        else:
            env[op[4] % HANDLES_MAX] = made


def _one(run: Run, op: Op, env: list[Value], task_s: float) -> Value | None:
    kind, a, b, c, d, *inner = op
    some = env[a % len(env)]
    alike = [each for each in env if each.partitions == some.partitions]
    other = alike[b % len(alike)]
    singles = [each for each in env if each.partitions == 1]
    single = singles[a % len(singles)] if singles else run.single(a)
    match kind:
        case "load":
            return run.load(_loader(a), partitions=_size(run, b))
        case "table":
            return run.table("t" * (a % 5), partitions=_size(run, b))
        case "single":
            return run.single(a if b % 3 else [a])
        case "map":
            operands = [some, other, *alike][: 1 + c % 3]
            return run.map(_mixer(d, task_s), *operands)
        case "broadcast":
            return run.broadcast(single, partitions=_size(run, b))
        case "reduce":
            return run.reduce(_reducer(a, task_s), some)
        case "scatter":
            target = _size(run, b)
            scattered = _scattered(run, (some, other), c, target)
            fits = [each for each in env if each.partitions == target]
            return run.gather(_mixer(d, task_s), scattered, *fits[:1])
        case "state":
            return run.state(_state, some)
        case "update":
            states = [each for each in env if isinstance(each, State)]
            if not states:
                return None
            state = states[a % len(states)]
            fits = [each for each in env if each.partitions == state.partitions]
            return run.update(_updater(c, task_s), state, fits[b % len(fits)])
        case "drop":
            if len(env) > 2:
                del env[a % len(env)]
            return None
        case "if":
            if run.signal(_decide(c), single):
                _execute(run, inner[0], env, task_s)
            return None
        case "loop":
            for turn in range(1 + b % ROUNDS_MAX):
                _execute(run, inner[0], env, task_s)
                singles = [each for each in env if each.partitions == 1]
                if singles and run.signal(_decide(c + turn), singles[d % len(singles)]):
                    break
            return None
    raise AssertionError(kind)


def _size(run: Run, number: int) -> int:
    return [run.partitions, run.partitions, 1, 3, 5][number % 5]


def number_of(value: Any) -> int:
    """A number that depends on all of a value."""
    match value:
        case bool() | int():
            return int(value) % PRIME
        case dict():
            return number_of([number_of(each) for each in value.values()])
        case list() | tuple():
            total = len(value)
            for each in value:
                total = (total * 31 + number_of(each)) % PRIME
            return total
        case np.ndarray():
            return int(abs(float(value @ np.arange(len(value)))) * 1000) % PRIME
    return 0 if value is None else hash(float(value)) % PRIME


def _loader(seed: int) -> Any:
    def load(index: int) -> Any:
        if seed % 4 == 0:
            return np.random.default_rng([seed, index]).random(LARGE)
        return (seed * 101 + index * 17) % PRIME

    return load


def _mixer(constant: int, task_s: float) -> Any:
    def mix(*parts: Any) -> Any:
        total = constant
        for part in parts:
            total = (total * 37 + number_of(part)) % PRIME
        if task_s:
            spend(task_s * (total % 7))
        if isinstance(parts[0], np.ndarray) and constant % 2:
            return parts[0] * 0.7 + total
        return {"n": total} if constant % 5 == 0 else total

    return mix


def _reducer(constant: int, task_s: float) -> Any:
    def combine(left: Any, right: Any) -> int:
        spend(task_s)
        return (number_of(left) * 41 + number_of(right) * 3 + constant) % PRIME

    return combine


def _scattered(run: Run, parts: tuple[Value, ...], constant: int, targets: int) -> Value:
    """To all, or along routes; some targets have no source, and some sources no target."""
    send, step, sources = _scatterer(constant, targets), constant % 4, parts[0].partitions
    if not step:
        return run.scatter(send, *parts, partitions=targets)

    def targets_of(index: int) -> range:
        return range(index % 3, targets, 1 + step)

    def scatter(index: int, *parts: Any) -> dict[int, Any]:
        sent = send(*parts)
        pieces = sent if isinstance(sent, dict) else dict(enumerate(sent))
        return {each: pieces[each] for each in targets_of(index) if each in pieces}

    routes = run.routes(targets_of, sources, targets)
    numbers = run.load(int, partitions=sources)
    return run.scatter(scatter, numbers, *parts, partitions=targets, along=routes)


def _scatterer(constant: int, targets: int) -> Any:
    def scatter(*parts: Any) -> Any:
        total = number_of(parts)
        if constant % 2:
            return {t: (total * 7 + t) % PRIME for t in range(targets) if (total + t) % 3}
        return [np.full(LARGE, float(total + t)) if t % 2 else total - t for t in range(targets)]

    return scatter


def _state(*parts: Any) -> dict[str, Any]:
    return {"sum": number_of(parts), "array": np.arange(8.0), "log": [1]}


def _updater(constant: int, task_s: float) -> Any:
    def update(state: dict[str, Any], *parts: Any) -> Any:
        if task_s:
            spend(task_s)
        state["sum"] = (state["sum"] * 43 + number_of(parts) + constant) % PRIME
        state["array"] += state["sum"] % 10
        state["log"].append(state["sum"])
        return state["sum"] if constant % 2 else None

    return update


def _decide(constant: int) -> Any:
    def decide(value: Any) -> bool:
        return (number_of(value) + constant) % 3 == 0

    return decide
