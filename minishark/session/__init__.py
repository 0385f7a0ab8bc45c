"""What users hold: `connect`, `Session`, and how each kind of statement runs."""
