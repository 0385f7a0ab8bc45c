"""What minishark has of what SQLAlchemy's suite asks for."""

from __future__ import annotations

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

_YES = (
    "aggregate_order_by",
    "array_type",
    "boolean_col_expressions",
    "comment_reflection",
    "comment_reflection_full_unicode",
    "create_or_replace_view",
    "create_table_as",
    "create_temp_table_as",
    "ctes",
    "ctes_with_values",
    "date_historic",
    "datetime_historic",
    "datetime_literals",
    "delete_from",
    "except_",
    "expression_server_defaults",
    "fetch_null_from_numeric",
    "has_temp_table",
    "infinity_floats",
    "intersect",
    "json_type",
    "nullsordering",
    "order_by_label_with_expression",
    "precision_numerics_enotation_small",
    "regexp_match",
    "regexp_replace",
    "schema_create_delete",
    "server_defaults",
    "supports_bitwise_and",
    "supports_bitwise_not",
    "supports_bitwise_or",
    "supports_bitwise_shift",
    "supports_bitwise_xor",
    "table_ddl_if_exists",
    "table_value_constructor",
    "temp_table_names",
    "temporary_views",
    "timestamp_microseconds",
    "tuple_in",
    "unicode_ddl",
    "update_from",
    "uuid_data_type",
    "views",
    "window_functions",
)

_NAMELESS = "the suite finds constraints by their names, which DuckDB does not keep"
_NO = {
    "check_constraint_reflection": _NAMELESS,
    "implicitly_named_constraints": _NAMELESS,
    "index_reflection": "queries use no indexes",
    "inline_check_constraint_reflection": _NAMELESS,
    "named_constraints": _NAMELESS,
    "self_referential_foreign_keys": "DuckDB checks keys before all rows of a statement are there",
    "on_update_cascade": "DuckDB's foreign keys have no actions",
    "recursive_fk_cascade": "DuckDB's foreign keys have no actions",
    "savepoints": "each statement is committed at once",
    "temp_table_reflect_indexes": "queries use no indexes",
    "unique_constraint_reflection": _NAMELESS,
    "window_range": "the suite expects rows in an order that it does not ask for",
    "window_range_numeric": "the suite expects rows in an order that it does not ask for",
}


class Requirements(SuiteRequirements):
    """What the suite may test, beside its defaults."""


def _said(name: str, rule: object) -> None:
    setattr(Requirements, name, property(lambda self: rule))


for _name in _YES:
    _said(_name, exclusions.open())
for _name, _reason in _NO.items():
    _said(_name, exclusions.skip_if(lambda config: True, _reason))
