"""Observability: audit logs, reports, metrics, and explanations of placement."""
