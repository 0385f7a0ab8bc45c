"""ClickBench: its 43 queries over rows like those of its table, beside DuckDB on the same files.

After https://github.com/ClickHouse/ClickBench, which is CC BY-NC-SA 4.0, so that no text of it is
here: `hits.sql` makes rows of its schema, and `queries.sql` asks its questions in SQL of our own.
Its own files and texts can be given instead.
"""
