"""Optimizer rules, one per file."""
