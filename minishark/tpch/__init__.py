"""TPC-H: its schema and queries, its data, a run over all of it, and the comparison of answers.

A client of the engine, at the top of the layers: it uses only what `minishark.connect()` gives,
so that what it measures is what a user gets.
"""
