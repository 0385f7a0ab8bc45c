"""An Iceberg REST catalog for tests: PyIceberg's SqlCatalog behind HTTP."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from flask import Flask, request
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, Table
from werkzeug.serving import make_server

_STATUS = {
    NoSuchTableError: 404,
    NoSuchNamespaceError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


def application(catalog: SqlCatalog) -> Flask:
    """What answers the requests that PyIceberg makes."""
    app = Flask(__name__)

    def failed(error: Exception) -> tuple[dict[str, Any], int]:
        status = _STATUS[type(error)]
        kind = type(error).__name__.removesuffix("Error") + "Exception"
        return {"error": {"message": str(error), "type": kind, "code": status}}, status

    for kind in _STATUS:
        app.register_error_handler(kind, failed)

    def told(table: Table) -> dict[str, Any]:
        return {
            "metadata-location": table.metadata_location,
            "metadata": table.metadata.model_dump(mode="json", by_alias=True),
        }

    @app.get("/v1/config")
    def config() -> dict[str, Any]:
        return {"defaults": {}, "overrides": {}}

    @app.get("/v1/namespaces")
    def namespaces() -> dict[str, Any]:
        return {"namespaces": [list(name) for name in catalog.list_namespaces()]}

    @app.post("/v1/namespaces")
    def create_namespace() -> dict[str, Any]:
        name = tuple(request.json["namespace"])
        catalog.create_namespace(name)
        return {"namespace": list(name), "properties": {}}

    @app.get("/v1/namespaces/<name>")
    def namespace(name: str) -> dict[str, Any]:
        return {"namespace": [name], "properties": catalog.load_namespace_properties(name)}

    @app.delete("/v1/namespaces/<name>")
    def drop_namespace(name: str) -> tuple[str, int]:
        catalog.drop_namespace(name)
        return "", 204

    @app.get("/v1/namespaces/<name>/tables")
    def tables(name: str) -> dict[str, Any]:
        found = catalog.list_tables(name)
        return {"identifiers": [{"namespace": list(t[:-1]), "name": t[-1]} for t in found]}

    @app.post("/v1/namespaces/<name>/tables")
    def create_table(name: str) -> dict[str, Any]:
        asked = request.json
        arguments = {
            "identifier": (name, asked["name"]),
            "schema": Schema.model_validate(asked["schema"]),
            "location": asked.get("location"),
            "properties": asked.get("properties", {}),
        }
        if asked.get("partition-spec"):
            arguments["partition_spec"] = PartitionSpec.model_validate(asked["partition-spec"])
        if asked.get("stage-create"):
            staged = catalog.create_table_transaction(**arguments)
            return told(staged._table) | {"metadata-location": None}
        return told(catalog.create_table(**arguments))

    @app.get("/v1/namespaces/<name>/tables/<table>")
    def load_table(name: str, table: str) -> dict[str, Any]:
        return told(catalog.load_table((name, table)))

    @app.delete("/v1/namespaces/<name>/tables/<table>")
    def drop_table(name: str, table: str) -> tuple[str, int]:
        catalog.drop_table((name, table))
        return "", 204

    @app.post("/v1/namespaces/<name>/tables/<table>")
    def commit(name: str, table: str) -> dict[str, Any]:
        asked = CommitTableRequest.model_validate_json(request.data)
        try:
            known = catalog.load_table((name, table))
        except NoSuchTableError:
            known = Table((name, table), None, "", catalog._load_file_io(), catalog)  # type: ignore[arg-type]
        answer = catalog.commit_table(known, asked.requirements, asked.updates)
        return {
            "metadata-location": answer.metadata_location,
            "metadata": answer.metadata.model_dump(mode="json", by_alias=True),
        }

    @app.post("/v1/tables/rename")
    def rename() -> tuple[str, int]:
        old, new = request.json["source"], request.json["destination"]
        catalog.rename_table((*old["namespace"], old["name"]), (*new["namespace"], new["name"]))
        return "", 204

    return app


@contextlib.contextmanager
def running(catalog: SqlCatalog) -> Iterator[str]:
    """The address of a server on loopback, while the block runs."""
    http = make_server("127.0.0.1", 0, application(catalog), threaded=True)
    thread = threading.Thread(target=http.serve_forever, name="rest")
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        thread.join()
