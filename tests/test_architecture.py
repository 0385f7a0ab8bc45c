"""The layers hold: imports run one way, and state machines do no input or output.

Rules that old code does not keep yet are ratchets: `exceptions/` lists the places, a new one fails,
and `pytest --rewrite` drops those that are mended. The counts in CONTRIBUTING.md are ratchets, too;
test_doors.py compares the rest of that page and ARCHITECTURE.md with what is there.
"""

from __future__ import annotations

import ast
import gc
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import sparrow_core

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("minishark", "sparrow_core", "canary_core", "machine_kit")
OPTIONAL = ("minishark_platforms", "minishark_lab")
"""What the product does not import: entry points lead there, and it may be left out."""
PACKAGES = (*PRODUCT, *OPTIONAL)

# minishark's layers, low to high: a module imports its own layer and lower ones only. A folder in a
# room, such as `session/page`, may have a layer of its own.
LAYERS = (
    "errors",
    "model",
    "model/events",
    "sources",
    "compiler",
    "worker",
    "cluster",
    "query",
    "tables",
    "dataframe",
    "functions",
    "types",
    "session/programs",
    "session/tasks",
    "session/page",
    "session",
    "adapters",
    "dbapi",
    "spark",
    "cli",
)
# canary_core's layers, low to high.
CANARY_LAYERS = (
    "errors",
    "values",
    "tree",
    "stages",
    "driver",
    "tasks",
    "sequential",
    "protocol",
    "results",
    "policy",
    "machines",
    "runtime",
)
# machine_kit's layers, low to high.
KIT_LAYERS = (
    "errors",
    "logs",
    "addresses",
    "machine",
    "peers",
    "ticks",
    "keys",
    "refusal",
    "endpoint",
    "local_driver",
)
# minishark_lab's layers, low to high.
LAB_LAYERS = (
    "tpch",
    "applications",
    "simulator",
    "early_binding",
    "remembering",
    "models",
    "harness",
    "sparrow",
    "canary",
    "chaos",
    "clickbench",
    "cluster",
    "simulation",
    "registry",
    "command",
)
# The state machines. What they import, directly or not, is held to their rules.
MACHINES = (
    "sparrow_core.machines.scheduler",
    "sparrow_core.machines.node_monitor",
    "sparrow_core.machines.executor",
    "sparrow_core.machines.client",
    "sparrow_core.observe.metrics",
    "canary_core.machines.worker",
    "canary_core.machines.controller",
    "minishark.cluster.jobs.machine",
    "minishark.cluster.shared.machine",
)
DRIVERS = (
    "machine_kit.local_driver",
    "sparrow_core.runtime.transport",
    "minishark_lab.simulator",
    "sparrow_core.runtime.cluster",
    "canary_core.runtime",
)
BANNED_IN_MACHINES = frozenset(
    {"asyncio", "logging", "secrets", "socket", "subprocess", "threading", "time", "uuid", "zmq"}
)
# What those need who tell how a node's process ended.
TRANSPORT = frozenset(
    {
        "sparrow_core.runtime.transport.deaths.describe_exit",
        "sparrow_core.runtime.transport.spawning.process_environment",
    }
)
# Which have options, errors and types of ZeroMQ: users of `machine_kit.endpoint`.
ZEROMQ = (
    "machine_kit.endpoint",
    "machine_kit.keys",
    "sparrow_core.runtime.transport.zmq_driver",
    "canary_core.runtime.mailbox",
    "minishark.cluster.connections",
    "minishark.cluster.service",
)
SHIMS = frozenset({"dbapi", "spark", "types"})
"""Public paths of modules of rooms, which only import names."""

# What matches patterns in the session's room, and no SQL: that is read by tokens.
PATTERNS = {
    "minishark.session.builder": "addresses of masters, such as local[4]",
    "minishark.session.variables": "messages of DuckDB",
}
TOKENIZER = "minishark.compiler.sql.tokens"

ENGINE_ATTRIBUTES_MAX = 28
"""What sessions share; what each has of its own is in `minishark.session.scope`."""

POSITIONAL_ARGUMENTS_MAX = 6
POSITIONAL_FIELDS_MAX = 5
EXCEPTIONS = Path(__file__).with_name("exceptions")
CONTRIBUTING = ROOT / "CONTRIBUTING.md"


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    """The garbage collector need not look at a million nodes again and again: they stay."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@cache
def _modules(package: str) -> list[str]:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    return [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(ROOT.joinpath(*module.split(".")).with_suffix(".py").read_bytes())


@cache
def _nodes(module: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_tree(module)))


@cache
def _imports(module: str) -> tuple[str, ...]:
    """The full names of what a module imports, at its top or later."""
    names: list[str] = []
    for node in _nodes(module):
        match node:
            case ast.Import():
                names += (alias.name for alias in node.names)
            case ast.ImportFrom():
                assert node.level == 0, f"{module} has a relative import"
                names += (f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(names)


def _top_names(module: str) -> Iterator[str]:
    """The full names of what a module imports at its top."""
    for node in _tree(module).body:
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _top_imports(module: str, modules: list[str]) -> list[str]:
    """Our modules that this one imports at its top."""
    found: dict[str, None] = {}
    for name in _top_names(module):
        parent = name.rpartition(".")[0]
        owners = [owner for owner in (name, parent, f"{parent}.__init__") if owner in modules]
        found.update(dict.fromkeys(owners[:1]))
    return list(found)


def _is_in(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


def _is_shim(name: str) -> bool:
    return name.split(".")[1] in SHIMS


def _layer_of(name: str) -> str:
    """The layer that minishark.<layer>... is in: its folder's, or else its room's."""
    _, room, *inside = name.split(".")
    folder = "/".join([room, *inside[:1]])
    return folder if folder in LAYERS else room


def _layer(name: str) -> int:
    """The place of minishark.<layer>... in LAYERS."""
    return LAYERS.index(_layer_of(name))


def _is_front_door(name: str) -> bool:
    """Whether an import means minishark/__init__.py: `minishark` or `minishark.connect`."""
    return name == "minishark" or (_is_in(name, "minishark") and name.split(".")[1] not in LAYERS)


def _inner_modules() -> list[str]:
    """All but minishark/__init__.py, which is the front door and may open any room."""
    return [
        module for module in _modules("minishark") if module.count(".") > 1 or "__" not in module
    ]


def test_imports_run_from_high_layers_to_low_ones() -> None:
    """A module imports only its own layer and lower ones."""
    assert [] == [
        f"{module} imports {name}"
        for module in _inner_modules()
        for name in _imports(module)
        if _is_in(name, "minishark") and not _is_front_door(name)
        if _layer(name) > _layer(module)
    ]


def test_no_text_leads_to_a_higher_layer() -> None:
    """What lies above is reached by entry points, and not by a module's name."""
    paths = re.compile(r"minishark(\.\w+){2,}(:\w+)?")
    assert [] == [
        f"{module} names {text}"
        for module in _inner_modules()
        for text in _texts(module)
        if paths.fullmatch(text) and text.split(".")[1] in LAYERS
        if _layer(text.partition(":")[0]) > _layer(module)
    ]


def test_every_module_has_a_layer() -> None:
    """A new module or folder in minishark takes its place in LAYERS, and every place is taken."""
    assert set(LAYERS) == {_layer_of(module) for module in _inner_modules()}


def _room(module: str) -> str:
    """The file or folder at minishark's first level that a module is in."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def _arrows() -> dict[tuple[str, str], str]:
    """Which room imports which room or core, anywhere in a file, with one such module of each."""
    rooms = {_room(module) for module in _modules("minishark")}
    arrows: dict[tuple[str, str], str] = {}
    for module in _modules("minishark"):
        for name in _imports(module):
            package = name.split(".")[0]
            if package == "minishark":
                target = _room(name) if _room(name) in rooms else "__init__"
            else:
                target = package
            if package in PACKAGES and target != _room(module):
                arrows.setdefault((_room(module), target), module)
    return arrows


def _owner(name: str, modules: Mapping[str, object]) -> str | None:
    """The file of ours that an imported name is in, or is."""
    while name:
        for module in (name, f"{name}.__init__"):
            if module in modules:
                return module
        name = name.rpartition(".")[0]
    return None


def _circles() -> list[list[str]]:
    """Files that reach each other by imports, late ones and those for types too; above two."""
    graph: dict[str, list[str]] = {module: [] for module in _all_modules()}
    for module, imported in graph.items():
        owners = (_owner(name, graph) for name in _imports(module))
        imported += [owner for owner in owners if owner is not None]
    reached = {module: _reached(module, graph) for module in graph}
    circles = {
        tuple(other for other in graph if other in reached[module] and module in reached[other])
        for module in graph
    }
    return [list(circle) for circle in sorted(circles) if len(circle) > 2]


def _reached(module: str, graph: Mapping[str, list[str]]) -> set[str]:
    waiting, found = [module], set[str]()
    while waiting:
        for imported in graph[waiting.pop()]:
            if imported not in found:
                found.add(imported)
                waiting.append(imported)
    return found


def _counts() -> dict[str, tuple[int, list[str]]]:
    """The names of CONTRIBUTING's table: how many there are, and which."""
    rooms = sorted({_room(module) for module in _modules("minishark")})
    arrows = _arrows()
    naming = sorted({room for room, target in arrows if target in PACKAGES})
    circles = _circles()
    inside = [module for circle in circles for module in circle]
    by_arrow = [f"{a} -> {b} (by {module})" for (a, b), module in sorted(arrows.items())]
    return {
        "rooms": (len(rooms), rooms),
        "arrows": (len(arrows), by_arrow),
        "rooms that name a core": (len(naming), naming),
        "circles": (len(circles), [" ".join(circle) for circle in circles]),
        "files in circles": (len(inside), inside),
    }


def test_the_structure_gets_no_worse(pytestconfig: pytest.Config) -> None:
    """Each count is that of CONTRIBUTING's table: a higher one fails, a lower one is written."""
    text = CONTRIBUTING.read_text()
    row = re.compile(r"^(\| ([\w ]+) \| )([\d,]+)(?= \|)", re.MULTILINE)
    allowed = {found[2]: int(found[3].replace(",", "")) for found in row.finditer(text)}
    counts = _counts()
    assert counts.keys() == allowed.keys()
    for name, (count, which) in counts.items():
        listed = "\n".join(which)
        assert count <= allowed[name], f"{name}: {count}, and at most {allowed[name]}:\n{listed}"
    if pytestconfig.getoption("rewrite"):
        CONTRIBUTING.write_text(row.sub(lambda found: f"{found[1]}{counts[found[2]][0]:,}", text))
        return
    lower = {name: count for name, (count, _) in counts.items() if count < allowed[name]}
    assert {} == lower, "fewer than CONTRIBUTING.md says: lower its numbers with --rewrite"


def test_rooms_are_in_no_circle() -> None:
    """Folders with layers of their own do not make their rooms import each other."""
    graph: dict[str, list[str]] = {}
    for room, target in _arrows():
        graph.setdefault(room, []).append(target)
        graph.setdefault(target, [])
    assert [] == [(a, b) for a, b in _arrows() if a in _reached(b, graph)]


def test_shims_only_import_names() -> None:
    """The public paths of other rooms' modules have no code of their own."""
    for shim in filter(_is_shim, _inner_modules()):
        body = _tree(shim).body
        assert not [each for each in body[1:] if not isinstance(each, ast.ImportFrom)], shim


def _loaded_with(module: str, modules: list[str]) -> set[str]:
    """A module, and those of these modules that it or they import at their top."""
    waiting, found = [module], set[str]()
    while waiting:
        next_ = waiting.pop()
        if next_ not in found:
            found.add(next_)
            waiting += _top_imports(next_, modules)
    return found


def test_a_session_begins_before_heavy_imports() -> None:
    """Its processes start first: `connect` imports neither Arrow nor DuckDB before."""
    found = _loaded_with("minishark.session.connect", _modules("minishark"))
    for module in found:
        packages = {name.split(".")[0] for name in _top_names(module)}
        assert packages.isdisjoint({"pyarrow", "duckdb", "numpy", "cloudpickle"}), module
    assert "minishark.cluster.local" in found


def test_executors_start_without_what_starts_clusters() -> None:
    """Each that dies is started again, and a query waits for it: half a second, most of imports."""
    modules = [module for package in PRODUCT for module in _modules(package)]
    found = _loaded_with("minishark.cluster.executor", modules)
    needless = ("minishark.cluster.local", "minishark.cluster.joining", "canary_core.runtime")
    assert [] == [module for module in found for each in needless if _is_in(module, each)]
    assert "minishark.worker.run_task" in found


def test_nobody_inside_uses_the_front_door() -> None:
    """What minishark/__init__.py offers is for users: rooms import each other."""
    assert [] == [m for m in _inner_modules() if any(map(_is_front_door, _imports(m)))]


def test_pysparks_functions_have_one_door() -> None:
    """Sessions take what they offer of them from `minishark.functions`; Spark's text calls them.

    Nobody else names them.
    """
    users = {
        (module, name)
        for module in _inner_modules()
        if not _is_in(module, "minishark.functions") and not _is_shim(module)
        for name in _imports(module)
        if _is_in(name, "minishark.functions")
    }
    offered = ("minishark.functions.TableFunctions", "minishark.functions.TableValued")
    assert {
        *(("minishark.session.session", name) for name in offered),
        ("minishark.adapters.spark_text", "minishark.functions.in_text"),
    } == users


def test_the_product_does_not_import_what_is_optional() -> None:
    """Entry points reach platforms and experiments: both may be left out."""
    assert [] == [
        f"{module} names {name}"
        for package in PRODUCT
        for module in _modules(package)
        for name in (*_imports(module), *_texts(module))
        if any(_is_in(name, optional) for optional in OPTIONAL)
    ]


def _texts(module: str) -> Iterator[str]:
    """All constant texts, by one of which a module could be imported late."""
    for node in _nodes(module):
        match node:
            case ast.Constant(value=str(text)):
                yield text


def test_experiments_import_what_lies_below_them() -> None:
    """A room of the laboratory imports its own layer of it and lower ones."""
    assert [] == [
        f"{module} imports {name}"
        for module in _modules("minishark_lab")
        for name in _imports(module)
        if _is_in(name, "minishark_lab")
        if _lab_layer(name) > _lab_layer(module)
    ]


def _lab_layer(name: str) -> int:
    room = name.partition(".")[2].partition(".")[0]
    return LAB_LAYERS.index(room) if room and "__" not in room else -1


def test_programs_know_nothing_of_the_engine() -> None:
    """canary_core imports its own layer and lower ones, and nothing of SQL or Arrow."""
    found = [
        f"{module} imports {name}"
        for module in _modules("canary_core")
        for name in _imports(module)
        if not _is_allowed_in_canary(module.split(".")[1], name)
    ]
    assert [] == found


def _is_allowed_in_canary(room: str, name: str) -> bool:
    if any(_is_in(name, each) for each in ("minishark", "pyarrow", "duckdb")):
        return False
    inner = name.split(".")[1] if _is_in(name, "canary_core") and "." in name else room
    if room == "__init__" or inner not in CANARY_LAYERS:
        return True
    return CANARY_LAYERS.index(inner) <= CANARY_LAYERS.index(room)


def test_every_room_of_canary_has_a_layer() -> None:
    rooms = {module.split(".")[1] for module in _modules("canary_core")}
    assert rooms <= {"__init__", *CANARY_LAYERS}


def test_the_kit_knows_nothing_of_what_stands_on_it() -> None:
    """A module of machine_kit imports its own layer and lower ones, and nothing else of ours."""
    found = []
    for module in _modules("machine_kit"):
        room = module.split(".")[1]
        below = KIT_LAYERS[: KIT_LAYERS.index(room) + 1] if room != "__init__" else ()
        for name in _imports(module):
            inside = _is_in(name, "machine_kit") and name.split(".")[1] in below
            if name.split(".")[0] in {*PACKAGES, "pyarrow", "duckdb"} and not inside:
                found.append(f"{module} imports {name}")
    assert [] == found


def test_the_scheduler_knows_nothing_of_the_engine() -> None:
    """sparrow_core imports neither minishark nor pyarrow nor duckdb."""
    assert [] == [
        f"{module} imports {name}"
        for module in _modules("sparrow_core")
        for name in _imports(module)
        if any(_is_in(name, package) for package in ("minishark", "pyarrow", "duckdb"))
    ]


def test_only_the_cluster_layer_runs_the_scheduler() -> None:
    """Others have jobs run by its `Backend`; what happens, and programs, have words in common."""
    homes = ("protocol.events", "protocol.types", "protocol.status", "protocol.ids")
    names = {"JobSpec", "explain", *(name for home in homes for name in sparrow_core._HOMES[home])}
    vocabulary = frozenset(f"sparrow_core.{name}" for name in names)
    may = {
        "cluster": lambda _: True,
        "model/events": vocabulary.__contains__,
        "session/programs": vocabulary.__contains__,
        "minishark_platforms": TRANSPORT.__contains__,
    }
    for module in (*_inner_modules(), *_modules("minishark_platforms")):
        package = module.split(".")[0]
        layer = _layer_of(module) if package == "minishark" else package
        for name in _imports(module):
            if _is_in(name, "sparrow_core"):
                assert may.get(layer, lambda _: False)(name), f"{module} imports {name}"


def test_sockets_are_made_in_one_place() -> None:
    """What listens, authenticates and polls is an `Endpoint`; others send and receive."""
    found = {
        module
        for module in _all_modules()
        for node in _nodes(module)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (
            (ast.unparse(node.func.value) == "zmq" and node.func.attr in {"Context", "Poller"})
            or (node.func.attr == "socket" and "zmq." in ast.unparse(node))
        )
    }
    # A request to several services waits for all of their answers.
    assert {"machine_kit.endpoint", "minishark.cluster.connections"} == found
    users = [m for m in _all_modules() if any(_is_in(name, "zmq") for name in _imports(m))]
    assert sorted(ZEROMQ) == sorted(users)


def _machine_modules() -> list[str]:
    """The machines and all that runs when they are imported, but for the package's front door."""
    modules = [
        name
        for package in ("sparrow_core", "canary_core", "machine_kit")
        for name in _modules(package)
        if not name.endswith("__init__")
    ]
    reached: dict[str, None] = {}
    waiting = list(MACHINES)
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached[module] = None
            waiting += _top_imports(module, modules)
    return sorted(reached)


def test_machines_do_no_input_or_output() -> None:
    """A state machine has no clock, no socket, no thread, and no random numbers of its own."""
    assert [] == [each for module in _machine_modules() for each in _input_and_output(module)]


def _input_and_output(module: str) -> Iterator[str]:
    for name in _imports(module):
        # random.Random is a type that is injected; the module's functions are global state.
        is_random = _is_in(name, "random") and name not in {"random", "random.Random"}
        if is_random or any(_is_in(name, banned) for banned in BANNED_IN_MACHINES):
            yield f"{module} imports {name}"
    for node in _nodes(module):
        match node:
            case ast.Attribute(value=ast.Name(id="random"), attr=attribute):
                if "Random" != attribute:
                    yield f"{module}: random.{attribute}"


# Where functions and exceptions of users are unpickled: in executors, which run them, and in the
# front end that sent them. Whoever can reach these holds the cluster's keys.
UNPICKLING = (
    "canary_core.values",
    "minishark.cluster.backend",
    "minishark.cluster.program_slot",
    "minishark.query.digests",
    "minishark.worker.functions",
    "minishark.worker.run_task",
    "minishark.worker.scalars",
    "minishark.worker.scans",
    "minishark.worker.values",
)
UNSAFE_CALLS = frozenset({"os.system", "os.popen", "tempfile.mktemp"})
UNPICKLERS = frozenset({"cloudpickle.loads", "cloudpickle.load", "pickle.loads", "pickle.load"})


def _all_modules() -> list[str]:
    return [module for package in PACKAGES for module in _modules(package)]


def test_nothing_reaches_a_shell_or_a_guessable_file() -> None:
    """No shell, no name in a temporary folder that somebody else could have taken first."""
    assert [] == [each for module in _all_modules() for each in _unsafe(module)]


def _unsafe(module: str) -> Iterator[str]:
    for name, call in _calls(module):
        if name in UNSAFE_CALLS or "shell" in [each.arg for each in call.keywords]:
            yield f"{module}: {ast.unparse(call)}"
    for node in _nodes(module):
        match node:
            case ast.Constant(value=str(text)):
                if text.startswith("/tmp"):
                    yield f"{module}: {text}"


def _calls(module: str) -> Iterator[tuple[str, ast.Call]]:
    """What a module calls of other modules, such as `os.system`."""
    for node in _nodes(module):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)):
                yield f"{owner}.{name}", node
            case ast.Call(func=ast.Name(id=name)):
                yield name, node


def test_pickles_are_read_where_functions_run() -> None:
    """What comes over the wire is msgpack; only users' functions and their rows are pickles."""
    users = [
        module for module in _all_modules() for name, _ in _calls(module) if name in UNPICKLERS
    ]
    assert set(UNPICKLING) == set(users)
    importers = {m for m in _all_modules() for name in _imports(m) if _is_in(name, "pickle")}
    # Protocol 5, whose large buffers travel apart.
    assert {"canary_core.values", "minishark.worker.values"} == importers


def test_machines_do_not_know_their_drivers() -> None:
    """The same classes run under every driver, so they reach none."""
    reached = [module for module in _machine_modules() for d in DRIVERS if _is_in(module, d)]
    assert [] == reached


def test_no_module_imports_itself_in_a_circle() -> None:
    """There is no cycle of imports at the top of modules."""
    modules = _all_modules()
    graph = {module: _top_imports(module, modules) for module in modules}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " imports ".join((*path[path.index(module) :], module))
        if module not in done:
            for imported in graph[module]:
                visit(imported, (*path, module))
            done.add(module)

    for module in modules:
        visit(module, ())


def test_packages_are_packages() -> None:
    """Each folder with modules has an __init__.py, or the wheel would lack it."""
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            assert (file.parent / "__init__.py").is_file(), file


def _places(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """All nodes of a module, each with the qualified name of the function or class it is in."""
    below: list[tuple[tuple[str, ...], ast.AST]] = [((), tree)]
    while below:
        path, parent = below.pop()
        place = ".".join(path) or "<module>"
        for node in ast.iter_child_nodes(parent):
            yield place, node
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    below.append(((*path, node.name), node))
                case _:
                    below.append((path, node))


def _file(module: str) -> str:
    return module.replace(".", "/") + ".py"


def _check_exceptions(rule: str, found: Counter[str], config: pytest.Config) -> None:
    """Compare the places that break a rule with the list of those that may, which only shrinks."""
    listing = EXCEPTIONS / f"{rule}.txt"
    allowed: Counter[str] = Counter()
    for line in listing.read_text().splitlines():
        place, _, count = line.rpartition(" ")
        allowed[place] = int(count)
    if config.getoption("rewrite"):
        allowed &= found
        listing.write_text("".join(f"{place} {allowed[place]}\n" for place in sorted(allowed)))
    assert {} == found - allowed, f"new exceptions to the rule of {rule.replace('_', ' ')}"
    assert {} == allowed - found, f"these are mended: shorten {listing.name} with --rewrite"


def test_no_call_has_a_row_of_positional_arguments(pytestconfig: pytest.Config) -> None:
    """Seven or more arguments are named where they are passed; a place is `file:function`."""
    found = Counter(
        f"{_file(module)}:{place}"
        for module in _all_modules()
        for place, node in _places(_tree(module))
        if isinstance(node, ast.Call) and len(node.args) > POSITIONAL_ARGUMENTS_MAX
    )
    _check_exceptions("positional_arguments", found, pytestconfig)


# Not `session/tasks`, which copies and looks at values and functions of users.
UNCOPIED = ("session", "session/page", "session/programs", "query", "compiler")


def _uncopied_modules() -> list[str]:
    return [module for module in _inner_modules() if _layer_of(module) in UNCOPIED]


def test_what_sessions_share_is_never_copied() -> None:
    """No object is copied whole and mended afterwards: constructors take what is shared."""
    found = []
    for module in _uncopied_modules():
        found += [f"{module} imports {name}" for name in _imports(module) if _is_in(name, "copy")]
        for node in _nodes(module):
            match node:
                case (
                    ast.Attribute(attr="__dict__")
                    | ast.Call(func=ast.Name(id="vars"), args=[ast.Name("self")])
                ):
                    found.append(f"{module}: {ast.unparse(node)}")
                case ast.Call(func=ast.Attribute(value=ast.Name(id="object"), attr="__new__")):
                    found.append(f"{module}: {ast.unparse(node)}")
    assert [] == found


def _assigned(node: ast.AST) -> list[ast.expr]:
    """What a statement assigns to."""
    match node:
        case ast.Assign(targets=targets):
            found = targets
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            found = [target]
        case _:
            return []
    parts = (each.elts if isinstance(each, ast.Tuple) else [each] for each in found)
    return [item for each in parts for item in each]


def test_attributes_are_assigned_where_they_belong(pytestconfig: pytest.Config) -> None:
    """Not through another object, as in `self.planner.options = ...`; a place is `file:function`.

    `self._shared` and the like is a part of the object itself.
    """
    found: Counter[str] = Counter()
    for module in _uncopied_modules():
        for place, node in _places(_tree(module)):
            for target in _assigned(node):
                match target:
                    case ast.Attribute(value=ast.Attribute(attr=owner)):
                        found[f"{_file(module)}:{place}"] += not owner.startswith("_")
    _check_exceptions("reached_assignments", +found, pytestconfig)


def test_the_engine_has_few_attributes() -> None:
    """What one session has of its own is in its scope."""
    engine = next(
        node
        for node in _nodes("minishark.session.engine")
        if isinstance(node, ast.ClassDef) and node.name == "Engine"
    )
    names = {
        target.attr
        for node in ast.walk(engine)
        for target in _assigned(node)
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
    }
    assert len(names) <= ENGINE_ATTRIBUTES_MAX, sorted(names)


def _keywords(node: ast.ClassDef, structs: set[str]) -> list[ast.keyword] | None:
    """What a dataclass's decorator or a Struct's bases are told; None for other classes."""
    for decorator in node.decorator_list:
        match decorator:
            case ast.Call(func=ast.Name(id="dataclass"), keywords=keywords):
                return keywords
            case ast.Name(id="dataclass"):
                return []
    return node.keywords if node.name in structs else None


def _structs(classes: list[ast.ClassDef]) -> set[str]:
    """The names of the classes that derive from msgspec.Struct, directly or not."""
    bases = {
        node.name: {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases}
        for node in classes
    }
    structs = {"Struct"}
    while more := {name for name in bases if bases[name] & structs} - structs:
        structs |= more
    return structs


def _fields(node: ast.ClassDef) -> int:
    """How many arguments the constructor takes for the fields that the class itself declares."""
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    return sum(
        not ast.unparse(each.annotation).startswith("ClassVar")
        and not (each.value is not None and "init=False" in ast.unparse(each.value))
        for each in fields
    )


def test_large_classes_are_built_by_names(pytestconfig: pytest.Config) -> None:
    """A dataclass or Struct with more than five fields is `kw_only`; a place is `file:class`."""
    classes = [
        (module, node)
        for module in _all_modules()
        for node in _nodes(module)
        if isinstance(node, ast.ClassDef)
    ]
    structs = _structs([node for _, node in classes])
    found: Counter[str] = Counter()
    for module, node in classes:
        keywords = _keywords(node, structs)
        if keywords is not None and _fields(node) > POSITIONAL_FIELDS_MAX:
            told = {each.arg: ast.unparse(each.value) for each in keywords}
            found[f"{_file(module)}:{node.name}"] += told.get("kw_only") != "True"
    _check_exceptions("positional_fields", +found, pytestconfig)


def test_sql_is_tokenized_in_one_place() -> None:
    """All others have a cursor over tokens, or edits of the text; no session matches patterns."""
    users = [m for m in _all_modules() for name, _ in _calls(m) if name == "duckdb.tokenize"]
    assert [TOKENIZER] == users
    matching = [m for m in _modules("minishark") if _is_in(m, "minishark.session")]
    matching = [module for module in matching if any(_is_in(n, "re") for n in _imports(module))]
    assert sorted(PATTERNS) == sorted(matching)


def test_no_data_is_evaluated_as_code() -> None:
    """There is one `eval`, of what is compiled from a constant."""
    found = []
    for module in _all_modules():
        for node in _nodes(module):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id in ("eval", "exec", "compile", "__import__"):
                where = f"{module.replace('.', '/')}.py"
                found.append((where, node.func.id, ast.unparse(node.args[0])))
    place, constant = "minishark/worker/duckdb_slot.py", "'_minishark_run(_minishark_text)'"
    assert [(place, "compile", constant), (place, "eval", "_FRAGMENT")] == sorted(found)
