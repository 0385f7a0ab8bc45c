"""A session on a server: what the shell needs of one, over Flight SQL."""

from __future__ import annotations

import base64
import contextlib
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from pathlib import Path
from typing import Any, Self, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.flight as fl

from minishark.adapters.flight.failures import our_error
from minishark.adapters.flight.messages import make, packed
from minishark.compiler.sql.statements import ParsedStatement, parse_statements
from minishark.dataframe.show import PlanText
from minishark.errors import ClusterError, DataError, OptionError
from minishark.model.expressions import quote_text

_CALL_S = 30.0  # for calls that run nothing
_WAIT_S = 0.2  # between two looks at whether the user has enough
_CREATE, _FAIL_IF_EXISTS, _REPLACE = 1, 1, 3
_HERE = "Connect without --server to see that: a server shows it to the cluster's own sessions."

Result = TypeVar("Result")


class RemoteFrame:
    """A statement that has been run on a server, and its rows."""

    def __init__(self, session: RemoteSession, sql: str, rows: pa.Table | None) -> None:
        self._session = session
        self._sql = sql
        self._rows = rows

    def to_arrow(self) -> pa.Table:
        """The rows."""
        if self._rows is None:
            self._rows = self._session.run(self._sql)
        return self._rows

    def plan_text(self, mode: str | bool = "all") -> PlanText:
        """The plans of a query as text.

        Raises:
            OptionError: the mode is none of "all" and "analyze".
        """
        words = {"all": "EXPLAIN", "analyze": "EXPLAIN ANALYZE"}
        word = words.get(str(mode))
        if word is None:
            raise OptionError(f"A server explains in the modes {' and '.join(words)}.")
        return PlanText(self._session.run(f"{word} {self._sql}").column(0)[0].as_py())

    def metrics(self) -> Any:
        """Figures of a run, which a server does not send."""
        raise OptionError(f"A server sends no figures; .explain analyze has them. {_HERE}")

    profile = metrics


class RemoteSession:
    """A session on a server; statements are sent as they are, and run there at once.

    Attributes:
        address: of the server.
        warnings: none.
    """

    warnings: tuple[str, ...] = ()

    def __init__(
        self, address: str, *, token: str | None = None, certificate: str | Path | None = None
    ) -> None:
        """Connect to a server.

        Args:
            address: `grpc://host:port` or `grpc+tls://host:port`, perhaps with `user:password@`.
            token: the server's token.
            certificate: a PEM file of the certificate to trust; None for the system's.

        Raises:
            OptionError: the address is no such address, or the server does not accept the token.
            ClusterError: the server does not answer.
            DataError: the certificate can't be read.
        """
        parts = urllib.parse.urlsplit(address)
        if parts.scheme not in ("grpc", "grpc+tcp", "grpc+tls") or not parts.hostname:
            raise OptionError(f"{address!r} is no server; write grpc://HOST:PORT or grpc+tls://...")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self.address = f"{parts.scheme}://{host}:{_port(parts, address)}"
        self._headers: list[tuple[bytes, bytes]] = []
        if parts.username is not None:
            user = urllib.parse.unquote(parts.username)
            password = urllib.parse.unquote(parts.password or "")
            pair = base64.b64encode(f"{user}:{password}".encode())
            self._headers.append((b"authorization", b"Basic " + pair))
        elif token is not None:
            self._headers.append((b"authorization", b"Bearer " + token.encode()))
        roots = None if certificate is None else _read(Path(certificate))
        with _answered():
            self._client = fl.FlightClient(self.address, tls_root_certs=roots)
        self._parser = duckdb.connect(config={"threads": "1"})
        try:
            self._act("GetSessionOptions", make("GetSessionOptionsRequest"))
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the session."""
        with contextlib.suppress(Exception):
            self._act("CloseSession", make("CloseSessionRequest"), timeout_s=1.0)
        self._client.close()
        self._parser.close()

    def parse(self, text: str) -> tuple[ParsedStatement, ...]:
        """The statements in a text, with what each of them is; see `Session.parse`."""
        return tuple(parse_statements(self._parser, text))

    def sql(self, text: str) -> RemoteFrame:
        """Run statements; the last one's rows.

        Raises:
            MinisharkError: as `Session.sql` does.
        """
        return RemoteFrame(self, text, self.run(text))

    def run(self, text: str) -> pa.Table:
        """Run statements; the last one's rows. Ctrl-C cancels them.

        Raises:
            MinisharkError: as `Session.sql` does.
        """
        asked = fl.FlightDescriptor.for_command(packed("CommandStatementQuery", query=text))
        infos: list[fl.FlightInfo] = []

        def fetched() -> pa.Table:
            infos.append(self._client.get_flight_info(asked, self._options()))
            ticket = infos[0].endpoints[0].ticket
            return self._client.do_get(ticket, self._options()).read_all()

        return self._cancellable(fetched, lambda: self._cancel(infos))

    def create_table(
        self,
        name: str,
        data: str,
        *,
        partition_by: object = None,
        partitions: object = None,
        replicas: int = 2,
        replace: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Load files of this machine as a table of the server, which decides how it is stored.

        Raises:
            CatalogError: there is a table of that name, and `replace` is False.
            DataError: the files can't be read.
        """
        try:
            relation = self._parser.sql(f"FROM {quote_text(data)}")
            rows = relation.to_arrow_reader(65_536)
        except duckdb.Error as error:
            raise DataError(f"{data} can't be read: {error}") from error
        exists = _REPLACE if replace else _FAIL_IF_EXISTS
        options = make("TableDefinitionOptions", if_not_exist=_CREATE, if_exists=exists)
        command = packed("CommandStatementIngest", table_definition_options=options, table=name)
        asked = fl.FlightDescriptor.for_command(command)

        def sent() -> None:
            writer, reader = self._client.do_put(asked, rows.schema, self._options())
            with contextlib.suppress(fl.FlightCancelledError):  # the server says why when it ends
                for batch in rows:
                    writer.write_batch(batch)
                writer.done_writing()
                reader.read()
            writer.close()

        self._cancellable(sent, lambda: self._cancel([]))
        if on_progress is not None:
            on_progress(1, 1)

    @property
    def tables(self) -> list[str]:
        """The names of the tables."""
        names: list[str] = self.run("SHOW TABLES").column(0).to_pylist()
        return names

    @property
    def catalog(self) -> Self:
        """What `.tables` asks for, of which a server tells nothing."""
        return self

    def list_tables(self) -> list[Any]:
        """How tables are stored, which a server does not tell."""
        return []

    def nodes(self) -> Any:
        """The cluster's nodes, which a server does not show."""
        raise ClusterError(_HERE)

    def register_progress_handler(self, handler: object) -> None:
        """Nothing: a server tells no progress."""

    def remove_progress_handler(self, handler: object) -> None:
        """Nothing."""

    def _cancellable(self, run: Callable[[], Result], cancel: Callable[[], None]) -> Result:
        """Run calls on a thread, so that Ctrl-C ends the wait, and then the statement."""
        future: Future[Result] = Future()

        def runs() -> None:
            try:
                with _answered():
                    future.set_result(run())
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                future.set_exception(error)

        threading.Thread(target=runs, name="minishark-client", daemon=True).start()
        try:
            while True:
                with contextlib.suppress(NotYetError):
                    if not future.done():
                        future.exception(_WAIT_S)
                    return future.result()
        except KeyboardInterrupt:
            with contextlib.suppress(Exception):
                cancel()
                future.exception(_CALL_S)
            raise

    def _cancel(self, infos: list[fl.FlightInfo]) -> None:
        """Cancel a statement; all of this session's, if its rows are not asked for yet."""
        info = make("FlightInfo")
        if infos:
            ticket = make("Ticket", ticket=infos[0].endpoints[0].ticket.ticket)
            info = make("FlightInfo", endpoint=[make("FlightEndpoint", ticket=ticket)])
        self._act("CancelFlightInfo", make("CancelFlightInfoRequest", info=info))

    def _act(self, name: str, request: Any, *, timeout_s: float = _CALL_S) -> None:
        with _answered():
            options = self._options(timeout_s)
            for _ in self._client.do_action((name, request.SerializeToString()), options):
                pass

    def _options(self, timeout_s: float | None = None) -> fl.FlightCallOptions:
        return fl.FlightCallOptions(timeout=timeout_s, headers=self._headers)


@contextlib.contextmanager
def _answered() -> Iterator[None]:
    """Raise the errors of a server as ours."""
    try:
        yield
    except (pa.ArrowException, fl.FlightError) as error:
        raise our_error(error) from None


def _port(parts: urllib.parse.SplitResult, address: str) -> int:
    try:
        port = parts.port
    except ValueError:
        port = None
    if port is None:
        raise OptionError(f"{address!r} has no port.")
    return port


def _read(file: Path) -> bytes:
    try:
        return file.expanduser().read_bytes()
    except OSError as error:
        raise DataError(f"{file} can't be read: {error.strerror}.") from error
