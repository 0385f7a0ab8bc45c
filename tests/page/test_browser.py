"""Pages in a real browser: each view with a cluster behind it, by mouse and by keyboard."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from browser import EVIL, Tab, started_browser
from page_events import BEGAN, node_report, query_events, task

import minishark
from minishark.errors import MinisharkError, QueryCancelledError
from minishark.model.events import figures, kinds
from minishark.model.events.figures import FIGURES, Figure, TaskFigures
from minishark.model.events.stream import EventStream
from minishark.session.page.server import PageServer
from minishark.session.page.site import Site
from minishark.session.page.sources import SessionSource
from minishark.session.session import Session
from sparrow_core import ExecutorStatus

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range = 7"
_GROUPED = "SELECT g, count(DISTINCT i) AS n FROM numbers GROUP BY g ORDER BY g"
_MARKUP = "<script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'>"
_LOOK_S = 5
_VIEWS = ("cluster", "queries", "tables", "placement", "python")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started_browser() as started:
        yield started


@contextmanager
def _opened(browser: Browser, **options: Any) -> Iterator[Tab]:
    """A tab that has nothing to complain of in the end."""
    context = browser.new_context(**options)
    tab = Tab(context)
    try:
        yield tab
        assert [] == tab.complaints
    finally:
        context.close()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Tab]:
    with _opened(browser, viewport={"width": 1280, "height": 900}) as opened:
        yield opened


@pytest.fixture(scope="module")
def session(browser: Browser) -> Iterator[Session]:
    """A session that has run a query and a call."""
    with minishark.connect(
        in_process=True, nodes=2, executors_per_node=1, partitions=4, single_task_rows=0
    ) as opened:
        opened.ui(open_browser=False)
        numbers = opened.sql("SELECT range AS i, range % 10 AS g FROM range(100000)").to_arrow()
        opened.create_table("numbers", numbers, partition_by="i")
        opened.sql(_GROUPED).collect()
        opened.submit(pow, 2, 3).result()
        yield opened


@pytest.fixture
def address(session: Session) -> str:
    return session.ui(open_browser=False)


# The views


def test_every_view_is_drawn(tab: Tab, address: str) -> None:
    page = tab.page
    tab.show(address, "cluster")
    for text in ("node-0", "node-1", "2nodes", "0 / 2slots busy"):
        page.wait_for_function(
            "(text) => document.querySelector('main').textContent.includes(text)", arg=text
        )
    page.locator("canvas.lanes").wait_for()
    assert 2 < tab.drawn_colours("canvas.lanes")
    page.locator("#rate .uplot canvas").wait_for()

    tab.show(address, "queries")
    page.get_by_role("link", name=_GROUPED).first.click()
    page.wait_for_url(re.compile(r"#/query/"))
    for head in ("Plan", "Stages", "Figures by stage", "Tasks by executor", "The longest tasks"):
        page.get_by_role("heading", name=head).first.wait_for()
    assert _GROUPED == page.locator("#sqltext pre").text_content()
    sort = page.locator("#plan tr", has_text="Sort").first.locator("td")
    assert "10" == sort.nth(3).text_content()
    assert 2 <= page.locator("#graph rect.box").count()
    assert 2 < tab.drawn_colours("#line canvas.lanes")
    page.get_by_role("button", name="Why there?").first.click()
    tab.shows("task ", within="dialog pre")
    page.keyboard.press("Escape")

    tab.show(address, "tables")
    tab.shows("100 k rows")
    tab.shows("2 of 2 replicas kept")
    assert 2 < tab.drawn_colours("canvas.map")

    tab.show(address, "placement")
    for text in ("median queue time", "Late binding", "Queue times by node", "The newest jobs"):
        tab.shows(text)

    tab.show(address, "python")
    tab.shows("pow")


@pytest.mark.slow
def test_the_figures_of_tasks_are_columns(
    tab: Tab, server: PageServer, emit: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the table of figures has, one among them that this page has never heard of."""

    class Extended(TaskFigures, frozen=True, kw_only=True):
        widgets: int = 0

    new = Figure(name="widgets", label="widgets", says="Widgets made.", is_rare=True)
    monkeypatch.setitem(FIGURES, new.name, new)
    monkeypatch.setattr(figures, "TaskFigures", Extended)
    common: dict[str, Any] = {"bytes": 2_000, "disk_bytes": 500, "run_s": 0.1, "queue_s": 0.02}
    tasks = (
        Extended(node="a", executor="a-e0", rows=70, local=True, attempt=3, **common, widgets=9),
        Extended(node="b", executor="b-e0", rows=10, local=False, received={"a": 3_000}, **common),
    )
    began, planned, started, _, _, *ended = query_events(1)
    measured = [
        kinds.TaskEnded(at=1002.0, query=1, stage=0, task=number, figures=each)
        for number, each in enumerate(tasks)
    ]
    emit(began, planned, started, *measured, *ended)
    tab.show(server.address, "query/abc-1")
    tab.shows("By node")
    spread = "100 ms / 100 ms / 100 ms"
    queued = "20.0 ms / 20.0 ms / 20.0 ms"
    assert {
        "Stage": "stage 0", "Tasks": "2", "Rows": "80", "Rows by task": "", "Skew": "1.8",
        "Put out": "4.00 kB1.00 kB on disk", "Time": "800 ms",
        "Task: least / median / most": spread, "Queue: least / median / most": queued,
        "Local": "1/2", "Retries": "2", "Network": "3.00 kB", "Widgets": "9",
    } == _columns(tab, "#stages")  # fmt: skip
    assert {
        "Stage": "stage 0", "Task": "0", "Executor": "a-e0", "Rows": "70",
        "Put out": "2.00 kB500 B on disk", "Run": "100 ms", "Queue": "20.0 ms", "Local": "yes",
        "Attempt": "3", "Network": "0 B", "Widgets": "9", "": "Why there?",
    } == _columns(tab, "#longest")  # fmt: skip
    assert {
        "Node": "a", "Tasks": "1", "Run time": "100 ms", "Rows": "70",
        "Put out": "2.00 kB500 B on disk", "Task: least / median / most": spread,
        "Queue: least / median / most": queued, "Local": "1/1", "Retries": "2", "Network": "0 B",
        "Widgets": "9",
    } == _columns(tab, "#spread")  # fmt: skip
    tab.page.get_by_role("button", name="Why there?").first.click()
    tab.shows("a-e0", within="dialog")
    for text in ("a-e0ran it", "70rows", "9widgets", "yeslocal"):
        assert text in (tab.page.locator("dialog").text_content() or "")


def _columns(tab: Tab, section: str) -> dict[str, str]:
    """The cells of a table's first row, by their heads."""
    table = tab.page.locator(f"{section} table")
    heads = table.locator("th").all_text_contents()
    cells = table.locator("tbody tr").first.locator("td").all_text_contents()
    return dict(zip(heads, cells, strict=True))


@pytest.mark.slow
def test_the_longest_running_tasks_are_shown(
    tab: Tab, server: PageServer, emit: Callable[..., None]
) -> None:
    """In all views that have some, with their time, which goes on."""
    began = {"executor": "node-0-e0", "task": 1}
    emit(
        *query_events(1, "SELECT slow", state="running"),
        kinds.TasksRunning(
            at=time.time(),
            tasks=(
                kinds.RunningTask(began_s=time.time() - 3_700, what="train<i>", **began),
                kinds.RunningTask(began_s=time.time() - 61, query=1, **began),
            ),
        ),
    )
    tab.show(server.address, "cluster")
    tab.shows("train<i>", "#tasks-now")
    tab.shows("1 h 1 min", "#tasks-now")
    tab.page.locator("#tasks-now a").click()
    for_how_long = tab.page.locator("#tasks-now b").get_by_text("1 min").first
    shown = for_how_long.inner_text()
    deadline = time.monotonic() + 10
    while for_how_long.inner_text() == shown:
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.1)
    tab.show(server.address, "python")
    tab.shows("train<i>", "#tasks-now")


@pytest.mark.slow
def test_views_without_data_say_what_to_do(tab: Tab, server: PageServer) -> None:
    said = {
        "cluster": "No task has ended",
        "queries": "No query has run yet",
        "tables": "There is no table",
        "placement": "No task has been placed yet",
        "python": "No function has been called",
    }
    for view, sentence in said.items():
        tab.show(server.address, view)
        tab.shows(sentence)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_screens_and_both_schemes(browser: Browser, address: str, scheme: str) -> None:
    """No view is wider than a telephone; the schemes differ."""
    size = {"width": 360, "height": 700}
    with _opened(browser, viewport=size, color_scheme=scheme) as tab:
        for view in _VIEWS:
            tab.show(address, view)
            tab.page.locator("main section:not(:empty)").first.wait_for()
            assert 0 >= tab.overflows(), view
        tab.show(address, "queries")
        tab.page.get_by_role("link", name=_GROUPED).first.click()
        tab.page.locator("#plan table").wait_for()
        assert 0 >= tab.overflows()
        back = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = sum(map(int, re.findall(r"\d+", back)[:3])) / 3
        assert (brightness > 128) == (scheme == "light")


@pytest.mark.slow
def test_the_page_is_used_by_keyboard(tab: Tab, address: str) -> None:
    page = tab.page
    tab.show(address)
    tab.shows("node-0")
    for key, view in enumerate(_VIEWS, start=1):
        page.keyboard.press(str(key))
        page.wait_for_url(re.compile(f"#/{view}$"))
    page.keyboard.press("/")
    page.wait_for_function("() => document.activeElement.id === 'search'")
    page.keyboard.type("count(DISTINCT i)")
    page.wait_for_function("() => document.querySelectorAll('td.sql a').length === 1")
    page.keyboard.press("Escape")
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('td.sql a')"):
            break
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"#/query/"))
    page.locator("#longest button").first.focus()
    page.keyboard.press("Enter")
    page.locator("dialog[open]").wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog[open]").wait_for(state="detached")
    assert page.evaluate("document.activeElement.matches('#longest button')")
    page.keyboard.press("?")
    tab.shows("Keys", within="dialog")


# Safety


def test_markup_in_sql_is_text(tab: Tab, session: Session, address: str) -> None:
    """In the list, on the query's page, and in errors."""
    sql = f"SELECT error('{_MARKUP.replace(chr(39), chr(34))}' || i) FROM numbers"
    with pytest.raises(MinisharkError):
        session.sql(sql).collect()
    page = tab.page
    tab.show(address, "queries")
    page.locator("td.sql a", has_text="window.harmed").first.click()
    page.locator("#problems .banner.bad", has_text="<script>window.harmed").wait_for()
    assert sql == page.locator("#sqltext pre").text_content()
    assert page.evaluate("window.harmed === undefined")
    assert 0 == page.locator("main img, main script").count()


def test_wrong_hosts_and_missing_tokens_are_refused(browser: Browser, address: str) -> None:
    """Neither another name for this machine nor another site's page learns or changes anything."""
    port, token = address.split("/")[2].split(":")[1], address.split("/")[3]
    context = browser.new_context()
    page = context.new_page()
    for place, status in (
        (f"http://{EVIL}:{port}/{token}/", 421),
        (f"http://127.0.0.1:{port}/", 403),
        (f"http://127.0.0.1:{port}/{token[:-1]}/", 403),
    ):
        answer = page.goto(place)
        assert answer is not None
        assert status == answer.status
        assert token not in page.content()
    site = f"http://{EVIL}/"
    page.route(site, lambda route: route.fulfill(body="<p>hello", content_type="text/html"))
    page.goto(site)
    # Even one that knows the token.
    ask = "([to, how]) => fetch(to, how).then((a) => a.text(), (e) => e.name)"
    assert "TypeError" == page.evaluate(ask, [f"{address}view/queries", {}])
    post = {"method": "POST", "headers": {"X-Minishark-Token": token}, "body": '{"key": "x"}'}
    assert "TypeError" == page.evaluate(ask, [f"{address}cancel", post])
    page.set_content(f'<iframe src="{address}"></iframe>')
    page.wait_for_timeout(300)
    assert not any(frame.url.startswith(address) for frame in page.frames)
    context.close()


@pytest.mark.slow
def test_an_exported_query_needs_no_server(
    tab: Tab, session: Session, tmp_path: Path, browser: Browser
) -> None:
    """It opens from disk; in a notebook's frame, which is sandboxed, it works as well."""
    profile = session.sql(f"{_GROUPED} -- {_MARKUP}").profile()
    exported = tmp_path / "query.html"
    exported.write_text(profile.to_html())
    tab.show(exported.as_uri())
    tab.page.get_by_role("button", name="Why there?").first.click()
    tab.shows("task ", within="dialog pre")
    assert 0 >= tab.overflows()
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><body>{profile._repr_html_()}")
    tab.show(notebook.as_uri())
    frame = tab.page.frame_locator("iframe")
    frame.get_by_role("button", name="Why there?").first.click()
    frame.locator("dialog pre").get_by_text("task ").first.wait_for()
    assert tab.page.evaluate("window.harmed === undefined")


# What happens while somebody looks


def _cancelled_by_click(tab: Tab, session: Session, address: str) -> tuple[float, float]:
    """Seconds until a query was seen after its start, and was over after the click on Cancel."""
    ended: list[float] = []

    def run() -> None:
        with pytest.raises(QueryCancelledError):
            session.sql(_ENDLESS).collect()
        ended.append(time.monotonic())

    tab.show(address, "queries")
    tab.page.locator("td.sql a").first.wait_for()
    thread = threading.Thread(target=run)
    began = time.monotonic()
    thread.start()
    button = tab.page.get_by_role("button", name="Cancel query")
    button.wait_for()
    seen = time.monotonic()
    button.click()
    clicked = time.monotonic()
    thread.join(10.0)
    assert ended, "the query still runs"
    tab.page.locator("tr", has_text="range * b.range").first.get_by_text("cancelled").wait_for()
    return seen - began, ended[0] - clicked


@pytest.mark.slow
def test_a_query_is_cancelled_by_a_click(tab: Tab, session: Session, address: str) -> None:
    _cancelled_by_click(tab, session, address)


@pytest.mark.slow
def test_a_query_is_seen_and_cancelled_in_time(tab: Tab, session: Session, address: str) -> None:
    """On the page within a second of its start; over within two after the click."""
    for _ in range(3):
        seen_s, over_s = _cancelled_by_click(tab, session, address)
        assert seen_s < 1.0
        assert over_s < 2.0


@pytest.mark.slow
def test_a_killed_executor_is_shown_with_its_reason(tab: Tab) -> None:
    """Within three seconds on a quiet machine."""
    with minishark.connect(nodes=2, executors_per_node=1) as session:
        tab.show(session.ui(open_browser=False), "cluster")
        tab.shows("node-0")
        (pid,) = (e.pid for e in session.nodes()[0].executors)
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        tab.page.locator("#deaths", has_text="SIGKILL").wait_for()
        assert time.monotonic() - began < 10.0


def _served(stream: EventStream, port: int = 0, token: str = "") -> PageServer:
    served = PageServer(Site([SessionSource(BEGAN, stream, lambda _: True)]), port=port)
    served.token = token or served.token
    served.start()
    return served


@pytest.mark.slow
def test_a_page_finds_back_by_itself(tab: Tab) -> None:
    """After a reload, a lost connection, and a server that was away."""
    stream = EventStream()
    served = _served(stream)
    try:
        page = tab.page
        tab.show(served.address, "queries")
        tab.shows("No query has run yet")
        for event in query_events(1, "SELECT 'one'"):
            stream.emit(event)
        tab.shows("SELECT 'one'")
        page.reload()
        tab.shows("SELECT 'one'")
        served._server.close_connections()
        for event in query_events(2, "SELECT 'two'"):
            stream.emit(event)
        tab.shows("SELECT 'two'")
        served.stop()
        page.locator("#status .dot.away").wait_for()
        for event in query_events(3, "SELECT 'three'"):
            stream.emit(event)
        served = _served(stream, served.port, served.token)
        tab.shows("SELECT 'three'")
        page.locator("#status .dot.live").wait_for()
    finally:
        served.stop()
    # The browser itself notes a connection that is lost.
    tab.complaints[:] = [each for each in tab.complaints if "net::ERR_" not in each]


_FRAMES = """(seconds) => new Promise((resolve) => {
  const frames = [], began = performance.now();
  let last = began;
  const next = (now) => {
    frames.push(now - last);
    last = now;
    if (now - began < 1000 * seconds) requestAnimationFrame(next); else resolve(frames);
  };
  requestAnimationFrame(next);
})"""


@pytest.mark.slow
@pytest.mark.parametrize("view", ["query/abc-1", "cluster", "placement"])
def test_many_tasks_on_many_nodes_stay_fluid(tab: Tab, view: str) -> None:
    """10,000 tasks of a stage end on 100 nodes while the page shows them."""
    stream = EventStream()
    served = _served(stream)
    stopped = threading.Event()

    def run() -> None:
        for number in range(10_000):
            node = f"node-{number % 100}"
            executor, at = f"{node}-e{number // 100 % 4}", time.time()
            figures = {"executor": executor, "run_s": 0.2 + number % 7 / 50, "local": True}
            stream.emit(task(1, 0, number, node=node, at=at, **figures))
            if number % 100 == 99 and stopped.wait(0.04):
                return

    try:
        for number in range(100):
            executors = tuple(ExecutorStatus(f"node-{number}-e{each}", 1, 1) for each in range(4))
            stream.emit(node_report(f"node-{number}", at=time.time(), executors=executors))
        for event in query_events(1, tasks=10_000, state="running")[:3]:
            stream.emit(msgspec.structs.replace(event, at=time.time()))
        tab.show(served.address, view)
        tab.page.locator("main section:not(:empty)").first.wait_for()
        thread = threading.Thread(target=run)
        thread.start()
        before_s = tab.busy_s()
        frames = tab.page.evaluate(_FRAMES, _LOOK_S)
        busy = (tab.busy_s() - before_s) / _LOOK_S
        stopped.set()
        thread.join()
    finally:
        served.stop()
    # Its CPU time says the same on a busy machine, where frames wait for other processes.
    shown = f"{busy:.0%} busy; frames {median(frames):.0f} ms, at most {max(frames):.0f} ms"
    assert busy < 0.5, shown
    assert median(frames) < 50, shown
