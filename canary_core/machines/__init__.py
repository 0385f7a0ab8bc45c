"""State machines without input or output: workers and their controller."""
