"""TPC-H: `minishark tpch`, which makes the data and compares all answers with DuckDB's.

A client of the engine, as the shell is, which has its sample and its queries: it uses
`minishark.connect()`, so that it measures what users get.
"""
