"""The commands views, view, routes and run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

import streamkit
from streamkit import Record
from streamkit.cli.app import run

APP = """
import os
import streamkit
from streamkit.views import Latest

store = streamkit.connect().store(os.environ["STREAMKIT_STORE"])
latest = store.view("latest", Latest(lambda entry: entry.segment), spaces=["copies"])
copy = store.route("copy", source="log", target="copies")
everything = [latest, copy]
reader = store.group("log", "reader")

class Fails:
    name = "fails"
    def run(self, stop=None, *, seconds=None):
        raise ValueError("always")

number, text, nothing, mixed = 5, "app", [], [latest, 5]
wrong_parts = ({}, None)

async def coroutine():
    return everything

def needs(request, response): ...

def raises():
    raise RuntimeError("the printer\\nhas no paper")

def exits():
    raise SystemExit("bye")

def returns_nothing(): ...

class Web:
    def __call__(self, environ, start_response): ...

web = Web()

def workers():
    from streamkit.run import Worker
    return [Worker(store.group("log", "readers"), lambda delivery: None)]

def troubled():
    from streamkit.run import Program
    return Program(store, [copy, Fails()], led=[latest])
"""


class Here:
    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.url, self.id = f"file://{folder}/stores", uuid4()
        patch.setenv("STREAMKIT_URL", self.url)
        patch.setenv("STREAMKIT_STORE", str(self.id))
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        self.module = f"app_{uuid4().hex[:8]}"
        (folder / f"{self.module}.py").write_text(APP)
        self._capture = capture
        with streamkit.connect(self.url) as client:
            client.store(self.id).produce("log", "s", [Record(b'{"n": 1}'), Record(b"\xff")])

    def __call__(self, *arguments: str) -> tuple[int, list[str], str]:
        self._capture.readouterr()
        code = run(arguments)
        out, err = self._capture.readouterr()
        return code, out.splitlines(), err


@pytest.fixture
def here(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Here:
    return Here(tmp_path, capsys, monkeypatch)


def test_a_program_is_run_and_its_views_and_routes_are_asked(here: Here) -> None:
    assert here("views") == (0, [], "")
    code, lines, err = here("run", f"{here.module}:everything", "--seconds", "2", "--json")
    assert (code, err) == (0, "")
    found = {part["name"]: part for part in map(json.loads, lines)}
    assert (found["latest"]["status"]["entries"], found["copy"]["status"]["copied"]) == (2, 2)
    code, lines, _ = here("views", "--json")
    assert [(view["name"], view["entries"], view["spaces"]) for view in map(json.loads, lines)] == [
        ("latest", 2, ["copies"])
    ]
    (shown,) = here("view", "show", "latest")[1]
    assert shown.startswith("latest  version 1  spaces: copies  2 entries applied  at 2")
    assert " bytes, 0 published  " in shown
    code, lines, _ = here("view", "query", "latest", "select segment, sequence, payload from latest", "--json")
    assert [json.loads(line) for line in lines] == [{"segment": "s", "sequence": 2, "payload": "ff"}]
    assert here("view", "query", "latest", "select 1, null")[1] == ["1  -"]
    code, lines, _ = here("routes", "--json")
    assert [(route["name"], route["copied"]) for route in map(json.loads, lines)] == [("copy", 2)]
    assert here("routes")[1] == ["copy  log -> copies  2 entries read, 2 copied"]
    app = ("--app", f"{here.module}:everything")
    assert here("view", "rebuild", "latest", *app)[1] == ["latest  current  2 entries applied"]
    assert "2 entries" in here("view", "publish", "latest", *app)[1][0]
    assert json.loads(here("views", "--json")[1][0])["published"] == 1


def test_a_paused_view_is_resumed_with_and_without_the_entry_that_it_paused_at(here: Here, tmp_path: Path) -> None:
    (tmp_path / f"{here.module}_paused.py").write_text(
        f"""
import uuid, streamkit
from streamkit.views import Reduce

def count(state, entry):
    if entry.payload == b"\\xff":
        raise ValueError("no JSON")
    return state + 1

store = streamkit.connect({here.url!r}).store(uuid.UUID({str(here.id)!r}))
view = store.view("total", Reduce(count, 0), ["log"])
view.catch_up()
"""
    )
    app = ("--app", f"{here.module}_paused:view")
    assert here("view", "show", "total", *app)[1][0].startswith("total  paused  1 entry applied  at log, s, 2: ")
    assert here("view", "resume", "total", *app)[1] == ["total  behind  1 entry applied"]
    assert here("view", "resume", "total", *app, "--skip")[1] == ["total  current  2 entries applied"]


def test_the_handler_of_a_group_runs_and_its_status_is_json(here: Here) -> None:
    code, lines, err = here("run", f"{here.module}:workers", "--seconds", "2", "--json")
    assert (code, err) == (0, "")
    found = {part["name"]: part for part in map(json.loads, lines)}
    status = found["readers"]["status"]
    assert (status["acked"], status["lag"], bytes.fromhex(status["acked_to"]) != b"") == (2, 0, True)


NO_PROGRAM = (
    ("number", "is not a program: it is of type int. NAME is a Program, a view, route"),
    ("text", "it is of type str"),
    ("nothing", "it is a list of nothing"),
    ("wrong_parts", "it is a list of dict, NoneType"),
    ("mixed", "a program's part has a name and a method run(stop, *, seconds=None), not 5"),
    ("store", "it is of type Store"),
    ("os", "it is of type module"),
    ("returns_nothing", "it is of type NoneType"),
    ("coroutine", "TypeError: "),
    ("coroutine", "is an async function"),
    ("needs", "failed when it was called to make a program: TypeError: needs() missing 2"),
    ("web", "TypeError: Web.__call__() missing 2"),
    ("raises", "to make a program: RuntimeError: the printer has no paper ("),
    ("exits", "to make a program: SystemExit: bye ("),
)


@pytest.mark.parametrize(("name", "said"), NO_PROGRAM)
def test_what_is_no_program_is_refused_in_one_line(here: Here, name: str, said: str) -> None:
    code, out, err = here("run", f"{here.module}:{name}")
    assert (code, out, err.count("\n"), said in err) == (2, [], 1, True), err


def test_an_app_that_is_no_program_is_refused_by_view_too(here: Here) -> None:
    for name in ("number", "needs", "raises", "coroutine"):
        code, out, err = here("view", "rebuild", "latest", "--app", f"{here.module}:{name}")
        assert (code, out, err.count("\n")) == (2, [], 1), err


BROKEN = {
    "syntax": "def broken(:\n",
    "name": "nobody_defined_this\n",
    "exit": "raise SystemExit(3)\n",
    "import": "import no_such_module_anywhere\n",
    "relative": "from .sibling import app\n",
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_module_that_cannot_be_imported_is_refused_in_one_line(here: Here, tmp_path: Path, fault: str) -> None:
    module = f"broken_{uuid4().hex[:8]}"
    (tmp_path / f"{module}.py").write_text(BROKEN[fault])
    code, out, err = here("run", f"{module}:app")
    assert (code, out, err.count("\n")) == (2, [], 1), err
    assert f"the module '{module}' cannot be imported: " in err
    assert here("run", "..:app")[0] == here("run", ".x:app")[0] == here("run", ":app")[0] == 2


def test_a_refusal_of_the_store_while_a_program_is_made_is_no_wrong_usage(here: Here, tmp_path: Path) -> None:
    module = f"refused_{uuid4().hex[:8]}"
    (tmp_path / f"{module}.py").write_text(
        "import streamkit\n\ndef app():\n    raise streamkit.AccessDenied('no key')\n"
    )
    assert here("run", f"{module}:app") == (1, [], "AccessDenied: no key\n")


def test_what_cannot_be_done_is_one_line(here: Here) -> None:
    for arguments, code, said in (
        (("view", "show", "nothing"), 2, "no database of a view 'nothing'"),
        (("view", "burn", "x"), 2, "none of show"),
        (("view", "query", "x"), 2, "needs SQL"),
        (("view", "rebuild", "x"), 2, "--app"),
        (("view", "resume", "x"), 2, "--app"),
        (("view", "show", "x", "--skip"), 2, "--skip is for resume"),
        (("run", "nowhere:app"), 2, "no module 'nowhere'"),
        (("run", f"{here.module}:missing"), 2, "has no 'missing'"),
        (("run", "nonsense"), 2, "is not MODULE:NAME"),
        (("run", f"{here.module}:reader"), 2, "Worker(group, handler)"),
    ):
        found, _, err = here(*arguments)
        assert (found, said in err, err.count("\n")) == (code, True, 1), err


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("delete from latest", "readonly"),
        ("select 1; select 2", "one statement"),
        ("select ?", "bindings"),
        ("select json(x) from (select '1' as x union all select '{')", "malformed JSON"),  # of the second row
    ],
)
def test_what_sqlite_refuses_is_one_line(here: Here, sql: str, said: str) -> None:
    here("run", f"{here.module}:everything", "--seconds", "0")
    for app in ((), ("--app", f"{here.module}:everything")):
        code, _, err = here("view", "query", "latest", sql, *app)
        assert (code, err.count("\n")) == (1, 1)
        assert err.startswith("PermanentError: SQLite refuses the query: ")
        assert said in err


def test_a_part_that_fails_is_started_again_and_leaves_the_others_alone(here: Here) -> None:
    code, lines, _err = here("run", f"{here.module}:troubled", "--seconds", "0.7", "--json")
    found = {part["name"]: part for part in map(json.loads, lines)}
    assert (code, found["fails"]["error"], found["fails"]["restarts"] >= 1) == (0, "ValueError: always", True)
    assert (found["latest"]["status"]["entries"], found["copy"]["status"]["copied"]) == (2, 2)


def test_sigterm_ends_it_gracefully(here: Here) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "streamkit.cli", "run", f"{here.module}:everything"], stdout=subprocess.PIPE, text=True
    )
    with streamkit.connect(here.url) as client:
        store = client.store(here.id)
        end = time.monotonic() + 60
        while not list(store.consume_space("copies")) and time.monotonic() < end:
            time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert sorted(out.splitlines()) == ["copy  stopped", "latest  stopped"]


OVER_STORES = """
import os
from uuid import UUID
import streamkit
from streamkit.run import ProgramOverStores


class Part:
    name, spaces = "part", ("log",)

    def catch_up(self):
        return 0


client = streamkit.connect(os.environ["STREAMKIT_URL"])
app = ProgramOverStores([client.store(UUID(int=at)) for at in (1, 2)], lambda store: [Part()])
"""


def test_a_program_over_stores_tells_the_state_of_the_parts_of_each(here: Here, tmp_path: Path) -> None:
    module = f"over_{uuid4().hex[:8]}"
    (tmp_path / f"{module}.py").write_text(OVER_STORES)
    code, out, err = here("run", f"{module}:app", "--seconds", "0.01", "--json")
    assert (code, len(out)) == (0, 2), (out, err)
    assert all("part" in json.loads(line)["name"] for line in out)


def test_the_doctor_tells_what_it_has_looked_at(here: Here) -> None:
    code, out, err = here("doctor", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out[-1])["spaces"] == 1
    code, out, err = here("doctor", "--store", str(uuid4()))
    assert (code, out) == (1, [])
    assert "there is no store" in err
