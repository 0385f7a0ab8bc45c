"""DuckDB as the front end: text to logical plans."""
