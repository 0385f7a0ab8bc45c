"""What state machines without IO are made of, and what drives them.

`sparrow_core` and `canary_core` stand on it; it knows nothing of tasks or programs.
"""
