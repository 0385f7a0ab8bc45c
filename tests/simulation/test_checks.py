"""What the simulator takes for right and wrong, as a few steps each."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from minishark.errors import (
    CatalogError,
    ClusterError,
    ConflictError,
    ConstraintError,
    DataError,
    ResourceError,
)
from minishark.query.sinks import Layout
from minishark_lab.simulation.checks import LASTS_S, claims, unexcused
from minishark_lab.simulation.faults import Faults
from minishark_lab.simulation.fibers import Fibers
from minishark_lab.simulation.model import Model, Said, Seen, Transaction, changed
from minishark_lab.simulation.queries import Query
from minishark_lab.simulation.script import FILE, KEPT, KEYED, Statement
from minishark_lab.simulator.world import World
from tests.simulation.test_found import ROWS, Bed


def test_files_that_change_while_they_are_read() -> None:
    """One that changes once is read again; one that keeps changing is an error that says so."""
    with contextlib.closing(Fibers(World(1))) as fibers:
        bed = Bed(fibers)
        session, query, new = bed.session, Query("total", ("f",)), ((1, 1),)

        def replace(times: int) -> None:
            for _ in range(times):
                session.clock.sleep(0.004)
                session.write_file("f", new)

        def steps() -> None:
            for times in (1, 2000):
                session.write_file("f", ROWS)
                writing = fibers.start("front0", lambda times=times: replace(times))  # type: ignore[misc]
                if times == 1:
                    assert session.query(query) == [(1, 1)]
                else:
                    with pytest.raises(DataError, match="was replaced while it was read"):
                        session.query(query)
                fibers.join([writing])

        bed.run(steps)


def test_failures_are_excused_by_faults_of_their_time() -> None:
    """And of a kind that can be the reason."""
    with contextlib.closing(Fibers(World(1))) as fibers:
        bed, world = Bed(fibers), fibers.world
        faults = Faults(
            world=world,
            hosts=bed.hosts,
            fronts=["front0"],
            kill_session=print,
            restart_session=print,
        )
        faults.spans = [("full_disk", 1.0, 2.0), ("cut_off", 30.0, 31.0)]
        full, silent = ResourceError("full"), ClusterError("silent")
        world.now = 5.0
        assert unexcused(full, faults, 4.0) == ""
        assert unexcused(silent, faults, 4.0) == "all answered"
        world.now = 29.0
        assert unexcused(full, faults, 2.0 + LASTS_S + 0.1) == "no disk was full"
        assert unexcused(silent, faults, 2.0 + LASTS_S + 0.1) == "all answered"
        world.now = 50.0
        assert unexcused(silent, faults, 29.0) == ""


def test_holders_that_never_had_a_file() -> None:
    """They are told, unless they have started again since it was written."""
    with contextlib.closing(Fibers(World(1))) as fibers:
        bed = Bed(fibers)
        session, faults = (
            bed.session,
            Faults(
                world=fibers.world,
                hosts=bed.hosts,
                fronts=["front0"],
                kill_session=print,
                restart_session=print,
            ),
        )

        def told() -> list[str]:
            return [*claims(tuple(session.tables.catalog), bed.hosts, faults)]

        def steps() -> None:
            session.create("t", ROWS, Layout(partitions=2, replicas=1))
            table = session.tables.catalog.get("t")
            (holder,) = table.partitions[0].locations
            others = [node for node in bed.hosts.alive if node != holder]
            assert told() == []
            session.tables.catalog.add(table.with_locations(0, (holder, others[0])))
            assert len(told()) == 1
            bed.hosts.kill_node(others[0])
            bed.hosts.start_node(others[0])
            assert told() == []

        bed.run(steps)


def test_model_of_kept_rows_and_files() -> None:
    """A query sees kept rows as they were when it began, and all else at one moment."""
    model, kept = Model(), Query("rows", ("t",))

    def wrote(kind: str, table: str, value: int = 0) -> None:
        statement = Statement(kind=kind, query=kept, table=table, rows=((1, value),))
        model.effect(model.publish(), (statement, ((1, value),)))

    def is_right(query: Query, first: int, value: int) -> bool:
        model.answers[:] = [Seen(query, first, model.number, [(1, value)])]
        return model.wrong() == []

    wrote("create", "t", 2)
    wrote("keep", KEPT, 2)
    wrote("rewrite", FILE, 3)  # version 3
    both = Query("joined", (KEPT, FILE))
    assert is_right(both, 3, 6)
    wrote("rewrite", FILE, 5)
    wrote("create", "t", 7)
    wrote("refresh", KEPT, 7)  # version 6
    assert [is_right(both, 3, value) for value in (6, 10, 35, 21)] == [True, True, True, False]
    assert not is_right(both, 6, 10)
    assert model.rewrites(3) == 1
    wrote("forget", KEPT)
    assert model.is_open(KEPT, 6)
    assert is_right(Query("rows", (KEPT,)), 6, 99)
    wrote("release", KEPT)
    assert not is_right(Query("rows", (KEPT,)), 8, 99)


def insert(table: str, *rows: tuple[int, int]) -> Statement:
    """An INSERT."""
    return Statement(kind="insert", query=Query("rows", (table,)), table=table, rows=rows)


def update(table: str) -> Statement:
    """An UPDATE of all rows with even values."""
    return Statement(kind="update", query=Query("rows", (table,)), table=table, modulo=2)


def modeled(*tables: str) -> Model:
    """A model of tables with a row each."""
    model = Model()
    for name in tables:
        created = replace(insert(name, (1, 2)), kind="create")
        model.effect(model.publish(), (created, None))
    return model


def seen(model: Model, *rows: tuple[int, int]) -> Seen:
    """What a query of t has returned now."""
    return Seen(Query("rows", ("t",)), model.number, model.number, rows)


def test_transactions_see_one_state_and_what_they_have_done() -> None:
    """Not what others have committed since."""
    for rows, is_right in (((1, 2),), True), (((1, 2), (3, 4)), False):
        model = modeled("t")
        inside = Transaction(first=1, last=1)
        model.transactions.append(inside)
        model.effect(model.publish(), (insert("t", (3, 4)), None))
        inside.seen.append((0, seen(model, *rows)))
        assert (model.wrong() == []) == is_right
        inside.done.append((update("t"), None))
        inside.seen.append((1, seen(model, (1, 3))))
        assert (model.wrong() == []) == is_right
    inside.seen = [(0, seen(model, (1, 2))), (1, seen(model, (1, 2)))]
    assert model.wrong() != []  # it does not see its own changes


def test_of_two_transactions_that_change_a_table_one_is_committed() -> None:
    """Both, if one of them has only added rows, and the other one has changed none."""
    for mine, other, may in (
        (update("t"), update("t"), False),
        (update("t"), insert("t", (5, 6)), False),
        (insert("t", (5, 6)), insert("t", (7, 8)), True),
        (insert("t", (5, 6)), replace(insert("t"), kind="create"), False),
        (update("t"), update("u"), True),
    ):
        model = modeled("t", "u")
        inside = Transaction(first=2, last=2, done=[(mine, None)])
        model.transactions.append(inside)
        model.effect(model.publish(), (other, None))
        inside.committed = model.publish()
        model.effect(inside.committed, *inside.done, by=inside)
        assert (model.wrong() == []) == may


def test_who_changes_no_row_has_found_none() -> None:
    """Neither where it says so though there are some, nor does it conflict with anyone."""
    for statement, may in ((update("t"), False), (update(KEYED), True)):
        model = modeled("t", KEYED)
        model.effect(model.publish(), (replace(insert(KEYED), kind="empty"), None))
        model.told.append(Said(statement=statement, told=0, first=3, last=3))
        assert (model.wrong() == []) == may


def test_returned_rows_are_those_of_some_state() -> None:
    """Of a DELETE those that it deletes, of an UPDATE as they are afterwards; or their number."""
    for kind, told, may in (
        ("delete", [(1, 3)], True),
        ("delete", 1, True),
        ("delete", [(1, 3), (2, 4)], False),
        ("update", [(1, 4)], True),
        ("update", [(1, 3)], False),
        ("empty", 2, True),
        ("empty", 1, False),
    ):
        model = modeled("t", KEYED)
        model.effect(model.publish(), (replace(insert("t"), kind="empty"), None))
        model.effect(model.publish(), (insert("t", (1, 3), (2, 4)), None))
        statement = replace(update("t"), kind=kind, modulo=3)
        model.told.append(Said(statement=statement, told=told, first=4, last=4))
        assert (model.wrong() == []) == may


def test_merged_rows_take_the_place_of_those_with_their_keys() -> None:
    """All of them; others are added."""
    merge = replace(insert("t", (1, 7), (3, 7)), kind="merge")
    state = changed({"t": [(1, 1), (1, 2), (2, 2)]}, merge)
    assert state == {"t": [(1, 7), (1, 7), (2, 2), (3, 7)]}


def test_errors_about_what_tables_hold_are_right_in_some_state() -> None:
    """A key that is there, a table that is not, another writer of the same table."""
    keyed = insert(KEYED, (1, 5))
    for error, statement, may in (
        (ConstraintError("twice"), keyed, True),
        (ConstraintError("twice"), insert(KEYED, (3, 5)), False),
        (CatalogError("unknown"), insert("w", (1, 1)), True),
        (CatalogError("unknown"), keyed, False),
        (ConflictError("changed"), insert("t", (1, 1)), True),
        (ConflictError("changed"), keyed, False),
    ):
        model = modeled("t", KEYED)
        model.effect(model.publish(), (update("t"), None))
        model.failures.append(Said(statement=statement, told=error, first=2, last=3))
        assert (model.wrong() == []) == may
