"""Commits: the files that tasks have written become part of a table, all of them or none.

The catalog replaces a table's metadata in one step, if nobody has done so meanwhile. Who was too
late tries again where that changes nothing about the outcome: an append is appended to whatever is
there by then. What was computed from rows that another writer has replaced is a `ConflictError`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from minishark.errors import AlreadyExistsError, CatalogError, ConflictError, ExecutionError

WRITE_ID = "minishark.write-id"
"""The property of a snapshot that says which write made it."""

RETRIES = {
    "commit.retry.num-retries": "30",
    "commit.retry.max-wait-ms": "1000",
    "commit.retry.total-timeout-ms": "60000",
}
"""How often an append that was too late is repeated, where a table's properties say nothing else.
Of ten writers that begin together, the last one is too late nine times."""


def append(transaction: Any, files: Sequence[Any], write_id: str) -> None:
    """Add files to the table of a transaction."""
    # Merging keeps the number of manifests, which every query reads, small.
    update = transaction.update_snapshot(snapshot_properties={WRITE_ID: write_id})
    with update.merge_append() as new:
        for file in files:
            new.append_data_file(file)


def replace(transaction: Any, removed: Sequence[Any], files: Sequence[Any], write_id: str) -> None:
    """Put files in the place of others in the table of a transaction."""
    update = transaction.update_snapshot(snapshot_properties={WRITE_ID: write_id})
    with update.overwrite() as new:
        for file in removed:
            new.delete_data_file(file)
        for file in files:
            new.append_data_file(file)


def replace_schema(transaction: Any, schema: Any, spec: Any) -> None:
    """Give the table of a transaction other columns, none of which continues an old one."""
    from pyiceberg.schema import assign_fresh_schema_ids  # noqa: PLC0415 - an extra
    from pyiceberg.table.update import (  # noqa: PLC0415
        AddPartitionSpecUpdate,
        AddSchemaUpdate,
        SetCurrentSchemaUpdate,
        SetDefaultSpecUpdate,
    )

    metadata = transaction.table_metadata
    ids = itertools.count(metadata.last_column_id + 1)
    fresh = assign_fresh_schema_ids(schema, lambda: next(ids))
    number = max(known.schema_id for known in metadata.schemas) + 1
    fresh = fresh.model_copy(update={"schema_id": number})
    updates: list[Any] = [
        AddSchemaUpdate(schema=fresh),
        SetCurrentSchemaUpdate.model_validate({"schema-id": -1}),  # the one that was added last
    ]
    if not (spec.is_unpartitioned() and metadata.spec().is_unpartitioned()):
        names = {field.field_id: field.name for field in schema.fields}
        fields = [
            field.model_copy(
                update={
                    "source_id": fresh.find_field(names[field.source_id]).field_id,
                    "field_id": (metadata.last_partition_id or 999) + 1 + index,
                }
            )
            for index, field in enumerate(spec.fields)
        ]
        own = max(known.spec_id for known in metadata.partition_specs) + 1
        updates.append(AddPartitionSpecUpdate(spec=type(spec)(*fields, spec_id=own)))
        updates.append(SetDefaultSpecUpdate.model_validate({"spec-id": -1}))
    transaction._apply(tuple(updates), ())  # noqa: SLF001 - it has no other way to do so


@contextlib.contextmanager
def committing(name: object) -> Iterator[None]:
    """Change and commit inside; errors as users get them.

    Raises:
        ConflictError: another writer has changed the table meanwhile.
        CatalogError: a table of that name was created, or dropped, meanwhile.
    """
    from pyiceberg.exceptions import (  # noqa: PLC0415 - an extra
        CommitFailedException,
        CommitStateUnknownException,
        NoSuchTableError,
        TableAlreadyExistsError,
        ValidationException,
    )
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

    try:
        yield
    except (CommitFailedException, ValidationException) as error:
        raise ConflictError(
            f"Another writer has changed {name} meanwhile; nothing was written. "
            f"Run the statement again. ({error})"
        ) from error
    except CommitStateUnknownException as error:
        raise ExecutionError(
            f"The catalog did not say whether the change of {name} was made: look before you run "
            f"the statement again. ({error})"
        ) from error
    except TableAlreadyExistsError as error:
        raise AlreadyExistsError(f"There is a table called {name} already.") from error
    except NoSuchTableError as error:
        raise CatalogError(f"Table {name} was dropped meanwhile.") from error
    except FileNotFoundError as error:  # its metadata is gone
        raise CatalogError(f"Table {name} was dropped meanwhile, or lost files: {error}") from error
    except (OSError, SQLAlchemyError) as error:
        first = str(error).partition("\n")[0]
        raise ExecutionError(f"Can't commit the change of {name}: {first}") from error
