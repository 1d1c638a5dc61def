"""The rooms of the house: imports point one way, in no circle, and no module uses another's private names."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]

LAYERS = (
    # modules that know nothing of storage
    {
        "checksum",
        "digest",
        "compression",
        "errors",
        "exact",
        "frames",
        "decoders",
        "importing",
        "lexkey",
        "clock",
        "service_time",
        "names",
        "warn",
        "statistics",
        "reentry",
        "metadata",
        "signals",
        "speed",
        "terminal",
        "arguments",
        "base64url",
        "html",
        "url",
    },
    {"gaps", "retention", "model", "backend"},
    {"retry", "log", "causation"},
    {"index", "leases"},
    # the store and its parts
    {"space", "archive_url", "open_store", "handle", "writing", "transaction", "reading", "following"},
    {"store", "client", "", "aio", "places"},
    {"run"},
    # clients of the store
    {
        "archive",
        "backup",
        "export",
        "testing",
        "groups",
        "views",
        "routes",
        "eventsourcing",
        "members",
        "tenants",
        "removing",
        "salvage",
        "dcb",
    },
    {"types", "telemetry", "doctor"},
    {"serve"},
    {"spark", "cli", "adapters", "pytest_plugin"},
)
"""The package's rooms and the modules at its top, from below. A module imports from its own layer or a lower one."""

BACKENDS = {"backend", "checksum", "decoders", "digest", "errors", "importing", "reentry", "speed"}
"""The modules of the package that a backend may import."""

UPWARD = {
    ("streamkit.pytest_plugin", "streamkit_memory"): "the store of a test is in memory",
    ("streamkit.arguments", "streamkit.log.floors"): "for the type checker",
    ("streamkit.aio.store", "streamkit.archive"): "for the type checker",
    ("streamkit.aio.groups", "streamkit.groups"): "the same for coroutines; imported when it is asked for",
    ("streamkit.aio.groups", "streamkit.groups.run"): "the same for coroutines; imported when it is asked for",
    ("streamkit.aio.clients", "streamkit.members"): "presence for coroutines",
    ("streamkit.aio.clients", "streamkit.routes"): "for the type checker",
    ("streamkit.aio.clients", "streamkit.routes.route"): "for the type checker",
    ("streamkit.aio.clients", "streamkit.views.open_view"): "for the type checker",
    ("streamkit.aio.store", "streamkit.groups"): "for the type checker",
    ("streamkit.aio.store", "streamkit.routes"): "for the type checker",
    ("streamkit.aio.store", "streamkit.salvage"): "for the type checker",
    ("streamkit.aio.store", "streamkit.views.view"): "for the type checker",
    ("streamkit.client", "streamkit.archive.location"): "deletes a store's archive, where there is one",
    ("streamkit.errors", "streamkit.model"): "for the type checker: an error carries statuses",
    ("streamkit.model", "streamkit.log.offsets"): "an entry knows its offset",
    ("streamkit.open_store", "streamkit.archive.location"): "composes the store: the archive's libraries are optional",
    ("streamkit.open_store", "streamkit.archive.read"): "composes the store: the archive's libraries are optional",
    ("streamkit.store", "streamkit.archive"): "`archive()` of the facade; its libraries are optional",
    ("streamkit.store", "streamkit.archive.arrow"): "`to_arrow()` of the facade; its libraries are optional",
    ("streamkit.store", "streamkit.archive.archiver"): "`archive()` of the facade; its libraries are optional",
    ("streamkit.store", "streamkit.archive.compact"): "`compact()` of the facade; its libraries are optional",
    ("streamkit.store", "streamkit.archive.restore"): "`restore()` of the facade; its libraries are optional",
    ("streamkit.store", "streamkit.archive.read"): "for the type checker",
    ("streamkit.store", "streamkit.backup"): "for the type checker",
    ("streamkit.store", "streamkit.backup.create"): "`backup()` and `backups()` of the facade",
    ("streamkit.store", "streamkit.backup.restore"): "`restore_backup()` of the facade",
    ("streamkit", "streamkit.views.view"): "`streamkit.View`, when it is asked for",
    ("streamkit.store", "streamkit.groups.forget"): "groups keep texts that may quote what is erased",
    ("streamkit.store", "streamkit.members"): "`members()` of the facade",
    ("streamkit.store", "streamkit.routes"): "for the type checker",
    ("streamkit.store", "streamkit.routes.route"): "`route()` of the facade",
    ("streamkit.store", "streamkit.routes.control"): "`find_route()` of the facade",
    ("streamkit.store", "streamkit.routes.state"): "`get_routes()` of the facade",
    ("streamkit.store", "streamkit.views.open_view"): "`view()` of the facade; SQLite is imported then",
    ("streamkit.store", "streamkit.views.publish"): "`erase()` of the facade: what is published goes",
    ("streamkit.store", "streamkit.views.view"): "for the type checker",
    ("streamkit.errors", "streamkit.gaps"): "for the type checker: an error carries a gap",
    ("streamkit.store", "streamkit.removing.copies"): "`erase()` of the facade: what it erases beside the log",
    ("streamkit.store", "streamkit.removing.erase"): "`erase()` of the facade",
    ("streamkit.store", "streamkit.removing.snapshots"): "`erase()` of the facade: what snapshots keep goes",
    ("streamkit.store", "streamkit.removing.limits"): "`trim()` and `set_retention()` of the facade",
    ("streamkit.store", "streamkit.removing.report"): "what `trim()`, `erase()` and `size()` of the facade return",
    ("streamkit.store", "streamkit.removing.size"): "`size()` of the facade",
    ("streamkit.store", "streamkit.removing.imports"): "`delete_space()` of the facade: half an import goes too",
    ("streamkit.store", "streamkit.removing.space"): "`delete_space()` of the facade",
    ("streamkit.store", "streamkit.salvage"): "for the type checker",
    ("streamkit.store", "streamkit.salvage.copy"): "`salvage()` of the facade",
    ("streamkit.store", "streamkit.salvage.log"): "`delete_space()` of the facade: a damaged space goes too",
    ("streamkit.store", "streamkit.removing.trim"): "`trim()` of the facade",
    ("streamkit.store", "streamkit.groups"): "for the type checker",
    ("streamkit.store", "streamkit.groups.group"): "`group()` of the facade",
    ("streamkit.store", "streamkit.types.registry"): "for the type checker",
    ("streamkit.store", "streamkit.types.store"): "`typed()` of the facade",
    ("streamkit.aio.store", "streamkit.types.registry"): "for the type checker",
    ("streamkit.aio.store", "streamkit.types.aio"): "`typed()` for coroutines",
    ("streamkit.store", "streamkit.groups.queue"): "`queue()` of the facade",
}
"""(module, imported module): why it may import upward all the same."""


class Import(NamedTuple):
    module: str
    imported: str
    names: tuple[str, ...]
    lazy: bool
    """Within a function, or for the type checker only."""


class Module(NamedTuple):
    name: str
    path: Path
    tree: ast.Module


@cache
def modules() -> dict[str, Module]:
    found = {}
    for root, pattern in ((ROOT, "streamkit/**/*.py"), (ROOT / "backends", "streamkit_*/**/*.py")):
        for path in root.glob(pattern):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(name, path, ast.parse(path.read_text()))
    return found


@cache
def imports() -> tuple[Import, ...]:
    return tuple(found for module in modules().values() for found in _imports(module))


def _imports(module: Module) -> Iterator[Import]:
    package = module.name.split(".") if module.path.name == "__init__.py" else module.name.split(".")[:-1]

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            inner = lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                inner = True
            if isinstance(child, ast.Import):
                for alias in child.names:
                    if alias.name in modules():
                        yield Import(module.name, alias.name, (), lazy)
            elif isinstance(child, ast.ImportFrom):
                base = package[: len(package) - child.level + 1] if child.level else []
                source = ".".join([*base, *(child.module.split(".") if child.module else [])])
                if source not in modules():
                    continue
                plain = []
                for alias in child.names:
                    if f"{source}.{alias.name}" in modules():
                        yield Import(module.name, f"{source}.{alias.name}", (), lazy)
                    else:
                        plain.append(alias.name)
                if plain:
                    yield Import(module.name, source, tuple(plain), lazy)
            else:
                yield from walk(child, inner)

    yield from walk(module.tree, False)


def room(module: str) -> str:
    """ "log" of streamkit.log.commit; "client" of streamkit.client; "" of streamkit; streamkit_s3 of what is in it."""
    package, _, rest = module.partition(".")
    return package if package != "streamkit" else rest.split(".")[0]


def layer(module: str) -> int:
    return next(at for at, rooms in enumerate(LAYERS) if room(module) in rooms)


def test_every_module_has_its_place() -> None:
    known = set().union(*LAYERS)
    assert {room(name) for name in modules() if not name.startswith("streamkit_")} <= known


def test_imports_point_one_way() -> None:
    wrong = []
    for one in imports():
        if one.module.startswith("streamkit_"):
            if room(one.imported) not in BACKENDS and room(one.imported) != room(one.module):
                wrong.append((one.module, one.imported))
        elif one.imported.startswith("streamkit_") or layer(one.imported) > layer(one.module):
            wrong.append((one.module, one.imported))
    assert sorted(set(wrong) - UPWARD.keys()) == []
    assert sorted(UPWARD.keys() - set(wrong)) == [], "these are no exceptions any more"


WHOLE = re.compile(
    r"streamkit(\.(serve(\.\w+)?|spark|testing|adapters\.eventsourcing))?|streamkit_(s3|azure|local|memory)"
)
"""Packages that import their own modules: every program imports the package first, and most do so at their start."""


def test_no_module_imports_itself_through_others() -> None:
    """Two threads that import modules of a circle wait for each other, so Python raises an error in one. A module
    imports its package. So the package does not import the module: it has `importing.importer`."""
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for name in graph:
        package = name.rpartition(".")[0]
        if package and not WHOLE.fullmatch(package):
            graph[name].add(package)
    for one in imports():
        if not one.lazy and one.imported != one.module:
            graph[one.module].add(one.imported)
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for imported in sorted(graph[name]):
                visit(imported, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def _defined(tree: ast.Module) -> set[str]:
    """Private names that a module makes: of functions, classes, attributes, parameters."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


FOREIGN = {"_replace", "_asdict", "_fields", "_make"}
"""The methods of named tuples, which are public in spite of their names."""


def reached() -> Counter[tuple[str, str]]:
    """Return (module, private name of another module that it uses)"""
    found: Counter[tuple[str, str]] = Counter()
    for one in imports():
        for name in one.names:
            if _private(name):
                found[one.module, name] += 1
    for module in modules().values():
        own = _defined(module.tree)
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Attribute) or not _private(node.attr) or node.attr in own | FOREIGN:
                continue
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                found[module.name, node.attr] += 1
    return found


PRIVATE = {
    ("streamkit.adapters.kombu", "_deliver"): "kombu's, which its own transports call too",
    ("streamkit.log.commit", "_is_owned"): "threading's, to tell a call within a call of the same thread",
    ("streamkit.log.partition", "_is_owned"): "threading's, to tell a call within a call of the same thread",
    ("streamkit.log.refresher", "_is_owned"): "threading's, to tell a call within a call of the same thread",
    ("streamkit.open_store", "_is_owned"): "threading's, to tell a call within a call of the same thread",
    ("streamkit.reentry", "_getframe"): "sys._getframe, which is documented; inspect takes 5 ms of a new process",
    ("streamkit.reentry", "_is_owned"): "threading's, to tell a call within a call of the same thread",
    ("streamkit.spark.native", "_jsc"): "PySpark's only way to Hadoop's configuration",
    ("streamkit.testing.backend_checks.storing", "_exit"): "os._exit, in a forked child",
}
"""(module, private name): why it may use it all the same."""


def test_nobody_reaches_into_anothers_private_names() -> None:
    found = reached()
    assert sorted(found.keys() - PRIVATE.keys()) == []
    assert sorted(PRIVATE.keys() - found.keys()) == [], "these are no exceptions any more"


WRITTEN = (
    "backends",
    "examples/demo",
    "streamkit/adapters",
    "streamkit/aio",
    "streamkit/archive",
    "streamkit/backup",
    "streamkit/export",
    "streamkit/cli",
    "streamkit/eventsourcing",
    "streamkit/groups",
    "streamkit/index",
    "streamkit/log",
    "streamkit/removing",
    "streamkit/routes",
    "streamkit/run",
    "streamkit/salvage",
    "streamkit/serve",
    "streamkit/spark",
    "streamkit/testing",
    "streamkit/types",
    "streamkit/views",
)
"""Folders in which private docstrings, and those of constants and fields, are sentences or nouns too."""
CLAUSE = re.compile(r"(What|Of|Whether|How|That|Who|Which|Where|As|Their|Those|They|These|The ones?)\b")
"""Words that begin a part of a sentence. A docstring that begins so leaves out the noun or the verb."""


def docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield every text that stands alone: of modules, classes, functions, constants and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


@pytest.mark.parametrize("folder", WRITTEN)
def test_every_docstring_of_a_room_begins_with_a_noun_or_a_verb(folder: str) -> None:
    refused = [
        f"{path.relative_to(ROOT)}:{text.lineno}: {text.value.splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for text in docstrings(ast.parse(path.read_text()))
        if CLAUSE.match(str(text.value).strip())
    ]
    assert not refused, "\n".join(refused)


def _fields_of_partition() -> set[str]:
    tree = modules()["streamkit.log.partition"].tree
    owner = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Partition")
    return {
        node.attr
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self"
    }


def _partitions_in(tree: ast.Module) -> set[str]:
    """The expressions of a module that are partitions: parameters of that type, and names of partitions."""
    found = {"partition", "self.partition", "self._partition", "one.partition", "view.log"}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None and ast.unparse(node.annotation) == "Partition":
            found.add(node.arg)
    return found


def test_only_a_partition_takes_its_lock_and_sets_its_fields() -> None:
    fields, wrong = _fields_of_partition(), []
    assert {"head", "tail", "floor", "_lock"} <= fields
    for module in modules().values():
        partitions = _partitions_in(module.tree)
        for node in ast.walk(module.tree):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in fields
                and (_private(node.attr) or not isinstance(node.ctx, ast.Load))
                and ast.unparse(node.value) in partitions
            ):
                wrong.append(f"{module.name}: {ast.unparse(node)}")
    assert wrong == []


def test_one_module_makes_the_decoders() -> None:
    """msgspec crashes the process if two threads make the first decoders of a class at once."""
    wrong = []
    for module in modules().values():
        if module.name == "streamkit.decoders":
            continue
        nodes = list(ast.walk(module.tree))
        annotations = {node.value for node in nodes if isinstance(node, ast.Subscript)}  # msgspec.json.Decoder[Any]
        for node in nodes:
            found = None
            if isinstance(node, ast.Attribute) and node not in annotations:
                found = re.fullmatch(r"msgspec\.(json\.Decoder|msgpack\.Decoder|convert)", ast.unparse(node))
            elif isinstance(node, ast.Call) and any(word.arg == "type" for word in node.keywords):
                found = re.fullmatch(r"msgspec\.(json|msgpack)\.decode", ast.unparse(node.func))
            elif isinstance(node, ast.ImportFrom) and re.match(r"msgspec\b", node.module or ""):
                names = " ".join(alias.name for alias in node.names)
                found = re.search(r"\b(convert|json|msgpack|Decoder|decode)\b", names)
            if found:
                wrong.append(f"{module.name}:{node.lineno}: {found[0]}")
    assert wrong == []
