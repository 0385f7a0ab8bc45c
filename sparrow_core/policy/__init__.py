"""Scheduling policy as pure functions: sampling, placement, queue disciplines."""
