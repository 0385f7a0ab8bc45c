"""Questions: what tells that an answer is kept from a query's text, before it is planned.

    name of a question = digest(the text, settings, definitions, versions, how rows come,
                                columns and partitions of the tables whose names are in the text,
                                versions of the files that it names)

To plan takes ten times as long as to look for an answer. So the answer of a query whose outputs all
have names is also kept under the name of its question, if it is small. A text has no such name
where something else may decide what it means, or when: views, macros, Python functions, the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from minishark.model.catalog import Table
from minishark.query.job_builder import Environment
from minishark.query.names import Leaves, NoNameError, versioned
from minishark.query.planner import QueryPlan, QueryPlanner
from minishark.query.sources import SourceTable
from minishark.sources.files import FileSnapshot

_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Question:
    """A query that has a name."""

    name: str
    tables: Mapping[str, Table]  # that its text mentions, by name in lower case
    files: Sequence[SourceTable]  # that its text names

    def is_of(self, plan: QueryPlan) -> bool:
        """Whether a plan reads nothing but what the name contains, in the same versions."""
        read = [table for name, table in plan.tables.items() if name not in plan.source_tables]
        mine = [self.tables.get(table.name.lower()) for table in read]
        versions = {table.name: table.snapshot.version for table in self.files}
        return all(
            table is not None and table.same_rows(other)
            for table, other in zip(mine, read, strict=True)
        ) and all(
            versions.get(source.name) == source.snapshot.version for source in plan.sources.values()
        )


def question_of(
    sql: str, planner: QueryPlanner, environment: Environment, leaves: Leaves, *, lossless: bool
) -> Question | None:
    """The question that a query asks; None if more than is said here may decide the answer."""
    planning, sources = planner.planning, planner.shared.sources
    if planning.means_more(sql):
        return None
    names = planning.mentioned(sql)
    tables = {name.lower(): planner.catalog.find(name) for name in names}
    rewritten = sources.rewritten(sql, planning)
    files = () if rewritten is None else rewritten.tables
    if not (tables or files):
        return None
    parts: list[str | bytes] = [sql, planning.zone, str(lossless)]
    for texts in (environment.settings, environment.definitions):
        parts += (str(len(texts)), *texts)
    try:
        for name, table in sorted(tables.items()):
            if table is None or not table.is_computed:
                return None
            parts += ("table", name, repr([(c.name, c.type) for c in table.schema]))
            parts += (leaves.partition(table, partition) for partition in table.partitions)
        for source in files:
            if not isinstance(source.snapshot, FileSnapshot):
                return None
            parts += ("files", *map(leaves.file, source.snapshot.files))
    except NoNameError:
        return None
    known = {name: table for name, table in tables.items() if table is not None}
    return Question(versioned("question", *parts), known, files)


class KeptAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a question."""

    columns: tuple[str, ...]
    outputs: tuple[bytes, ...]  # of the tasks of the last stage, Arrow IPC streams
    stage: int

    @classmethod
    def of(
        cls, stage: int, columns: Sequence[str], outputs: Sequence[bytes | None]
    ) -> KeptAnswer | None:
        """The answer of a stage's outputs; None if it is too large, or they are in files."""
        inline = [output for output in outputs if output is not None]
        if len(inline) < len(outputs) or sum(map(len, inline)) > _BYTES_MAX:
            return None
        return cls(tuple(columns), tuple(inline), stage)

    def rows(self) -> pa.Table:
        """All of them."""
        tables = [pa.ipc.open_stream(output).read_all() for output in self.outputs]
        filled = [table for table in tables if table.num_rows] or tables[:1]
        return pa.concat_tables(filled).rename_columns(list(self.columns))


decode_answer: Callable[[bytes], KeptAnswer] = msgspec.msgpack.Decoder(KeptAnswer).decode
