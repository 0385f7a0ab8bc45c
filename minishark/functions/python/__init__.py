"""PySpark's functions that DuckDB lacks, in Python: what executors import when they run one."""
