"""Other interfaces to a session: DB-API 2.0, notebooks, ibis, the PySpark API by SQLFrame."""
