"""The warehouse: named schemas and durable tables, as Iceberg in a catalog.

The modules:

    catalog     which schemas and tables there are, and which version of each is current
    types       DuckDB's types as Iceberg's
    partitions  what a partitioned table's rows are divided by
    writer      what tasks do: rows as Parquet files
    commits     what becomes of the files: one atomic commit, or none of them
    dml         INSERT, DELETE, UPDATE and MERGE as queries for the rows to be written
    ddl         CREATE, ALTER, COMMENT and DROP
    names       where statements name its tables
"""
