"""The warehouse: named schemas and durable tables, in catalogs that other engines use as well.

The modules:

    contract         what catalogs, versions of tables and changes of them can do
    opening          which catalog an address means
    iceberg_catalog  Iceberg: which schemas and tables there are, and which version is current
    iceberg          its versions, changes and commits
    iceberg_layout   how its files are written: partitions, counts, bounds
    iceberg_types    DuckDB's types as Iceberg's
    ducklake         a DuckLake's schemas and tables, versions and changes
    ducklake_commit  what a change of a DuckLake writes into its catalog
    ducklake_layout  how its files are written
    ducklake_schema  the tables of its catalog
    partitions       rows by what they are divided by
    writer           what tasks do: rows as Parquet files
    changed_table    what changes of rows do: places with rows that change are written anew
    store            the statements about it
    shared           what sessions share, and a transaction of one
    queried          tables as queries know them
    ddl              CREATE, ALTER and COMMENT, parsed
    names            where statements name its tables
"""
