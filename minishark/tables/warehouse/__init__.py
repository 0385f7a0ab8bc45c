"""The warehouse: named schemas and durable tables, in catalogs that other engines use as well.

The modules:

    contract         what catalogs, versions of tables and changes of them can do
    opening          which catalog an address means
    iceberg_catalog  Iceberg: which schemas and tables there are, and which version is current
    iceberg          its versions, changes and commits
    iceberg_layout   how its files are written: partitions, counts, bounds
    iceberg_types    DuckDB's types as Iceberg's
    writer           what tasks do: rows as Parquet files
    dml              INSERT, DELETE, UPDATE and MERGE as queries for the rows to be written
    ddl              CREATE, ALTER and COMMENT, parsed
    names            where statements name its tables
"""
