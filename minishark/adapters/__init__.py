"""Other interfaces to a session: DB-API 2.0, notebooks, ibis, and sessions with Spark's meaning."""
