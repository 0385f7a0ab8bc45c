"""Logical plans: what a statement computes, without saying where."""
