"""The modules that `import streamkit`, and a first call, load. Every process that starts pays for each of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest

import streamkit
from streamkit.eventsourcing import JsonCodec

HEAVY = {
    "html.entities",
    "asyncio",
    "base64",
    "concurrent.futures",
    "email",
    "hashlib",
    "heapq",
    "http",
    "json",
    "logging",
    "secrets",
    "shutil",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "tempfile",
    "traceback",
    "xml",
}
"""Modules that neither an import nor a read or an append in a local store needs."""
RARE = {
    "streamkit.index.thin",
    "streamkit.index.upkeep",
    "streamkit.log.log_end",
    "streamkit.log.inbox",
    "streamkit_local.salvage",
}
"""Modules of streamkit that a read or an append in a local store does not need."""
_VALUES = 15
"""Modules of streamkit for records, entries and errors."""
_MOST = 100
"""Modules of streamkit for an append."""
_STORE = "7d9f2c1e-0000-4000-8000-000000000001"


def test_importing_streamkit_loads_the_values_and_not_the_engine() -> None:
    loaded = _loaded("import streamkit")
    assert "streamkit.model" in loaded
    assert not (HEAVY | {"urllib.parse"}) & loaded
    assert len(_own(loaded)) <= _VALUES, "a name that stands on the engine belongs into streamkit._LATER"


def test_a_read_and_an_append_load_few_modules_and_no_heavy_one(tmp_path: Path) -> None:
    calls = (
        "import streamkit\n"
        f"with streamkit.connect({(tmp_path / 'data').as_uri()!r}) as client:\n"
        f"    store = client.store({_STORE!r})\n"
        "    store.produce('space', 'segment', [streamkit.Record(b'one')])\n"
        "    assert store.peek('space', 'segment').sequence == {sequence}\n"
    )
    _loaded(calls.format(sequence=1))  # makes the store
    loaded = _loaded(calls.format(sequence=2))
    assert "streamkit.store" in loaded
    assert not (HEAVY | RARE) & loaded
    assert len(_own(loaded)) <= _MOST, "import a module where it is needed, if few programs need it"


def test_public_names_are_there_before_they_are_loaded() -> None:
    program = (
        "import streamkit\n"
        "assert set(streamkit.__all__) <= set(dir(streamkit))\n"
        "assert streamkit.backend.Backend and streamkit.store.Store is streamkit.Store\n"
        "from streamkit import *\n"
        "assert connect is streamkit.connect and Store is streamkit.Store\n"
        "assert not [name for name in streamkit.__all__ if getattr(streamkit, name) is None]\n"
        "try:\n"
        "    streamkit.no_such_name\n"
        "except AttributeError as error:\n"
        "    assert 'no_such_name' in str(error)\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    assert "streamkit.views.view" in _loaded(program)


def test_a_type_checker_finds_names_that_a_package_does_not_have() -> None:
    """It takes any name for one of a module that has `__getattr__`."""
    packages = list(Path(streamkit.__file__).parent.rglob("__init__.py"))
    shown = [path for path in packages if re.search(r"^(def __getattr__\b|__getattr__\b)", path.read_text(), re.M)]
    assert shown == [], "put it below `if not TYPE_CHECKING`"
    assert sum("__getattr__" in path.read_text() for path in packages) > 10


def test_threads_that_make_the_first_decoders_of_a_class_do_not_crash_the_process() -> None:
    program = """
import sys, threading, types
import msgspec
from streamkit.decoders import Decoders, convert, json_decoder, msgpack_decoder

sys.setswitchinterval(1e-6)
CLASSES = '''
import msgspec
class File(msgspec.Struct):
    path: "str"
    parts: "list[int]"
class Wrote(msgspec.Struct, array_like=True):
    files: "list[tuple[File | None, int]]"
'''
value = [[[{"path": "p", "parts": [1]}, 5]]]
text, packed = msgspec.json.encode(value), msgspec.msgpack.encode(value)
for each in range(200):
    module = sys.modules["classes"] = types.ModuleType("classes")
    exec(CLASSES, vars(module))
    kind, decoders = module.Wrote, Decoders()
    calls = [
        lambda: json_decoder(kind).decode(text),
        lambda: json_decoder(kind | str).decode(text),
        lambda: msgpack_decoder(kind).decode(packed),
        lambda: convert(value, kind),
        lambda: decoders[kind].decode(packed),
    ]
    start = threading.Barrier(len(calls))
    found = []
    threads = [threading.Thread(target=lambda call=call: (start.wait(), found.append(call()))) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [module.Wrote([(module.File("p", [1]), 5)])] * len(calls)
"""
    _loaded(program)


def test_threads_that_convert_to_an_equal_type_that_is_another_object_do_not_crash_the_process() -> None:
    program = """
import sys, threading, typing
import msgspec
from streamkit.decoders import convert

sys.setswitchinterval(1e-6)
T = typing.TypeVar("T")
class Item(msgspec.Struct):
    path: "str"
class Page(msgspec.Struct, typing.Generic[T]):
    items: "list[tuple[Item | None, T]]"
value = {"items": [[{"path": "p"}, 5]]}
first = convert(value, Page[int])
for each in range(200):
    for clear in typing._cleanups:
        clear()
    kind, start, found = Page[int], threading.Barrier(4), []
    threads = [threading.Thread(target=lambda: (start.wait(), found.append(convert(value, kind)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [first] * 4
"""
    _loaded(program)


def test_what_annotates_a_type_is_not_asked_for_types() -> None:
    asked = []

    class Expression:
        def __getattr__(self, name: str) -> Expression:
            asked.append(name)
            if len(asked) > 100:
                raise AttributeError(name)
            return Expression()

    assert JsonCodec(Annotated[int, Expression()]).decode(b"1") == 1
    assert asked == []


def test_threads_that_import_a_package_and_its_module_at_once_do_not_wait_for_each_other() -> None:
    program = """
import importlib, sys, threading
import streamkit

class Finder:  # gives the other thread the time to begin
    def find_spec(self, name, *_):
        if name == package:
            begun.set()
            threading.Event().wait(0.3)

sys.meta_path.insert(0, Finder())
for package, module in (("streamkit.groups", "queue"), ("streamkit.views", "open_view"), ("streamkit.types", "store")):
    begun, found = threading.Event(), []
    load = lambda name: found.append(importlib.import_module(name))
    first = threading.Thread(target=load, args=[package])
    first.start()
    begun.wait()
    load(f"{package}.{module}")
    first.join()
    assert len(found) == 2
    assert set(found[0].__all__) <= set(dir(found[0])) and all(getattr(found[0], name) for name in found[0].__all__)
"""
    _loaded(program)


def test_an_annotation_that_imports_does_not_wait_for_a_thread_that_imports_the_same() -> None:
    program = """
import importlib, os, sys, threading
import msgspec
from streamkit.eventsourcing import JsonCodec

class Finder:
    def find_spec(self, name, *_):
        if name == "streamkit.groups.lane":  # the module makes a decoder when it is imported
            begun.set()
            threading.Event().wait(0.3)

class Lazy:
    def __getattr__(self, name):
        importlib.import_module("streamkit.groups.lane")
        return int

lazy, begun = Lazy(), threading.Event()
class Event(msgspec.Struct):
    number: "lazy.Number"

sys.meta_path.insert(0, Finder())
threads = [
    threading.Thread(target=lambda: importlib.import_module("streamkit.groups.lane"), daemon=True),
    threading.Thread(target=lambda: begun.wait() and JsonCodec(Event), daemon=True),
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(30)
if any(thread.is_alive() for thread in threads):
    os._exit(1)
assert JsonCodec(Event).decode(b'{"number":1}').number == 1
"""
    _loaded(program)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
@pytest.mark.parametrize("module", ["streamkit.client", "streamkit_local", "streamkit_memory"])
def test_a_process_that_is_forked_during_the_first_connect_of_another_thread_can_connect(module: str) -> None:
    program = """
import os, signal, sys, threading
import streamkit

class Finder:
    def find_spec(self, name, *_):
        if name == MODULE:
            begun.set()
            threading.Event().wait(0.3)

begun = threading.Event()
sys.meta_path.insert(0, Finder())
thread = threading.Thread(target=lambda: streamkit.connect("memory://parent", archive="file:///nowhere"))
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    streamkit.connect("memory://child", archive="file:///nowhere").close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0, "the child hangs"
thread.join()
"""
    _loaded(f"MODULE = {module!r}\n{program}")


FORKING = """
import importlib, importlib.machinery, os, signal, sys, threading
import streamkit.importing

class Finder:
    def find_spec(self, name, path, *_):
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module
        def slowly(module):
            begun.set()
            forked.wait(WAIT)
            load(module)
        spec.loader.exec_module = slowly
        return spec

begun, forked = threading.Event(), threading.Event()
sys.meta_path.insert(0, Finder())
thread = threading.Thread(target=importlib.import_module, args=[MODULE])
thread.start()
begun.wait()
child = os.fork()
if child == 0:
    in_child()
    os._exit(0)
forked.set()
assert os.waitpid(child, 0)[1] == 0, "the child hangs"
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
@pytest.mark.parametrize("module", ["streamkit.groups.decide", "streamkit.views", "streamkit.eventsourcing.repository"])
def test_a_process_that_is_forked_during_the_first_import_of_another_thread_can_import(module: str) -> None:
    program = """
def in_child():
    signal.alarm(60)
    importlib.import_module(MODULE)
"""
    _loaded(f"MODULE, WAIT = {module!r}, 0.3\n{program}{FORKING}")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_fork_does_not_wait_for_ever_for_an_import_that_waits_for_the_forking_thread() -> None:
    program = "import streamkit.importing; streamkit.importing._PATIENCE = 0.2; in_child = bool"
    _loaded(f"MODULE, WAIT = 'streamkit.groups.decide', None\n{program}{FORKING}")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
@pytest.mark.parametrize("lock", ["IMPORTING", "DECODERS"])
def test_a_process_that_is_forked_during_a_first_use_of_another_thread_can_have_its_own(
    tmp_path: Path, lock: str
) -> None:
    (tmp_path / "slow.py").write_text("import sys, time\nsys.begun.set()\ntime.sleep(0.5)\nvalue = 1\n")
    program = (
        "import os, signal, sys, threading\n"
        f"from streamkit.importing import {lock}\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "sys.begun = threading.Event()\n"
        "def load():\n"
        f"    with {lock}:\n"
        "        import slow\n"
        "    return slow.value\n"
        "thread = threading.Thread(target=load)\n"
        "thread.start()\n"
        "sys.begun.wait()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.alarm(20)\n"
        "    os._exit(load() - 1)\n"
        "assert os.waitpid(child, 0)[1] == 0, 'the child hangs'\n"
        "thread.join()\n"
    )
    _loaded(program)


def _loaded(program: str) -> set[str]:
    """The modules that a new process loads for the program, beside those of Python's own start."""
    program = f"import sys; before = set(sys.modules)\n{program}\nprint(*set(sys.modules) - before)"
    return {*subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()}


def _own(loaded: set[str]) -> list[str]:
    return [name for name in loaded if name.partition(".")[0] == "streamkit"]
