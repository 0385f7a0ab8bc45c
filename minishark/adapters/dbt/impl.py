"""What dbt's macros ask minishark for: types, relations, capabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dbt.adapters.base import BaseRelation
from dbt.adapters.base import Column as BaseColumn
from dbt.adapters.base.impl import ConstraintSupport
from dbt.adapters.capability import Capability, CapabilityDict, CapabilitySupport, Support
from dbt.adapters.sql import SQLAdapter
from dbt_common.contracts.constraints import ConstraintType
from dbt_common.contracts.metadata import CatalogTable, ColumnMetadata, TableMetadata
from dbt_common.exceptions import DbtRuntimeError

from minishark.adapters.dbt.connections import MinisharkConnections

if TYPE_CHECKING:
    import agate

_ENFORCED = ConstraintSupport.ENFORCED


@dataclass
class MinisharkColumn(BaseColumn):
    """A column with DuckDB's name of its type, which has no length to be expanded."""

    @property
    def data_type(self) -> str:
        """DuckDB's name of the type."""
        return self.dtype

    def can_expand_to(self, other_column: BaseColumn) -> bool:
        """Never."""
        return False


@dataclass(frozen=True, eq=False, repr=False)
class MinisharkRelation(BaseRelation):
    """A table or view; where dbt limits it to some rows, it needs no alias."""

    require_alias: bool = False

    def _is_exactish_match(self, field: Any, value: str) -> bool:
        """Whether a part of the name is the same: DuckDB keeps the case, and looks in any."""
        return bool(self.path.get_lowered_part(field) == value.lower())


class MinisharkAdapter(SQLAdapter):
    """dbt's adapter: DuckDB's dialect, each statement committed at once."""

    ConnectionManager = MinisharkConnections
    Column = MinisharkColumn
    Relation = MinisharkRelation

    CONSTRAINT_SUPPORT: ClassVar[dict[ConstraintType, ConstraintSupport]] = {
        ConstraintType.check: _ENFORCED,
        ConstraintType.not_null: _ENFORCED,
        ConstraintType.unique: _ENFORCED,
        ConstraintType.primary_key: _ENFORCED,
        ConstraintType.foreign_key: ConstraintSupport.NOT_SUPPORTED,
    }
    _capabilities: ClassVar[CapabilityDict] = CapabilityDict(
        {Capability.SchemaMetadataByRelations: CapabilitySupport(support=Support.Full)}
    )

    @classmethod
    def date_function(cls) -> str:
        """The current time."""
        return "now()"

    @classmethod
    def convert_datetime_type(
        cls,
        agate_table: agate.Table,  # noqa: ARG003 - as dbt calls it
        col_idx: int,  # noqa: ARG003 - as dbt calls it
    ) -> str:
        """The type of a seed's column of dates with a time."""
        return "timestamp"

    @classmethod
    def convert_integer_type(
        cls,
        agate_table: agate.Table,  # noqa: ARG003 - as dbt calls it
        col_idx: int,  # noqa: ARG003 - as dbt calls it
    ) -> str:
        """The type of a seed's column of whole numbers."""
        return "bigint"

    @classmethod
    def convert_number_type(cls, agate_table: agate.Table, col_idx: int) -> str:
        """The type of a seed's column of numbers."""
        whole = super().convert_number_type(agate_table, col_idx) == "integer"
        return "bigint" if whole else "double"

    def expand_column_types(self, goal: Any, current: Any) -> None:
        """Nothing: VARCHAR has no length."""

    def valid_incremental_strategies(self) -> list[str]:
        """The strategies of incremental models."""
        return ["append", "delete+insert", "merge", "microbatch"]

    def get_columns_in_relation(self, relation: BaseRelation) -> list[BaseColumn]:
        """The columns of a table or view; none if it does not exist."""
        try:
            columns: list[BaseColumn] = super().get_columns_in_relation(relation)
        except DbtRuntimeError as error:
            if "does not exist" in str(error):
                return []
            raise
        return columns

    def get_catalog_for_single_relation(self, relation: BaseRelation) -> CatalogTable | None:
        """What the documentation shows of a table or view; None if it does not exist."""
        schema = relation.information_schema()
        rows = self.execute_macro(
            "get_catalog_relations",
            kwargs={"information_schema": schema, "relations": [relation]},
        ).rows
        if not rows:
            return None
        first = rows[0]
        return CatalogTable(
            metadata=TableMetadata(
                type=first["table_type"],
                schema=first["table_schema"],
                name=first["table_name"],
                database=first["table_database"],
                comment=first["table_comment"],
                owner=first["table_owner"],
            ),
            columns={
                row["column_name"]: ColumnMetadata(
                    type=row["column_type"],
                    index=int(row["column_index"]),
                    name=row["column_name"],
                    comment=row["column_comment"],
                )
                for row in rows
            },
            stats={},
        )
