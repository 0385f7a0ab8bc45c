"""Models of a cluster that are faster than its machines: event-driven, in arrays, in formulas."""
