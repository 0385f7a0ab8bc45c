"""Stages: a physical plan cut at its exchanges, as SQL fragments."""
