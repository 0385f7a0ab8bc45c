"""Iterative programs over the session's tables: `session.program`."""
