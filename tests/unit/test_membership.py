"""What a session knows of the nodes of its cluster: folders, leases, who is away and who may go."""

from __future__ import annotations

from collections.abc import Collection

from minishark.cluster.membership import (
    Ask,
    Keep,
    Membership,
    Node,
    NodeFolders,
    Request,
    Steps,
)
from minishark.cluster.wire import MakeFolder, RemoveFolder
from minishark.worker.protocol import StoreLocation


def node(name: str, home: str = "", *, is_draining: bool = False, is_busy: bool = False) -> Node:
    """A node whose service has its name."""
    home = home or f"/{name}"
    return Node(StoreLocation(name, name, home, home, name), is_draining, is_busy)


DEAD, ALIVE = node("dead"), node("alive")


class Driver:
    """Has nodes do what a membership asks for; the dead one does not answer."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.asked: list[tuple[str, Request]] = []

    def ask(self, asked: Ask) -> Collection[Node]:
        """Who answers."""
        self.asked += [(node.name, asked.request) for node in asked.nodes]
        answered = [node for node in asked.nodes if node.name != "dead"]
        self.membership.heard(asked, answered)
        return answered

    def run(self, steps: Steps) -> None:
        """Take all steps."""
        asked = next(steps, None)
        while asked is not None:
            try:
                asked = steps.send(self.ask(asked))
            except StopIteration:
                return


def test_a_node_that_falls_silent_keeps_no_other_waiting() -> None:
    """One call to it is all that is waited for, until it is sent a heartbeat."""
    membership = Membership()
    membership.folders.make(("t/0", "t/1", "t/2"))
    driver = Driver(membership)
    for steps in membership.missing((DEAD, ALIVE)):
        driver.run(steps)
    assert [name for name, _ in driver.asked] == ["dead", "alive", "alive", "alive"]
    made = {home: [*folders] for home, folders in membership.folders.by_home.items()}
    assert made == {"/dead": [], "/alive": ["t/0", "t/1", "t/2"]}
    driver.asked.clear()
    driver.run(membership.make(("t/3",), (DEAD, ALIVE)))
    assert driver.asked == [("alive", MakeFolder("t/3"))]
    driver.ask(membership.beat((DEAD, ALIVE), 0.0))
    assert driver.asked[1:] == [("dead", Keep(())), ("alive", Keep(()))]


def test_heartbeats_go_to_the_last_nodes_when_no_scheduler_answers() -> None:
    """One may have come back elsewhere, and nodes know where."""
    membership = Membership()
    membership.beat((ALIVE,), 0.0)
    assert membership.beat((), 1.0).nodes == (ALIVE,)


def test_a_node_that_is_away_may_be_the_one_that_was_seen() -> None:
    """Not if another one has taken its place, and not for ever."""
    membership = Membership()
    membership.note((ALIVE,), 0.0)
    assert membership.away("alive", ()) == ALIVE
    assert membership.away("alive", (node("alive", "/again"),)) is None
    assert membership.away("other", ()) is None
    membership.note((), 1_000.0)
    assert membership.away("alive", ()) is None


def test_draining_nodes_are_released_unless_something_of_them_is_needed() -> None:
    """A task that ends may leave a result there; if all drain, nothing can be saved."""
    membership = Membership()
    idle = node("idle", is_draining=True)
    busy = node("busy", is_draining=True, is_busy=True)
    kept = node("kept", is_draining=True)
    membership.needed = lambda: frozenset({"kept"})
    nodes = (ALIVE, idle, busy, kept)
    membership.release(("idle", "busy", "kept"), nodes)
    assert membership.beat(nodes, 0.0).request == Keep(("idle",))
    membership.release(("busy", "kept"), (busy, kept))
    assert membership.beat(nodes, 0.0).request == Keep(("busy", "kept"))


def asked_of(folders: NodeFolders, home: str, *answers: bool) -> list[MakeFolder | RemoveFolder]:
    """What a node is asked that was not there, and answers so."""
    steps, left = folders.missing(home), [*answers]
    asked, request = list[MakeFolder | RemoveFolder](), next(steps, None)
    while request is not None:
        asked.append(request)
        try:
            request = steps.send(left.pop(0))
        except StopIteration:
            return asked
    return asked


def test_a_node_removes_what_it_has_missed() -> None:
    """It did not answer, or was not known yet; what was made again stays."""
    folders = NodeFolders()
    folders.make(("q/0", "t/0"))
    folders.made_at("/cut off", ("q/0", "t/0"))
    folders.remove(("q/0", "t/0"), ["/alive", "/cut off"])
    folders.removed_at(["/alive"], ("q/0", "t/0"))
    folders.make(("t/0",))
    missed, wanted = RemoveFolder("q/0"), MakeFolder("t/0")
    assert asked_of(folders, "/cut off", False) == [missed]
    assert asked_of(folders, "/cut off", True, True) == [missed, wanted]
    assert asked_of(folders, "/cut off") == []
    assert asked_of(folders, "/new", True, True) == [missed, wanted]
    assert asked_of(folders, "/alive", True) == [wanted]
    folders.forget_others(["/alive"])
    assert [*folders.by_home] == [*folders.left] == ["/alive"]


def test_a_folder_that_is_removed_while_it_is_made_is_made_again_when_it_is_wanted() -> None:
    folders = NodeFolders()
    folders.make(("q/0",))
    steps = folders.missing("/node")
    assert next(steps) == MakeFolder("q/0")
    folders.remove(("q/0",), [])
    assert steps.send(True) == RemoveFolder("q/0")
    steps.close()
    folders.make(("q/0",))
    assert not folders.are_at(["/node"], ["q/0"])


def test_a_node_that_never_answers_is_told_of_its_folders_and_the_last_others() -> None:
    folders = NodeFolders()
    folders.make(("q/made",))
    folders.made_at("/silent", ("q/made",))
    folders.remove(("q/made",), [])
    for number in range(1_000):
        folders.make((f"q/{number}",))
        folders.remove((f"q/{number}",), ["/silent"])
    last = [f"q/{number}" for number in range(744, 1_000)]
    assert [*folders.left["/silent"]] == ["q/made", *last]
    assert asked_of(folders, "/silent", True)[0] == RemoveFolder.of(["q/made", *last])
