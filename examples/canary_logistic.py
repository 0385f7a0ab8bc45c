"""Logistic regression as a program of partitions, on features that a query computes.

Run it with `python examples/canary_logistic.py`. Each worker runs a copy of the driver `train` and
makes the tasks for its own partitions: no scheduler is asked during the iterations. See
docs/canary.md.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

import minishark
from canary_core import Run
from minishark import Session
from minishark_lab.applications import logistic

FEATURES = """
    SELECT (age - avg(age) OVER ()) / stddev(age) OVER () AS age,
        (ln(income) - avg(ln(income)) OVER ()) / stddev(ln(income)) OVER () AS income,
        (plan = 'trial')::DOUBLE AS on_trial,
        1::DOUBLE AS constant,
        churned::DOUBLE AS churned
    FROM customers
"""
NAMES = ("age", "income", "on_trial", "constant")


def customers(count: int, seed: int = 3) -> pa.Table:
    """Customers of whom the young and those on trial leave more often."""
    rng = np.random.default_rng(seed)
    age, income = rng.uniform(18, 80, count), rng.lognormal(10, 0.5, count)
    trial = rng.random(count) < 0.3
    score = -0.05 * (age - 49) + 1.5 * trial - 1.0 + rng.logistic(size=count)
    plan = np.where(trial, "trial", "paid")
    return pa.table({"age": age, "income": income, "plan": plan, "churned": score > 0})


def points_of(rows: pa.Table) -> logistic.Points:
    """A partition of the table as arrays."""
    features = np.stack([rows[name].to_numpy() for name in NAMES])
    return logistic.Points(features, rows["churned"].to_numpy())


def train(run: Run) -> object:
    """The driver: the weights after at most 200 steps."""
    points = run.map(points_of, run.table("features"))
    start = run.single(np.zeros(len(NAMES)))
    return logistic.fit(run, points, start, iterations=200, tolerance=1e-4)


def run(session: Session, count: int = 20_000) -> tuple[np.ndarray, float]:
    """The weights, and the share of customers that they tell right, by a query."""
    session.create_table("customers", customers(count))
    session.create_table("features", session.sql(FEATURES))
    weights = session.program(train, partitions=4).result()
    pairs = zip(weights.tolist(), NAMES, strict=True)
    score = " + ".join(f"{weight!r} * {name}" for weight, name in pairs)
    right = f"SELECT avg(CASE WHEN ({score} > 0) = (churned > 0) THEN 1 ELSE 0 END) FROM features"
    ((share,),) = session.sql(right).collect()
    return weights, share


if __name__ == "__main__":
    with minishark.connect() as found:
        trained, accuracy = run(found)
        for name, weight in zip(NAMES, trained, strict=True):
            print(f"{name:10}{weight:8.3f}")
        print(f"right for {accuracy:.1%} of the customers")
