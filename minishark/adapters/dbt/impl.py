"""What dbt's macros ask minishark for: types, relations, capabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from dbt.adapters.base import available
from dbt.adapters.base.impl import ConstraintSupport
from dbt.adapters.capability import Capability, CapabilityDict, CapabilitySupport, Support
from dbt.adapters.sql import SQLAdapter
from dbt_common.contracts.constraints import ConstraintType

from minishark.adapters.dbt.connections import MinisharkConnections

if TYPE_CHECKING:
    import agate

_ENFORCED = ConstraintSupport.ENFORCED


class MinisharkAdapter(SQLAdapter):
    """dbt's adapter: DuckDB's dialect, each statement committed at once."""

    ConnectionManager = MinisharkConnections

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
    def convert_datetime_type(cls, agate_table: agate.Table, col_idx: int) -> str:
        """The type of a seed's column of dates with a time."""
        return "timestamp"

    @classmethod
    def convert_integer_type(cls, agate_table: agate.Table, col_idx: int) -> str:
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
        return ["append", "delete+insert", "merge"]

    @available
    def seed_values(self, row: Any) -> list[Any]:
        """A row of a seed as parameters; DuckDB reads times from text."""
        return [str(value) if hasattr(value, "isoformat") else value for value in row]
