"""Experiments with real queries on real clusters: placements, long load, growing data."""
