"""The bridge to Sparrow: clusters, loading tables, running queries."""
