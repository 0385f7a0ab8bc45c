"""A join of two pandas frames in a session, returned as a pandas frame.

Run it with `python examples/pandas_join.py`; it needs pandas.
"""

from __future__ import annotations

import pandas as pd

import minishark
from minishark import Session
from minishark import functions as F


def make() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Orders and customers."""
    orders = pd.DataFrame(
        {
            "order": range(1000),
            "customer": [number % 37 for number in range(1000)],
            "amount": [(number * 7919 % 10_000) / 100 for number in range(1000)],
        }
    )
    customers = pd.DataFrame(
        {"customer": range(40), "country": [("DE", "FR", "IT")[i % 3] for i in range(40)]}
    )
    return orders, customers


def main(session: Session) -> pd.DataFrame:
    """The amount per country, and the number of its customers without orders."""
    orders, customers = make()
    left, right = session.create_dataframe(orders), session.create_dataframe(customers)
    summed = (
        right.join(left, "customer", "left")
        .group_by("country")
        .agg(
            F.round(F.sum("amount"), 2).alias("amount"),
            F.count_distinct("customer").alias("customers"),
            F.sum(F.col("order").is_null().cast("int")).cast("bigint").alias("without orders"),
        )
        .order_by("country")
    )
    answer = summed.to_pandas()
    print(answer)
    return answer


if __name__ == "__main__":
    with minishark.connect() as opened:
        main(opened)
