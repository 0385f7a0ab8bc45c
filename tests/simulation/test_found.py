"""What the simulator has found in production code, each as the few steps that lead there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from minishark.errors import ConflictError, DataError, MinisharkError, PartitionsLostError
from minishark.model.catalog import Table
from minishark.query.sinks import Layout
from minishark.tables.deltas import versions
from minishark.tables.rebalancing import Copy
from minishark_lab.simulation.checks import claims, strays
from minishark_lab.simulation.disks import Disks
from minishark_lab.simulation.faults import Faults
from minishark_lab.simulation.fibers import Fibers
from minishark_lab.simulation.hosts import Hosts
from minishark_lab.simulation.queries import Query
from minishark_lab.simulation.session import Given, SimulatedFront
from minishark_lab.simulation.work import Row, batch_of
from minishark_lab.simulator.world import World
from sparrow_core.protocol.ids import NodeName

ROWS = tuple((i % 5, i) for i in range(12))


class Session:
    """A process with one session, in which nothing runs in the background."""

    def __init__(self, front: SimulatedFront) -> None:
        self.front, self.clock, self.cluster = front, front.clock, front.cluster
        self.tables, self.kept = front.tables, front.kept
        self.merger, self.writing = front.engine.merger, front.engine.writing
        self.write_file, self.keep = front.write_file, front.keep
        self.query, self.store, self.load = front.main.query, front.main.store, front.main.load
        self.merger.is_open = lambda: False  # but for those that a test begins
        front.keeper.over = True
        replicator = front.engine._replicator
        assert replicator is not None
        replicator.stop()

    def create(self, name: str, rows: Sequence[Row], layout: Layout) -> None:
        """Load a table, which may replace another."""
        self.front.main.create(name, Given(rows), layout)

    def add(self, name: str, rows: Sequence[Row]) -> None:
        """INSERT."""
        self.front.main.sql(f"INSERT INTO {name} VALUES {str([*rows])[1:-1]}")

    def empty(self, name: str) -> None:
        """DELETE without a condition."""
        self.front.main.sql(f"DELETE FROM {name}")

    def drop(self, name: str) -> None:
        """Drop a table."""
        self.front.main.sql(f"DROP TABLE {name}")

    def restore(self, lost: PartitionsLostError) -> None:
        """Restore a table, as a query that has found it lost does."""
        self.front.engine.restore(lost, self.front.main.scope)


class Bed:
    """Three nodes and a session."""

    def __init__(self, fibers: Fibers) -> None:
        self.fibers = fibers
        self.hosts = Hosts(fibers.world, Disks(fibers.world), nodes=3, schedulers=1, slots=2)
        fibers.world.run(0.3)
        self.session = Session(SimulatedFront(hosts=self.hosts, fibers=fibers, endpoint="front0"))

    def run(self, steps: Callable[[], None], *, knows_nodes: bool = True) -> None:
        """Run steps as a thread of the session, to their end."""
        world = self.fibers.world
        if knows_nodes:
            world.run(world.now + 1.0)  # the session hears of the nodes
        thread = self.fibers.start("front0", steps)
        world.run(world.now + 60.0, done=lambda: thread.over)
        assert thread.over
        if thread.error is not None:
            raise thread.error

    def restart_nodes(self) -> None:
        """All nodes come back empty, and the session hears of it."""
        for node in tuple(self.hosts.alive):
            self.hosts.kill_node(node)
            self.hosts.start_node(node)
        self.session.clock.sleep(2.0)


@pytest.fixture
def bed() -> Iterator[Bed]:
    with contextlib.closing(Fibers(World(1))) as fibers:
        yield Bed(fibers)


@pytest.mark.slow
def test_table_that_is_replaced_while_it_is_merged(bed: Bed) -> None:
    """Merging ends without an error, and the folder of the former table is not made again."""
    session = bed.session

    def replace() -> None:
        session.create("t", ROWS, Layout(partitions=1))

    def steps() -> None:
        for milliseconds in range(0, 16, 2):  # at any moment of the load that replaces it
            session.create("t", ROWS, Layout(partitions=3))
            session.add("t", ROWS)
            replacing = bed.fibers.start("front0", replace)
            session.clock.sleep(milliseconds / 1000)
            with contextlib.suppress(MinisharkError):  # what it read is gone
                session.merger.merge("t")
            bed.fibers.join([replacing])
            assert sorted(session.query(Query("rows", ("t",)))) == sorted(ROWS)

    bed.run(steps)
    tables = tuple(session.tables.catalog)
    assert [*strays(session.cluster, tables, bed.hosts)] == []


def test_emptied_table_with_a_lost_partition(bed: Bed) -> None:
    """It is restored, as other statements restore it."""
    session = bed.session

    def steps() -> None:
        session.create("t", ROWS, Layout(partitions=2, replicas=1))
        table = session.tables.catalog.get("t")
        for service in bed.hosts.services.values():
            service.disk.files.pop(table.partitions[0].file, None)
        with pytest.raises(PartitionsLostError, match="partition 0 of table t"):
            session.tables.deltas.emptied(table)
        session.empty("t")
        assert session.query(Query("rows", ("t",))) == []

    bed.run(steps)


@pytest.mark.slow
def test_rows_that_are_added_while_a_table_is_restored(bed: Bed) -> None:
    """They stay, whenever the query that restores it ends."""
    session = bed.session
    added = ((7, 7),)

    def steps() -> None:
        for milliseconds in range(200, 400, 10):
            session.create("t", ROWS, Layout(partitions=2, replicas=1))
            file = session.tables.catalog.get("t").partitions[0].file
            for service in bed.hosts.services.values():
                service.disk.files.pop(file, None)
            query = Query("rows", ("t",))
            reading = bed.fibers.start("front0", lambda query=query: session.query(query))  # type: ignore[misc]
            session.clock.sleep(milliseconds / 1000)
            session.add("t", added)  # again if it was loaded again meanwhile
            bed.fibers.join([reading])
            assert sorted(session.query(query)) == sorted((*ROWS, *added))

    bed.run(steps)


def test_node_that_comes_back_empty_while_rows_are_added(bed: Bed) -> None:
    """It has the table's file again, but not the rows that were stored there before."""
    session = bed.session

    def steps() -> None:
        session.create("t", ROWS, Layout(partitions=1, replicas=3))
        tables = session.tables
        old = tables.catalog.get("t")
        node, *others = old.partitions[0].locations
        new = tables.deltas.with_rows(old, pa.Table.from_batches([batch_of(ROWS)]), None)
        assert node in new.partitions[0].locations
        replicator = tables.replicator()
        assert replicator.moved(old, 0, (), (node,), ())  # it was lost ...
        assert replicator.moved(tables.catalog.get("t"), 0, (node,), (), ())  # ... and copied again
        tables.changed((old, new))
        assert set(others) == {*tables.catalog.get("t").partitions[0].locations}

    bed.run(steps)


def test_node_that_restarts_before_the_session_has_looked(bed: Bed) -> None:
    """It is no holder of what it stored for a load that began when the session knew no node."""
    session, hosts = bed.session, bed.hosts

    def steps() -> None:
        assert not session.cluster.homes()
        session.create("t", ROWS, Layout(partitions=1, replicas=3))
        node, *others = session.tables.catalog.get("t").partitions[0].locations
        hosts.kill_node(NodeName(node))
        hosts.start_node(NodeName(node))
        session.clock.sleep(2.0)  # the session hears of it
        session.tables.replicator()._forget_restarted()  # copies come later
        assert others == [*session.tables.catalog.get("t").partitions[0].locations]

    bed.run(steps, knows_nodes=False)


def test_merging_on_nodes_that_came_back_empty(bed: Bed) -> None:
    """They hold what was merged there, but not the rows that were added after that was read."""
    session = bed.session

    def steps() -> None:
        session.create("t", ROWS, Layout(partitions=2, replicas=2))
        session.empty("t")  # the session's own store has its files from here on
        session.add("t", ROWS)
        session.add("t", ROWS[:1])
        bed.restart_nodes()
        session.merger.merge("t")
        session.tables.replicator()._forget_restarted()
        query = Query("rows", ("t",))
        assert sorted(session.query(query)) == sorted((*ROWS, *ROWS[:1]))

    bed.run(steps)


def test_nodes_that_come_back_empty_before_a_merge_counts(bed: Bed) -> None:
    """It is dropped, so that the table is loaded and changed again."""
    session = bed.session

    def steps() -> None:
        session.create("t", ROWS, Layout(partitions=1))
        for _ in range(3):
            session.add("t", ROWS)
        with session.writing:
            merging = bed.fibers.start("front0", lambda: session.merger.merge("t"))
            session.clock.sleep(1.0)  # it has stored the partition again
            bed.restart_nodes()
        bed.fibers.join([merging])
        assert sorted(session.query(Query("rows", ("t",)))) == sorted(4 * ROWS)

    bed.run(steps)


def test_nodes_that_come_back_empty_before_a_change_counts(bed: Bed) -> None:
    """They are asked what they have, also if no other node could have it."""
    session, tables = bed.session, bed.session.tables
    replicator = tables.replicator()

    def restarting(table: Table) -> Table:
        stored = tables.stored_again(table, table.partitions)
        bed.restart_nodes()
        replicator._forget_restarted()
        return replace(table, partitions=tuple(stored), version=next(versions))

    def steps() -> None:
        session.create("t", ROWS, Layout(partitions=1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables, "merged", restarting)
            session.add("t", ROWS)
        replicator._forget_restarted()
        assert tables.catalog.get("t").partitions[0].locations == ()

    bed.run(steps)


def test_nodes_that_come_back_empty_while_rows_are_added(bed: Bed) -> None:
    """What was there is loaded again, and the rows are added to that."""
    session, tables = bed.session, bed.session.tables
    replicator, restarts = tables.replicator(), list[Table]()

    def restarting(table: Table) -> Table:
        if not restarts:
            restarts.append(table)
            bed.restart_nodes()
            replicator._forget_restarted()
        return table

    def steps() -> None:
        session.create("t", ROWS, Layout(partitions=1))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables, "merged", restarting)
            session.add("t", ROWS)
        assert restarts
        assert sorted(session.query(Query("rows", ("t",)))) == sorted((*ROWS, *ROWS))

    bed.run(steps)


@pytest.mark.slow
def test_changed_table_that_is_dropped_while_it_is_loaded_again(bed: Bed) -> None:
    """The query says that the table is gone, and nothing of it is left."""
    session, tables = bed.session, bed.session.tables

    def steps() -> None:
        for hundredths in range(20):
            session.create("t", ROWS, Layout(partitions=2, replicas=1))
            session.add("t", ROWS[:1])
            table = tables.catalog.get("t")
            for service in bed.hosts.services.values():
                service.disk.files.pop(table.partitions[0].file, None)
            lost = PartitionsLostError("t", (0,), (table.partitions[0].file,))
            restoring = bed.fibers.start("front0", lambda lost=lost: tables.restore(lost))  # type: ignore[misc]
            session.clock.sleep(hundredths / 1_000)
            session.drop("t")
            bed.fibers.join([restoring])
            if restoring.error is not None:
                assert isinstance(restoring.error, MinisharkError)
            assert table.folder not in tables._origins

    bed.run(steps)


def test_table_that_can_not_be_restored_is_not_copied_each_time(bed: Bed) -> None:
    """A task has stored a partition again: nothing is loaded in vain, and nothing stays."""
    session, tables = bed.session, bed.session.tables

    def steps() -> None:
        session.create("t", ROWS, Layout(partitions=2, replicas=1))
        first = {part.file for part in tables.catalog.get("t").partitions}
        for _ in range(3):
            session.add("t", ROWS)
        session.merger.merge("t")
        (part, *_) = [p for p in tables.catalog.get("t").partitions if p.file not in first]
        for service in bed.hosts.services.values():
            service.disk.files.pop(part.file, None)
        before = {at: [*each.disk.files] for at, each in bed.hosts.services.items()}
        for _ in range(3):
            with pytest.raises(PartitionsLostError, match="stored it again"):
                tables.restore(PartitionsLostError("t", (part.index,), (part.file,)))
        assert before == {at: [*each.disk.files] for at, each in bed.hosts.services.items()}

    bed.run(steps)


def test_own_store_keeps_what_it_has(bed: Bed) -> None:
    """It has an emptied table's files, whatever is copied between nodes, and when these restart."""
    session, hosts = bed.session, bed.hosts
    bed.fibers.start("front0", session.cluster.keep_alive)

    def steps() -> None:
        session.create("t", ROWS, Layout(partitions=2, replicas=2))
        session.empty("t")
        hosts.kill_node(NodeName(session.tables.catalog.get("t").partitions[0].locations[0]))
        session.clock.sleep(4.0)  # the session hears of it
        session.tables.replicator().heal()
        bed.restart_nodes()
        session.add("t", ROWS)
        session.tables.replicator()._forget_restarted()
        assert sorted(session.query(Query("rows", ("t",)))) == sorted(ROWS)

    bed.run(steps)


def test_rows_that_are_added_while_the_only_node_is_cut_off(bed: Bed) -> None:
    """The statement waits for it: a version without it would have lost the partition."""
    session, world = bed.session, bed.fibers.world
    bed.fibers.start("front0", session.cluster.keep_alive)

    def steps() -> None:
        session.create("t", ROWS, Layout(partitions=2, replicas=1))
        session.store("u", Query("rows", ("t",)), Layout(partitions=2, replicas=1))
        node = session.tables.catalog.get("u").partitions[1].locations[0]
        session.clock.sleep(1.5)  # the session has met it
        world.cut_off([node], world.now + 6.0)
        while node in session.cluster.nodes:
            session.clock.sleep(0.1)
        world.call(world.now, world._cuts.clear)  # and knows it not yet again
        session.clock.sleep(0.001)
        assert node not in session.cluster.nodes
        session.add("u", ROWS[:1])
        assert sorted(session.query(Query("rows", ("u",)))) == sorted((*ROWS, *ROWS[:1]))

    bed.run(steps)


def test_rows_that_are_added_beside_a_node_that_drains(bed: Bed) -> None:
    """It may be the only one that has the partition: it stays one of its nodes until it leaves."""
    session, hosts = bed.session, bed.hosts

    def steps() -> None:
        session.create("t", ROWS, Layout(partitions=2, replicas=1))
        session.store("u", Query("rows", ("t",)), Layout(partitions=1, replicas=1))
        first, *others = map(NodeName, session.tables.catalog.get("u").partitions[0].locations)
        hosts.drain_node(first)
        for node in others:
            hosts.kill_node(node)
            hosts.start_node(node)
        session.clock.sleep(2.0)  # the session hears of them
        session.add("u", ROWS[:1])
        session.tables.replicator()._forget_restarted()
        assert sorted(session.query(Query("rows", ("u",)))) == sorted((*ROWS, *ROWS[:1]))

    bed.run(steps)


@pytest.mark.parametrize(
    ("fault", "answers", "within_s"),
    [("cut off", True, 9.0), ("stopped", True, 9.0), ("away", False, 21.0), ("killed", False, 5.0)],
)
def test_rows_of_which_the_only_node_does_not_answer(
    bed: Bed, fault: str, answers: bool, within_s: float
) -> None:
    """Statements wait for it as long as it may have them, if there is no source to load again."""
    session, world = bed.session, bed.fibers.world
    bed.fibers.start("front0", session.cluster.keep_alive)

    def steps() -> None:
        session.create("t", ROWS, Layout(partitions=2, replicas=1))
        session.store("u", Query("rows", ("t",)), Layout(partitions=2, replicas=1))
        session.clock.sleep(1.0)
        node = NodeName(session.tables.catalog.get("u").partitions[0].locations[0])
        if fault == "killed":
            bed.hosts.kill_node(node)
        elif fault == "stopped":
            world.freeze(node, world.now + 6.0)
            bed.hosts.freeze_executor(node, world.now + 6.0)
        else:
            world.cut_off([node], world.now + (40.0 if fault == "away" else 6.0))
        session.clock.sleep(0.5)
        began_s = world.now
        if answers:
            assert sorted(ROWS) == sorted(session.query(Query("rows", ("u",))))
            assert world.now > began_s + 5.0
        else:
            with pytest.raises(PartitionsLostError, match="of table u"):
                session.query(Query("rows", ("u",)))
        assert world.now < began_s + within_s

    bed.run(steps)


def test_copy_of_files_that_were_merged_meanwhile(bed: Bed) -> None:
    """That the source does not have the former files says nothing about those of now."""
    session, tables = bed.session, bed.session.tables

    def steps() -> None:
        session.create("t", ROWS, Layout(partitions=2, replicas=1))
        old = tables.catalog.get("t")
        for _ in range(3):
            session.add("t", ROWS)
        session.merger.merge("t")
        tables.sweep()
        now = tables.catalog.get("t")
        (part, *_) = [p for p in old.partitions if now.partitions[p.index].file != p.file]
        held = part.locations
        (free,) = [str(node) for node in bed.hosts.alive if node not in held][:1]
        tables.replicator()._copy(Copy(old, part.index, held[0], free))
        assert now is tables.catalog.get("t")
        asked = tables._homes[old.folder] = dict.fromkeys(bed.hosts.alive, "a former home")
        replicator = tables.replicator()
        replicator.tables = lambda: (old,)
        replicator._forget_restarted()
        assert now is tables.catalog.get("t")
        assert asked[held[0]] == "a former home"  # the next round asks it about those of now

    bed.run(steps)


def test_error_names_only_what_nobody_has(bed: Bed) -> None:
    """Of two nodes that don't answer, one is gone and the other only cut off."""
    session, world = bed.session, bed.fibers.world
    bed.fibers.start("front0", session.cluster.keep_alive)

    def steps() -> None:
        session.create("t", ROWS, Layout(partitions=2, replicas=1))
        session.store("u", Query("rows", ("t",)), Layout(partitions=2, replicas=1))
        session.clock.sleep(1.0)
        first, second = session.tables.catalog.get("u").partitions
        bed.hosts.kill_node(NodeName(first.locations[0]))
        world.cut_off([NodeName(second.locations[0])], world.now + 6.0)
        lost = PartitionsLostError("u", (0, 1), (first.file, second.file))
        with pytest.raises(PartitionsLostError, match="partition 0 of table u ") as raised:
            session.restore(lost)
        assert raised.value.files == (first.file,)

    bed.run(steps)


def test_kept_rows_are_not_computed_again_from_other_rows(bed: Bed) -> None:
    """Their table may be replaced after it was decided that they can be computed again."""
    session = bed.session

    def steps() -> None:
        session.create("t", ROWS, Layout(partitions=2, replicas=1))
        session.keep("c", Query("rows", ("t",)), Layout(partitions=2, replicas=1))
        kept = session.tables.catalog.get(session.kept["c"])
        files = [file for part in kept.partitions for file in part.files]
        session.restore(PartitionsLostError(kept.name, (0, 1), files))
        session.create("t", ((1, 1),), Layout(partitions=2, replicas=1))
        with pytest.raises(PartitionsLostError, match="might give other rows"):
            session.query(Query("rows", ("c",)))

    bed.run(steps)


def test_kept_rows_whose_only_node_is_cut_off(bed: Bed) -> None:
    """Who needs them waits for it, if computing them again would give other rows."""
    session, world = bed.session, bed.fibers.world
    bed.fibers.start("front0", session.cluster.keep_alive)

    def steps() -> None:
        session.create("t", ROWS, Layout(partitions=2, replicas=1))
        session.keep("c", Query("rows", ("t",)), Layout(partitions=2, replicas=1))
        kept = session.tables.catalog.get(session.kept["c"])
        session.create("t", ((1, 1),), Layout(partitions=2, replicas=1))
        session.clock.sleep(1.0)
        part = kept.partitions[0]
        world.cut_off([NodeName(part.locations[0])], world.now + 6.0)
        session.restore(PartitionsLostError(kept.name, (0,), (part.file,)))
        assert sorted(session.query(Query("rows", ("c",)))) == sorted(ROWS)

    bed.run(steps)


@pytest.mark.slow
def test_table_of_a_file_that_is_replaced_while_it_is_loaded_again(bed: Bed) -> None:
    """Its rows are those that it was loaded with, or lost: never those of another version."""
    session = bed.session

    def steps() -> None:
        answers = 0
        for tenths in range(40):
            session.write_file("f", ROWS)
            session.load("t", "f", Layout(partitions=2, replicas=1))
            file = session.tables.catalog.get("t").partitions[0].file
            for service in bed.hosts.services.values():
                service.disk.files.pop(file, None)
            lost = PartitionsLostError("t", (0,), (file,))
            restoring = bed.fibers.start("front0", lambda lost=lost: session.tables.restore(lost))  # type: ignore[misc]
            session.clock.sleep(tenths / 1_000)
            session.write_file("f", ((1, 1),))
            with contextlib.suppress(PartitionsLostError, DataError):
                bed.fibers.join([restoring])
                assert sorted(session.query(Query("rows", ("t",)))) == sorted(ROWS)
                answers += 1
        assert 0 < answers < 40

    bed.run(steps)


def test_partition_that_moves_while_all_are_stored_again(bed: Bed) -> None:
    """The node that it leaves goes on holding what it has of the others."""
    session, tables = bed.session, bed.session.tables

    def steps() -> None:
        session.create("t", ROWS, Layout(partition_by=("k",), partitions=2, replicas=2))
        old = tables.catalog.get("t")
        stored = tables.stored_again(old, old.partitions)
        new = replace(old, partitions=tuple(stored), version=next(versions))
        first, second = (part.locations for part in old.partitions)
        (both,) = set(first).intersection(second)
        (free,) = [str(node) for node in bed.hosts.alive if node not in first]
        tables.replicator()._copy(Copy(old, 0, both, free, leaves=(both,)))
        tables.changed((old, new))
        assert new.partitions[1].locations == tables.catalog.get("t").partitions[1].locations

    bed.run(steps)


@pytest.mark.parametrize("replicas", [1, 2])
def test_replica_that_moves_while_rows_are_added(bed: Bed, replicas: int) -> None:
    """The new rows are where it was: the statement runs again if no node has both."""
    session, tables = bed.session, bed.session.tables
    replicator, moved = tables.replicator(), list[Table]()

    def moving(new: Table) -> Table:
        if not moved:
            old = tables.catalog.get("t")
            moved.append(old)
            held = old.partitions[0].locations
            (free,) = [node for node in bed.hosts.alive if node not in held][:1]
            replicator._copy(Copy(old, 0, held[0], free, leaves=held[:1]))
            tables._emptied[old.folder] = dict.fromkeys(held, old.version)  # they are in doubt
            replicator._release_drained()
        return new

    def steps() -> None:
        session.create("t", ROWS, Layout(partition_by=("k",), partitions=2, replicas=replicas))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables, "merged", moving)
            session.add("t", ROWS)
        replicator._release_drained()
        assert moved
        faults = Faults(
            world=bed.fibers.world,
            hosts=bed.hosts,
            fronts=(),
            kill_session=print,
            restart_session=print,
        )
        assert [*claims(tables.catalog, bed.hosts, faults)] == []
        query = Query("rows", ("t",))
        assert sorted(session.query(query)) == sorted((*ROWS, *ROWS))

    bed.run(steps)


def test_kept_rows_that_another_session_computes(bed: Bed) -> None:
    """Who has kept them may cancel its own queries: that one is none of these."""
    session, other = bed.session, bed.session.front.session()

    def steps() -> None:
        session.create("t", ROWS, Layout(partitions=2))
        session.keep("c", Query("rows", ("t",)), Layout(partitions=2))
        for milliseconds in range(1, 20, 3):  # at any moment of the computation
            session.front.cached.forget(session.front.kept["c"])
            reading = bed.fibers.start("front0", lambda: other.query(Query("rows", ("c",))))
            session.clock.sleep(milliseconds / 1000)
            session.front.main.cancel()
            bed.fibers.join([reading])
            assert reading.error is None

    bed.run(steps)


def test_table_that_is_created_beside_a_lost_one(bed: Bed) -> None:
    """A transaction does not read what its statement does not name."""
    session = bed.session

    def steps() -> None:
        session.create("t", ROWS, Layout(partitions=2, replicas=1))
        session.add("t", ROWS)
        for service in bed.hosts.services.values():
            for part in session.tables.catalog.get("t").partitions:
                service.disk.files.pop(part.file, None)
        session.front.main.sql_at_once("CREATE TABLE p (k BIGINT PRIMARY KEY, v BIGINT)")
        assert session.query(Query("rows", ("p",))) == []

    bed.run(steps)


def test_table_that_is_dropped_while_it_is_copied(bed: Bed) -> None:
    """A transaction that has begun before goes on reading it."""
    session, reader = bed.session, bed.session.front.session()

    def steps() -> None:
        session.create("t", ROWS, Layout(partitions=2, replicas=1))
        table = session.tables.catalog.get("t")
        (source,) = table.partitions[0].locations
        target = next(str(node) for node in bed.hosts.alive if str(node) != source)
        reader.sql("BEGIN")
        session.drop("t")
        session.tables.replicator()._copy(Copy(table, 0, source, target))
        assert sorted(reader.query(Query("rows", ("t",)))) == sorted(ROWS)
        reader.sql("ROLLBACK")
        assert [*strays(session.cluster, (), bed.hosts)] == []

    bed.run(steps)


def test_transaction_over_a_table_that_is_lost(bed: Bed) -> None:
    """It goes on with what is loaded again, unless it has changed what was lost."""
    session, reader = bed.session, bed.session.front.session()
    rows = Query("rows", ("t",))

    def lose() -> None:
        files = {file for part in session.tables.catalog.get("t").partitions for file in part.files}
        for service in bed.hosts.services.values():
            for file in files:
                service.disk.files.pop(file, None)

    def steps() -> None:
        session.create("t", ROWS, Layout(partitions=2, replicas=1))
        reader.sql("BEGIN")
        lose()
        assert sorted(session.query(rows)) == sorted(ROWS)  # which loads it again
        reader.sql("DELETE FROM t WHERE k = 0")
        lose()
        assert sorted(session.query(rows)) == sorted(ROWS)
        with pytest.raises(ConflictError, match="lost with its nodes"):
            reader.sql("DELETE FROM t WHERE k = 1")
        reader.sql("ROLLBACK")
        assert sorted(reader.query(rows)) == sorted(ROWS)

    bed.run(steps)
