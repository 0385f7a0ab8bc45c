"""TPC-H: schema, queries, data, and a run that compares all answers with DuckDB's.

A client of the engine at the top of the layers: it uses `minishark.connect()`, so that it measures
what users get.
"""
