"""Flight SQL, call by call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from minishark.adapters.flight import catalog, statements
from minishark.adapters.flight.access import Access, Caller, Callers, Handshakes
from minishark.adapters.flight.catalog import CATALOG
from minishark.adapters.flight.connections import Connection, Connections, Prepared, Statement
from minishark.adapters.flight.failures import answering
from minishark.adapters.flight.messages import make, packed, parsed, unpacked
from minishark.errors import CatalogError, OptionError, UnsupportedError
from minishark.model.expressions import quote
from minishark.session.front import Front, name_of
from minishark.tables.interruption import Interruption, running

_CALLERS = "callers"
_ACTIONS = {
    "CreatePreparedStatement": "Prepare a statement.",
    "ClosePreparedStatement": "Forget a prepared statement.",
    "BeginTransaction": "Begin a transaction over one table of the warehouse.",
    "EndTransaction": "Commit or roll back a transaction.",
    "CancelFlightInfo": "Cancel a statement.",
    "CancelQuery": "Cancel a statement; CancelFlightInfo is its successor.",
    "SetSessionOptions": "Change the catalog, the schema, or settings of DuckDB.",
    "GetSessionOptions": "The catalog and the schema.",
    "CloseSession": "End the connection.",
}
_SAVEPOINTS = ("BeginSavepoint", "EndSavepoint")
_ENDS = {1: "COMMIT", 2: "ROLLBACK"}
_CANCELLED, _NOT_CANCELLABLE = 1, 3
_CLOSED = 1
_INVALID_NAME, _INVALID_VALUE = 1, 2


class Calls:
    """The calls that wait for an answer; cancelled if their client gives up."""

    def __init__(self) -> None:
        self._waiting: dict[Interruption, fl.ServerCallContext] = {}
        self._lock = threading.Lock()
        self.began = threading.Event()  # set when one begins

    @contextmanager
    def waiting(self, context: fl.ServerCallContext, interruption: Interruption) -> Iterator[None]:
        """A call that waits."""
        with self._lock:
            self._waiting[interruption] = context
        self.began.set()
        try:
            yield
        finally:
            with self._lock:  # the context is gone when the call is
                del self._waiting[interruption]

    def look(self) -> bool:
        """Cancel those whose clients have given up; whether any waits."""
        with self._lock:
            gone = [call for call, context in self._waiting.items() if context.is_cancelled()]
            there = bool(self._waiting)
        for interruption in gone:
            interruption.cancel()
        return there


class FlightSql(fl.FlightServerBase):
    """Answers the calls of Flight SQL; serves from when it is made until `shutdown`."""

    def __init__(
        self,
        location: str,
        access: Access,
        connections: Connections,
        calls: Calls,
        front: Front | None,
    ) -> None:
        self._connections = connections
        self._calls = calls
        self._front = front
        super().__init__(
            location,
            auth_handler=Handshakes(),
            middleware={_CALLERS: Callers(access)},
        )

    # What the classes of pyarrow ask for

    def get_flight_info(
        self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor
    ) -> fl.FlightInfo:
        """What a command answers: its columns, and the ticket for its rows."""
        with self._answering(context):
            name, command = unpacked(_command(descriptor))
            if name in catalog.SCHEMAS:
                schema = catalog.schema_of(name, command)
                ticket = descriptor.command
            else:
                schema, handle = self._asked(context, name, command)
                ticket = packed("TicketStatementQuery", statement_handle=handle)
            return fl.FlightInfo(schema, descriptor, [fl.FlightEndpoint(ticket, [])], -1, -1)

    def get_schema(
        self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor
    ) -> fl.SchemaResult:
        """The columns of what a command answers."""
        with self._answering(context):
            name, command = unpacked(_command(descriptor))
            if name in catalog.SCHEMAS:
                return fl.SchemaResult(catalog.schema_of(name, command))
            connection = self._connection(context)
            sql, parameters = self._text(connection, name, command)
            return fl.SchemaResult(statements.columns_of(connection.session, sql, parameters))

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.FlightDataStream:
        """The rows of a ticket."""
        with self._answering(context):
            name, command = unpacked(ticket.ticket)
            connection = self._connection(context)
            if name in catalog.SCHEMAS:
                with self._running(context, connection, Interruption()):
                    rows = catalog.answer(name, command, connection.session)
                return fl.RecordBatchStream(rows)
            if name != "TicketStatementQuery":
                raise OptionError(f"{name} is no ticket.")
            handle = command.statement_handle
            return self._rows(context, connection, handle, connection.fetched(handle))

    def do_put(
        self,
        context: fl.ServerCallContext,
        descriptor: fl.FlightDescriptor,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.FlightMetadataWriter,
    ) -> None:
        """Updates, values of parameters, and rows to be loaded."""
        with self._answering(context):
            name, command = unpacked(_command(descriptor))
            connection = self._connection(context)
            _check_transaction(connection, command)
            if name == "CommandPreparedStatementQuery":
                prepared = connection.prepared(command.prepared_statement_handle)
                rows = statements.bound_values(prepared.parameters, reader.to_reader())
                # One more than may be: the statement tells when it runs.
                prepared.values = list(islice(rows, statements.ROWS_OF_VALUES_MAX + 1))
                answer = make(
                    "DoPutPreparedStatementResult",
                    prepared_statement_handle=command.prepared_statement_handle,
                )
            else:
                with self._running(context, connection, Interruption()):
                    count = self._changed(connection, name, command, reader)
                answer = make("DoPutUpdateResult", record_count=count)
            writer.write(answer.SerializeToString())

    def list_actions(self, context: fl.ServerCallContext) -> list[tuple[str, str]]:
        """The actions that there are."""
        with self._answering(context):
            return list(_ACTIONS.items())

    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> list[fl.Result]:
        """An action."""
        with self._answering(context):
            body = action.body.to_pybytes()
            if action.type in _SAVEPOINTS:
                raise UnsupportedError(f"{action.type}: minishark has no savepoints.")
            run = self._actions.get(action.type)
            if run is None:
                raise UnsupportedError(f"There is no action {action.type[:100]!r}.")
            return [fl.Result(answer) for answer in run(self, self._connection(context), body)]

    # Statements

    def _connection(self, context: fl.ServerCallContext) -> Connection:
        return self._connections.of(_caller(context), name_of(context.peer()))

    @contextmanager
    def _answering(self, context: fl.ServerCallContext) -> Iterator[None]:
        """A call whose caller is known; what fails is told."""
        if self._front is not None:
            self._front.known(name_of(context.peer()))
        with answering():
            yield

    @contextmanager
    def _running(
        self, context: fl.ServerCallContext, connection: Connection, interruption: Interruption
    ) -> Iterator[None]:
        """What this call runs until it answers."""
        self._connections.begin(connection, interruption)
        try:
            with self._calls.waiting(context, interruption), running(interruption):
                yield
        finally:
            self._connections.end(connection, interruption)

    def _text(self, connection: Connection, name: str, command: Any) -> tuple[str, Any]:
        """The statement of a command, and its parameters."""
        _check_transaction(connection, command)
        match name:
            case "CommandStatementQuery" | "CommandStatementUpdate":
                return command.query, ()
            case "CommandPreparedStatementQuery" | "CommandPreparedStatementUpdate":
                prepared = connection.prepared(command.prepared_statement_handle)
                return prepared.sql, prepared.parameters
        raise UnsupportedError(f"minishark has no {name}.")

    def _asked(
        self, context: fl.ServerCallContext, name: str, command: Any
    ) -> tuple[pa.Schema, bytes]:
        """The columns and the handle of a statement; what is no query has run then."""
        connection = self._connection(context)
        sql, _ = self._text(connection, name, command)
        values = None
        if name == "CommandPreparedStatementQuery":
            prepared = connection.prepared(command.prepared_statement_handle)
            values = prepared.values
            if values is None and prepared.parameters:
                raise OptionError(
                    f"The statement has {len(prepared.parameters)} parameters: bind their values."
                )
        interruption = Interruption()
        with self._running(context, connection, interruption):
            answers = statements.answers_of(connection.session, sql, values)
            if not answers:
                raise OptionError("The statement has parameters: bind a row of values.")
            schema = answers[0].schema
        statement = Statement(answers=answers, interruption=interruption)
        return schema, connection.keep(statement)

    def _rows(
        self,
        context: fl.ServerCallContext,
        connection: Connection,
        handle: bytes,
        statement: Statement,
    ) -> fl.RecordBatchStream:
        """The rows of a statement; one with many counts as running until the last one is sent."""
        interruption = statement.interruption

        def over() -> None:
            connection.forget(handle)
            self._connections.end(connection, interruption)

        self._connections.begin(connection, interruption)
        try:
            with self._calls.waiting(context, interruption), running(interruption):
                found = statements.batches_of(statement.answers)
        except BaseException:
            over()
            raise
        if isinstance(found, pa.Table):
            over()
            return fl.RecordBatchStream(found)
        schema, batches = found
        rows = _Rows(batches, interruption, over)
        return fl.RecordBatchStream(pa.RecordBatchReader.from_batches(schema, rows))

    def _changed(
        self, connection: Connection, name: str, command: Any, reader: fl.MetadataRecordBatchReader
    ) -> int:
        """Run an update or a load; the number of rows."""
        session = connection.session
        if name == "CommandStatementIngest":
            return statements.ingest(session, command, reader.to_reader())
        sql, parameters = self._text(connection, name, command)
        values = None
        if parameters:
            values = statements.bound_values(parameters, reader.to_reader())
        return statements.counted(session, sql, values)

    # Actions

    def _prepare(self, connection: Connection, body: bytes) -> Iterator[bytes]:
        request = _request("ActionCreatePreparedStatementRequest", body)
        _check_transaction(connection, request)
        parameters = statements.parameters_of(request.query)
        columns = statements.columns_of(connection.session, request.query, parameters)
        handle = connection.prepare(Prepared(sql=request.query, parameters=parameters))
        yield packed(
            "ActionCreatePreparedStatementResult",
            prepared_statement_handle=handle,
            dataset_schema=_bytes(columns),
            parameter_schema=_bytes(statements.parameter_schema(parameters)),
        )

    def _unprepare(self, connection: Connection, body: bytes) -> Iterator[bytes]:
        request = _request("ActionClosePreparedStatementRequest", body)
        connection.unprepare(request.prepared_statement_handle)
        yield from ()

    def _begin(self, connection: Connection, body: bytes) -> Iterator[bytes]:
        _request("ActionBeginTransactionRequest", body)
        handle = connection.begin_transaction()
        yield packed("ActionBeginTransactionResult", transaction_id=handle)

    def _end(self, connection: Connection, body: bytes) -> Iterator[bytes]:
        request = _request("ActionEndTransactionRequest", body)
        verb = _ENDS.get(request.action)
        if verb is None:
            raise OptionError("A transaction ends with commit (1) or rollback (2).")
        connection.end_transaction(request.transaction_id, verb)
        yield from ()

    def _cancel(self, connection: Connection, body: bytes) -> Iterator[bytes]:
        status = self._cancelled(connection, parsed("CancelFlightInfoRequest", body).info)
        yield make("CancelFlightInfoResult", status=status).SerializeToString()

    def _cancel_query(self, connection: Connection, body: bytes) -> Iterator[bytes]:
        info = parsed("FlightInfo", _request("ActionCancelQueryRequest", body).info)
        yield packed("ActionCancelQueryResult", result=self._cancelled(connection, info))

    def _cancelled(self, connection: Connection, info: Any) -> int:
        """Cancel a statement; without a ticket, all that the connection runs."""
        if not info.endpoint:  # as of a client that waits for a statement that is no query
            connection.cancel()
            return _CANCELLED
        name, ticket = unpacked(info.endpoint[0].ticket.ticket)
        statement = None
        if name == "TicketStatementQuery":
            statement = self._connections.find(ticket.statement_handle, connection.identity)
        if statement is None:
            return _NOT_CANCELLABLE
        statement.interruption.cancel()
        return _CANCELLED

    def _set_options(self, connection: Connection, body: bytes) -> Iterator[bytes]:
        errors = []
        for option in parsed("SetSessionOptionsRequest", body).session_options:
            problem = _set_option(connection, option.key, option.value)
            if problem:
                error = make("SessionOptionError", value=problem)
                errors.append(make("SessionOptionErrorEntry", key=option.key, value=error))
        yield make("SetSessionOptionsResult", errors=errors).SerializeToString()

    def _options(self, connection: Connection, body: bytes) -> Iterator[bytes]:
        parsed("GetSessionOptionsRequest", body)
        place = connection.session.sql("SELECT current_database(), current_schema()").collect()[0]
        options = [
            make("SessionOption", key=key, value=make("SessionOptionValue", string_value=value))
            for key, value in zip(("catalog", "schema"), place, strict=True)
        ]
        yield make("GetSessionOptionsResult", session_options=options).SerializeToString()

    def _close(self, connection: Connection, body: bytes) -> Iterator[bytes]:
        parsed("CloseSessionRequest", body)
        self._connections.remove(connection)
        yield make("CloseSessionResult", status=_CLOSED).SerializeToString()

    _actions: Mapping[str, Callable[[FlightSql, Connection, bytes], Iterator[bytes]]] = {
        "CreatePreparedStatement": _prepare,
        "ClosePreparedStatement": _unprepare,
        "BeginTransaction": _begin,
        "EndTransaction": _end,
        "CancelFlightInfo": _cancel,
        "CancelQuery": _cancel_query,
        "SetSessionOptions": _set_options,
        "GetSessionOptions": _options,
        "CloseSession": _close,
    }


class _Rows:
    """An iterator over the rows of a statement that says when they are sent, or not wanted."""

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        interruption: Interruption,
        over: Callable[[], None],
    ) -> None:
        self._batches = batches
        self._interruption = interruption
        self._over: Callable[[], None] | None = over

    def __iter__(self) -> _Rows:
        return self

    def __next__(self) -> pa.RecordBatch:
        with answering(in_stream=True):
            try:
                with self._interruption.stopped_by(_nothing), running(self._interruption):
                    batch = next(self._batches, None)
            except BaseException:
                self._end()
                raise
        if batch is None:
            self._end()
            raise StopIteration
        return batch

    def _end(self) -> None:
        over, self._over = self._over, None
        self._batches = iter(())
        if over is not None:
            over()

    def __del__(self) -> None:
        self._end()


def _nothing() -> None:
    """What is checked before each batch needs no interruption."""


def _caller(context: fl.ServerCallContext) -> Caller:
    caller = context.get_middleware(_CALLERS)
    assert isinstance(caller, Caller)
    return caller


def _command(descriptor: fl.FlightDescriptor) -> bytes:
    if descriptor.descriptor_type != fl.DescriptorType.CMD:
        raise UnsupportedError("minishark answers commands of Flight SQL, not paths.")
    command: bytes = descriptor.command
    return command


def _request(name: str, body: bytes) -> Any:
    asked, request = unpacked(body)
    if asked != name:
        raise OptionError(f"The action takes {name}, not {asked}.")
    return request


def _check_transaction(connection: Connection, command: Any) -> None:
    # All statements of a connection are part of its transaction; not all that drivers send say so.
    if "transaction_id" in command.DESCRIPTOR.fields_by_name and command.transaction_id:
        connection.check_transaction(command.transaction_id)


def _bytes(schema: pa.Schema) -> bytes:
    return bytes(schema.serialize())


def _set_option(connection: Connection, name: str, value: Any) -> int:
    """Change an option of a connection; 0, or the number of what is wrong."""
    kind = next((field.name for field, _ in value.ListFields()), None)
    given = getattr(value, kind) if kind else None
    match name:
        case "catalog":
            return 0 if given in (CATALOG, None) else _INVALID_VALUE
        case "schema":
            try:
                connection.session.sql(f"USE {CATALOG}.{quote(str(given or 'main'))}")
            except CatalogError:
                return _INVALID_VALUE
            return 0
    try:
        if given is None:
            connection.session.conf.unset(name)
        elif kind == "string_list_value":
            return _INVALID_VALUE
        else:
            connection.session.conf.set(name, given)
    except OptionError:
        return _INVALID_NAME
    except Exception:  # noqa: BLE001 - the protocol has a number for it, and no message
        return _INVALID_VALUE
    return 0
