"""Tables: loading them, keeping their replicas, and query results stored as tables."""
