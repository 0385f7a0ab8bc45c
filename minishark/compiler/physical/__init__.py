"""Physical plans: the distribution of rows, and the exchanges."""
