"""Processes that a template forks are as if their program had started them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from harness import configs, run, task, until

from sparrow_core import LocalCluster
from sparrow_core.runtime.transport.deaths import wait_for_child
from sparrow_core.runtime.transport.spawning import (
    Started,
    Template,
    can_fork,
    interpreter,
    started,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has templates")
_GET_CHILD_SUBREAPER = 37
_MODULES = ("colorsys",)


@pytest.fixture
def template() -> Iterator[Template]:
    """A template that has imported a small module."""
    held = Template.held(_MODULES)
    assert held is not None
    yield held
    held.release()


def _adopts() -> bool:
    """Whether orphans among this process's descendants become its children."""
    value = ctypes.c_int(0)
    ctypes.CDLL(None).prctl(_GET_CHILD_SUBREAPER, ctypes.byref(value))
    return bool(value.value)


def _ended(process: Started) -> int:
    """The exit status of a process, after the end of its stdin."""
    os.close(process.stdin)
    os.close(process.alive_fd)
    ends: list[tuple[int, int]] = []
    until(lambda: ends.extend(filter(None, [wait_for_child(process.pid())])) or ends, "its end")
    return ends[0][0]


def test_what_a_template_forks_is_a_child_here(template: Template, tmp_path: Path) -> None:
    """With a session of its own, a name, no file of others; and orphans are left alone later."""
    log = tmp_path / "n0.log"
    process = started(log, template.making(log, new_session=True))
    child = psutil.Process(process.pid())
    until(lambda: str(log) in child.cmdline()[-1], "its name")
    assert os.getpid() == child.ppid()
    assert process.pid() == os.getsid(process.pid())
    until(lambda: child.num_fds() == 4, "it has its streams, and what is closed by its death")
    assert not _adopts()
    assert (0, b"") == (_ended(process), log.read_bytes())


def test_an_interpreter_does_the_same(tmp_path: Path) -> None:
    """Where there is no template."""
    log = tmp_path / "n0.log"
    process = started(log, interpreter(log, new_session=False))
    assert os.getpid() == psutil.Process(process.pid()).ppid()
    assert os.getsid(0) == os.getsid(process.pid())
    assert (0, b"") == (_ended(process), log.read_bytes())


def test_a_template_that_is_gone_is_done_without(template: Template, tmp_path: Path) -> None:
    """It was killed: an interpreter is started, and who asks next gets another template."""
    (process,) = (p for p in psutil.Process().children() if "colorsys" in p.cmdline()[-1])
    process.kill()
    until(template.has_ended, "its death")
    log = tmp_path / "n0.log"
    assert 0 == _ended(started(log, template.making(log, new_session=True)))
    other = Template.held(_MODULES)
    assert other is not None
    assert other is not template
    other.release()


def test_programs_share_a_template_until_all_have_released_it() -> None:
    """It ends with the last one; what needs other modules has one of its own."""
    one, same, other = (Template.held(names) for names in (_MODULES, _MODULES, ("sched",)))
    assert one is not None
    assert one is same
    assert other is not None
    assert one is not other
    other.release()
    one.release()
    assert not one.has_ended()
    one.release()
    assert one.has_ended()


def test_executors_are_where_their_program_is(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its folder, with its variables, also if their template was there before."""
    held = Template.held(("sparrow_test_runners",))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARROW_TEST", "here")
    with LocalCluster(configs(2), run_dir=run_dir) as cluster:
        jobs = [run(cluster, task(0, "where SPARROW_TEST", node)) for node in ("n0", "n1")]
        assert [{0: f"{tmp_path} here".encode()}] * 2 == [job.results() for job in jobs]
    if held is not None:
        held.release()


def test_nodes_are_restarted_by_the_template(run_dir: Path) -> None:
    """Their executors, too; and none is left in the end, though their template stays."""
    held = Template.held(("sparrow_test_runners",))
    assert held is not None
    before = psutil.Process().children(recursive=True)
    with LocalCluster(configs(2), run_dir=run_dir, restarts=5) as cluster:
        first = cluster.nodes()[1].pid
        os.kill(first, signal.SIGKILL)
        until(lambda: cluster.nodes()[1].pid != first and cluster.nodes()[1].executors, "another")
        assert {0: b"x"} == run(cluster, task(0, "echo x", "n1")).results()
    until(lambda: before == psutil.Process().children(recursive=True), "the end of all")
    assert not _adopts()
    held.release()


def test_a_process_with_threads_does_not_fork() -> None:
    """Such as this one, whose test runner has some, or gets one here."""
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert not can_fork()
    stop.set()
    thread.join()


@pytest.mark.parametrize(
    ("name", "value"),
    [("OPENBLAS_NUM_THREADS", "4"), ("JE_ARROW_MALLOC_CONF", "background_thread:true")],
)
def test_what_can_not_be_forked_is_started(name: str, value: str, tmp_path: Path) -> None:
    """Modules that start threads as the user's variables say: all nodes start, without a fork."""
    program = (
        "import minishark\n"
        "with minishark.connect(nodes=2, executors_per_node=1) as session:\n"
        "    print(session.sql('SELECT 42 AS a').collect())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, name: value, "ODD": "caf\udce9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "[Row(a=42)]\n") == (done.returncode, done.stdout), done.stderr


def test_who_ignores_its_children_has_a_cluster(tmp_path: Path) -> None:
    """As some shells and supervisors do, and it is inherited; many open files do no harm."""
    program = (
        "import os, resource, signal\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))\n"
        "files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]\n"
        "import minishark\n"
        "with minishark.connect(nodes=3, executors_per_node=1) as session:\n"
        "    print(session.sql('SELECT 42 AS a').collect())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (0, "[Row(a=42)]\n") == (done.returncode, done.stdout), done.stderr


def test_what_has_changed_since_makes_another_template(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable, the folder, the mask of new files: processes have what their program has then."""

    def other() -> bool:
        now = Template.held(_MODULES)
        assert now is not None
        now.release()
        return now is not template

    assert not other()
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        assert other()
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        assert other()
    before = os.umask(0o077)
    try:
        assert other()
    finally:
        os.umask(before)
    assert not other()
