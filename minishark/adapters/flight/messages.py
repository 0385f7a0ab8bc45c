"""The protocol buffers of Arrow Flight SQL, made from a table of their fields.

Field numbers and names are those of `Flight.proto` and `FlightSql.proto` (Apache Arrow, format
version 1.5). Enumerations are their numbers; a map is a repeated entry of key and value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from minishark.errors import OptionError

try:
    from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError, Message
except ImportError as missing:
    raise OptionError("Flight SQL needs protobuf: pip install 'minishark[flight]'.") from missing

_FLIGHT = "arrow.flight.protocol"
_SQL = f"{_FLIGHT}.sql"
_URL = "type.googleapis.com/"
_TYPES = {"string": 9, "bytes": 12, "bool": 8, "int32": 5, "int64": 3, "uint32": 13}
_TYPES |= {"sfixed64": 16, "double": 1}
_MESSAGE_TYPE = 11
_KEYS = "catalog:string db_schema:string table:string"
_STATEMENT = "query:string transaction_id:bytes"

# Message by message: its fields as NAME:TYPE in the order of their numbers, which `=` sets; `*` for
# repeated ones.
_MESSAGES: Mapping[str, Mapping[str, str]] = {
    _FLIGHT: {
        "Ticket": "ticket:bytes",
        "FlightEndpoint": "ticket:Ticket",
        "FlightInfo": "schema:bytes endpoint:FlightEndpoint*=3",
        "CancelFlightInfoRequest": "info:FlightInfo",
        "CancelFlightInfoResult": "status:int32",
        "StringListValue": "values:string*",
        "SessionOptionValue": "string_value:string bool_value:bool int64_value:sfixed64 "
        "double_value:double string_list_value:StringListValue",
        "SessionOption": "key:string value:SessionOptionValue",
        "SetSessionOptionsRequest": "session_options:SessionOption*",
        "SessionOptionError": "value:int32",
        "SessionOptionErrorEntry": "key:string value:SessionOptionError",
        "SetSessionOptionsResult": "errors:SessionOptionErrorEntry*",
        "GetSessionOptionsRequest": "",
        "GetSessionOptionsResult": "session_options:SessionOption*",
        "CloseSessionRequest": "",
        "CloseSessionResult": "status:int32",
    },
    _SQL: {
        "CommandGetSqlInfo": "info:uint32*",
        "CommandGetXdbcTypeInfo": "data_type:int32",
        "CommandGetCatalogs": "",
        "CommandGetDbSchemas": "catalog:string db_schema_filter_pattern:string",
        "CommandGetTables": "catalog:string db_schema_filter_pattern:string "
        "table_name_filter_pattern:string table_types:string* include_schema:bool",
        "CommandGetTableTypes": "",
        "CommandGetPrimaryKeys": _KEYS,
        "CommandGetExportedKeys": _KEYS,
        "CommandGetImportedKeys": _KEYS,
        "CommandGetCrossReference": "pk_catalog:string pk_db_schema:string pk_table:string "
        "fk_catalog:string fk_db_schema:string fk_table:string",
        "CommandStatementQuery": _STATEMENT,
        "CommandStatementUpdate": _STATEMENT,
        "CommandPreparedStatementQuery": "prepared_statement_handle:bytes",
        "CommandPreparedStatementUpdate": "prepared_statement_handle:bytes",
        "CommandStatementSubstraitPlan": "",
        "TableDefinitionOptions": "if_not_exist:int32 if_exists:int32",
        "CommandStatementIngest": "table_definition_options:TableDefinitionOptions table:string "
        "schema:string catalog:string temporary:bool transaction_id:bytes",
        "TicketStatementQuery": "statement_handle:bytes",
        "DoPutUpdateResult": "record_count:int64",
        "DoPutPreparedStatementResult": "prepared_statement_handle:bytes",
        "ActionCreatePreparedStatementRequest": _STATEMENT,
        "ActionCreatePreparedStatementResult": "prepared_statement_handle:bytes "
        "dataset_schema:bytes parameter_schema:bytes",
        "ActionClosePreparedStatementRequest": "prepared_statement_handle:bytes",
        "ActionBeginTransactionRequest": "",
        "ActionBeginTransactionResult": "transaction_id:bytes",
        "ActionEndTransactionRequest": "transaction_id:bytes action:int32",
        "ActionBeginSavepointRequest": "transaction_id:bytes name:string",
        "ActionCreatePreparedSubstraitPlanRequest": "",
        "ActionCancelQueryRequest": "info:bytes",
        "ActionCancelQueryResult": "result:int32",
    },
}


def _file(package: str) -> descriptor_pb2.FileDescriptorProto:
    # proto2, where a field that was not sent differs from an empty one; the wire is the same.
    file = descriptor_pb2.FileDescriptorProto(
        name=f"minishark/{package}", package=package, syntax="proto2"
    )
    for name, fields in _MESSAGES[package].items():
        message = file.message_type.add(name=name)
        for position, text in enumerate(fields.split()):
            declared, _, number = text.partition("=")
            field, _, type_ = declared.partition(":")
            repeated, type_ = type_.endswith("*"), type_.rstrip("*")
            message.field.add(
                name=field,
                number=int(number or position + 1),
                label=3 if repeated else 1,
                type=_TYPES.get(type_, _MESSAGE_TYPE),
                type_name=None if type_ in _TYPES else f".{package}.{type_}",
            )
    return file


def _classes() -> dict[str, type[Any]]:
    """The message classes by name; no name occurs in both packages."""
    pool = descriptor_pool.DescriptorPool()
    for package in _MESSAGES:
        pool.AddSerializedFile(_file(package).SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for package, messages in _MESSAGES.items()
        for name in messages
    }


_CLASSES = _classes()


def make(name: str, **fields: object) -> Any:
    """A message."""
    return _CLASSES[name](**fields)


def parsed(name: str, data: bytes) -> Any:
    """A message from its bytes.

    Raises:
        OptionError: they are no such message.
    """
    message = _CLASSES[name]()
    try:
        message.ParseFromString(data)
        _check_text(message)
    except (DecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"The request is no {name} of Flight SQL: {error}.") from error
    return message


def _check_text(message: Any) -> None:
    """Decode all text of a message: what is no UTF-8 would be found in it as bytes, or later."""
    for field, value in message.ListFields():
        is_one = isinstance(value, str | bytes | Message) or not isinstance(value, Iterable)
        for item in [value] if is_one else value:
            if field.type == _MESSAGE_TYPE:
                _check_text(item)
            elif field.type == _TYPES["string"] and isinstance(item, bytes):
                item.decode()


def packed(name: str, **fields: object) -> bytes:
    """A message of Flight SQL with its name, as commands, tickets and actions have it."""
    message: Message = make(name, **fields)
    wrapped = any_pb2.Any(
        type_url=_URL + message.DESCRIPTOR.full_name, value=message.SerializeToString()
    )
    data: bytes = wrapped.SerializeToString()
    return data


def unpacked(data: bytes) -> tuple[str, Any]:
    """The name of a message of Flight SQL, and the message.

    Raises:
        OptionError: it is none.
    """
    wrapped = any_pb2.Any()
    try:
        wrapped.ParseFromString(data)
    except DecodeError as error:
        raise OptionError(f"The request is no message of Flight SQL: {error}.") from error
    package, _, name = wrapped.type_url.removeprefix(_URL).rpartition(".")
    if package != _SQL or name not in _CLASSES:
        raise OptionError(f"The request is no message of Flight SQL: {wrapped.type_url[:100]!r}.")
    return name, parsed(name, wrapped.value)
