"""The program of a job that runs one query, in a folder with its description."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pyarrow as pa

from minishark.cluster.jobs.records import RESULT_BYTES_MAX, RESULT_VARIABLE
from minishark.errors import MinisharkError, ResourceError
from minishark.session.connect import connect
from minishark.session.jobs import QUERY, JobQuery


def main() -> None:
    """Run the query, and leave its rows as the job's result.

    Raises:
        ResourceError: they are too many for a result.
    """
    query = msgspec.json.decode(Path(QUERY).read_bytes(), type=JobQuery)
    size = 0
    with connect() as session:
        for text in (*query.settings, *query.definitions):
            try:
                session.sql(text)
            except MinisharkError as error:  # a view of what is not here, which others may need
                sys.stderr.write(f"Left out: {text}\n  {error}\n")
        frame = session.sql(query.sql)
        with pa.ipc.new_file(os.environ[RESULT_VARIABLE], frame.schema) as file:
            for batch in frame.to_batches():
                size += batch.nbytes
                if size > RESULT_BYTES_MAX:
                    raise ResourceError(
                        f"The result of a job may have {RESULT_BYTES_MAX >> 30} GiB: let the query "
                        "write files (COPY ... TO), in a program that is submitted."
                    )
                file.write_batch(batch)
    sys.stderr.write(f"{size:,} bytes of rows\n")


if __name__ == "__main__":
    try:
        main()
    except MinisharkError as error:  # of the query: where in minishark it was raised says nothing
        sys.exit(f"{type(error).__name__}: {error}")
