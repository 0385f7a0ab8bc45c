"""Comparison of two answers to one query."""
