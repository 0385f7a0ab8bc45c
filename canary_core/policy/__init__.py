"""Who gets which partitions: pure functions of what workers report."""
