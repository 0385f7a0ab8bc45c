"""What happened: audit logs, reports, metrics, and why a task ran where it did."""
