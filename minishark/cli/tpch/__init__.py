"""TPC-H: schema, queries, data, and a run that compares all answers with DuckDB's.

A client of the engine, beside the commands, as the shell offers its data and queries: it uses
`minishark.connect()`, so that it measures what users get.
"""
