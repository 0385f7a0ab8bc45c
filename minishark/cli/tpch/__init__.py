"""TPC-H's tables, queries and sample, as commands and the shell offer them."""
