"""How each kind of statement runs: on the cluster, in the catalog, or in the scratch database."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import duckdb
import pyarrow as pa

from minishark.compiler.sql import statements as kinds
from minishark.compiler.sql.tokens import fill_parameters, without_parameters
from minishark.dataframe import DataFrame
from minishark.dataframe.frame import explaining_frame, local_frame, statement_frame
from minishark.errors import CatalogError, QueryError, TaskFailedError, UnsupportedError
from minishark.query.planner import check_files
from minishark.session.runtime import Runtime
from minishark.session.variables import missing_table_advice
from minishark.tables.scratch_database import broken
from minishark.tables.stores import counted

_ROLLED_BACK = "A COMMIT has rolled back its transaction, which an error had aborted."
_WAREHOUSE = (
    "VACUUM and CACHE TABLE are for tables of a warehouse: see connect(warehouse=...). Others are "
    "in memory already."
)

# Settings of DuckDB that options of `connect` stand for.
_OPTIONS = {
    "threads": "task_threads and executors_per_node",
    "memory": "memory_limit",
    "profil": "no such option: see EXPLAIN ANALYZE and DataFrame.profile()",
}


@dataclass(slots=True)
class Statements:
    """Runs statements where they can run."""

    runtime: Runtime  # what runs them
    _prepared: dict[str, str] = field(default_factory=dict)
    _held: dict[str, tuple[object, ...]] = field(default_factory=dict)  # for prepared ones

    def run(self, text: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> DataFrame:
        """Run all statements in a text but a last query, which runs when its rows are asked for."""
        self.runtime.check_open()
        with self.runtime.scope.transaction.aborted_by_errors():
            try:
                return self._run(text, params)
            # The last one is of a database that is broken, and can't even roll back.
            except (
                duckdb.InternalException,
                duckdb.FatalException,
                duckdb.TransactionException,
            ) as error:
                raise broken(error) from error

    def _run(self, text: str, params: Sequence[Any] | Mapping[str, Any] | None) -> DataFrame:
        with self.runtime.engine.binding(text):
            statements = self.runtime.planning.statements(text)
            if params is not None:
                statements = [self._filled(statements, params)]
            statements = [
                kinds.rewritten(statement, self.runtime.with_calls(statement.sql))
                for statement in statements
            ]
        for statement in statements[:-1]:
            self._statement(self._with_variables(statement))
        last = self._with_variables(statements[-1])
        if len(statements) > 1 and isinstance(last, kinds.Query):
            last = kinds.Query(last.sql)  # those before it may change how it is parsed
        return self._statement(last)

    def _with_variables(
        self, statement: kinds.ParsedStatement, given: Collection[str] = ()
    ) -> kinds.ParsedStatement:
        """A statement in which `$name` is the variable of that name, if it is no given parameter.

        What ran before it may have set the variable.
        """

        def names() -> list[str]:
            variables = self.runtime.planning.show("SELECT name FROM duckdb_variables()")
            lower = map(str.lower, variables.column("name").to_pylist())
            return [name for name in lower if name not in given]

        return kinds.with_variables(statement, names)

    def _filled(
        self, statements: Sequence[kinds.ParsedStatement], params: Sequence[Any] | Mapping[str, Any]
    ) -> kinds.ParsedStatement:
        if len(statements) > 1:
            raise QueryError("Parameters go with one statement; run the others without them.")
        given = [name.lower() for name in params] if isinstance(params, Mapping) else ()
        statement = self._with_variables(statements[0], given)
        return kinds.rewritten(statement, fill_parameters(statement.sql, params))

    def _statement(self, statement: kinds.ParsedStatement) -> DataFrame:
        runtime = self.runtime
        if not isinstance(statement, kinds.Transaction):
            runtime.scope.transaction.check()
        if not isinstance(statement, kinds.Query | kinds.Explain):  # whose files are, when it binds
            check_files(statement.sql)
        if isinstance(statement, kinds.ExplainChange):
            with runtime.up_to_date():
                told = runtime.stores.explain(statement.statement)
            return explaining_frame(runtime, told)
        try:
            answered = runtime.stores.run(statement)
        except CatalogError as error:
            advice = missing_table_advice(str(error), runtime.table_names)
            if not advice:
                raise
            first_line, place, excerpt = str(error).partition("\n\nLINE ")
            raise CatalogError(f"{first_line}{advice}{place}{excerpt}") from error
        if isinstance(answered, pa.Table):
            return local_frame(runtime, answered)
        statement, sql = answered, answered.sql
        match statement:
            case kinds.Query(parsed=parsed):
                return self._query(sql, None, parsed)
            case kinds.Explain(analyze=analyze):
                return self._query(sql, "analyze" if analyze else "plan")
            case kinds.Execute(name=name, arguments=arguments):
                return self.run(self._prepared_statement(name), arguments)
            case kinds.FrontEndQuery():
                answer = runtime.query_in_front_end(sql)
            case kinds.CopyTo(query=query, destination=destination):
                answer = self._copy(query, destination)
            case kinds.Transaction(verb=verb):
                self._transact(verb)
                answer = counted(0)
            case kinds.Vacuum() | kinds.CacheTable():
                raise UnsupportedError(_WAREHOUSE)
            case kinds.Show() | kinds.Write() | kinds.FrontEndCommand() | kinds.ExplainChange():
                message = "the last store takes all of them"
                raise AssertionError(message)
            case _:
                self._define(statement)
                answer = counted(0)
        return local_frame(runtime, answer)

    def _transact(self, verb: str) -> None:
        """BEGIN, COMMIT or ROLLBACK."""
        scope = self.runtime.scope
        if verb == "BEGIN":
            self.runtime.stores.begin()
        elif not scope.transaction.end(verb) and verb == "COMMIT":
            scope.warn(_ROLLED_BACK)

    def _define(
        self,
        statement: kinds.Definition
        | kinds.Setting
        | kinds.SetVariable
        | kinds.CreateEnum
        | kinds.Prepare
        | kinds.Deallocate,
    ) -> None:
        """A statement that later ones depend on."""
        sql, runtime = statement.sql, self.runtime
        match statement:
            case kinds.Definition(name=name, is_temporary=is_temporary, drops=drops):
                own = is_temporary or (name != "" and runtime.planning.has_own(name))
                view = name if statement.is_view else ""
                runtime.definitions.define(sql, own=own, view=view, drops=drops)
            case kinds.Setting(is_reserved=True):
                options = (option for word, option in _OPTIONS.items() if word in sql.lower())
                option = next(options, "memory, nodes and more")
                raise UnsupportedError(
                    f"minishark chooses this setting itself ({sql.strip()}): "
                    f"connect() takes {option}."
                )
            case kinds.Setting():
                runtime.definitions.set(sql)
            case kinds.SetVariable():
                runtime.definitions.set_variable(statement)
            case kinds.CreateEnum():
                runtime.definitions.create_enum(statement)
            case kinds.Prepare(name=name, statement=prepared):
                self._check_prepared(prepared)
                self._prepared[name] = prepared
                self._held[name] = runtime.handles(prepared)
            case kinds.Deallocate(name=name):
                self._prepared.pop(name, None)  # as in DuckDB, which takes any name
                self._held.pop(name, None)
            case _:
                assert_never(statement)

    def _check_prepared(self, prepared: str) -> None:
        """Raise what is wrong with the names and types of a query that is prepared."""
        runtime = self.runtime
        (statement,) = runtime.planning.statements(prepared)
        if isinstance(statement, kinds.ChangeRows):
            self._check_change(statement)
        query = runtime.stores.run(statement) if isinstance(statement, kinds.Query) else None
        if not isinstance(query, kinds.Query) or runtime.scratch.is_alone(query.sql):
            return
        with runtime.up_to_date(), self._advising():
            try:
                runtime.planning.check_prepared(query.sql)
            except QueryError:
                if not (runtime.scratch.has_own and runtime.scratch.can_prepare(query.sql)):
                    raise

    def _check_change(self, prepared: kinds.ChangeRows) -> None:
        """The same of a change of rows, as far as EXPLAIN knows with NULL for its parameters."""
        change = kinds.rewritten(prepared, without_parameters(prepared.sql))
        assert isinstance(change, kinds.ChangeRows), "it is as it was"
        try:
            with self.runtime.up_to_date():
                self.runtime.stores.explain(change)
        except UnsupportedError:
            pass  # it is refused when it runs
        except (CatalogError, QueryError) as error:
            if "NULL" not in str(error).partition("\n")[0]:  # which is wrong with that alone
                raise

    @contextlib.contextmanager
    def _advising(self) -> Iterator[None]:
        """A block whose errors say what to do if a table is elsewhere."""
        try:
            yield
        except QueryError as error:
            advice = missing_table_advice(str(error), self.runtime.table_names)
            if not advice:
                raise
            raise QueryError(f"{error}{advice}") from error

    def _prepared_statement(self, name: str) -> str:
        if name not in self._prepared:
            raise QueryError(f"There is no prepared statement called {name}.")
        return self._prepared[name]

    # Queries

    def _query(
        self, sql: str, explain: str | None, parsed: duckdb.Statement | None = None
    ) -> DataFrame:
        runtime = self.runtime
        with runtime.up_to_date(), runtime.engine.binding(sql), self._advising():
            if runtime.scratch.is_alone(sql):
                return self._query_in_scratch(sql, explain)
            try:
                bound = runtime.planner.bind(sql, parsed)
            except QueryError as error:
                if runtime.scratch.has_own:
                    try:
                        return self._query_in_scratch(sql, explain)
                    except (QueryError, CatalogError):
                        pass
                    except TaskFailedError as same:
                        if str(same) != str(error):  # it binds there, but fails
                            raise
                raise
            return statement_frame(runtime, sql, bound.schema, explain=explain)

    def _query_in_scratch(self, sql: str, explain: str | None) -> DataFrame:
        """A query of what only the scratch database has."""
        runtime = self.runtime
        if explain is None:
            if runtime.scratch.reads_catalog(sql):
                return local_frame(runtime, runtime.elsewhere.show(kinds.Show(sql, is_show=False)))
            return local_frame(runtime, runtime.query_in_front_end(sql))
        plan = runtime.scratch.explain(sql, analyze=explain == "analyze")
        return explaining_frame(runtime, f"Runs in the front end\n{plan}")

    def _copy(self, query: str, target: str) -> pa.Table:
        runtime = self.runtime
        (statement,) = runtime.planning.statements(query)
        here = runtime.scratch.is_alone(query) or runtime.scratch.reads_catalog(query)
        if isinstance(statement, kinds.Query) and not here:
            return runtime.copy(query, target)
        return runtime.scratch.copy(self.run(query).to_arrow(), target)
