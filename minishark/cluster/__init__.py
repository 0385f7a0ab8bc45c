"""Clusters: their processes, the files that nodes store, and the connection to Sparrow."""
