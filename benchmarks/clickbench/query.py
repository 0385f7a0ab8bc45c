"""Runs the query on stdin at the server; prints its rows, and the seconds it took on stderr."""

import sys
import time

import adbc_driver_flightsql.dbapi

text = sys.stdin.read()
with (
    adbc_driver_flightsql.dbapi.connect("grpc://127.0.0.1:31337", autocommit=True) as connection,
    connection.cursor() as cursor,
):
    started = time.perf_counter()
    cursor.execute(text)
    rows = cursor.fetchall()
    took_s = time.perf_counter() - started
for row in rows:
    print(*row, sep="\t")
print(f"{took_s:.3f}", file=sys.stderr)
