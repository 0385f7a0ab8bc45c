"""Physical plans: where rows lie, and the exchanges between."""
