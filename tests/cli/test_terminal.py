"""Output to a terminal contains no control sequences, for any stored data and any arguments."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import typer.main

import streamkit
from streamkit import Record
from streamkit.cli.app import app, run
from streamkit.index.verify import Finding, VerifyReport
from streamkit.terminal import amount, json_escaped, visible
from streamkit.views import Latest

CONTROLS = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
DIRECTIONS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
LINES = "\u2028\u2029"
HARMFUL = CONTROLS + DIRECTIONS + LINES
HARMLESS = "plain, ä ß 漢字 \u00a0 \U0001f469\u200d\U0001f680 \u0645\u06cc\u200c\u062e"
"""Text with the joiner of an emoji, and the non-joiner of Persian letters."""
SPACE = "orders" + DIRECTIONS + LINES
SEGMENT = "order-42" + DIRECTIONS + LINES
"""A name without control characters that still changes the direction of a line."""

SOURCE = str(uuid4())
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
ARGUMENTS = {
    "produce": [SPACE, "--segment", SEGMENT],
    "create": [f"another {SPACE}"],
    "peek": [SPACE, SEGMENT],
    "lease": [SEGMENT, "--", sys.executable, "-c", ""],
    "follow": [SPACE, "--timeout", "0.01"],
    "backup": [f"memory://{uuid4().hex}"],
    "restore": [SPACE, "--from", SOURCE],
    "salvage": [SPACE, f"another {SPACE}", "--dry-run"],
    "keys": ["create", "keys.json", "--scope", "read", "--name", HARMLESS],
    "trim": [SPACE, "--keep-entries", "1"],
    "erase": [SPACE, SEGMENT, "--last", "1", "--yes"],
    "rm": [SPACE, SEGMENT, "--yes"],
    "group": ["show", SPACE, SEGMENT],
    "queue": ["put", SPACE, "job"],
    "work": [SPACE, SEGMENT, "--drain", "--", sys.executable, "-c", ""],
    "run": ["a_program:views", "--seconds", "0.01"],
    "view": ["show", SEGMENT],
    "types": ["export", "a_program:types"],
    "doctor": [],
    "stores": [],
    "spaces": [],
    "routes": [],
    "views": [],
}
"""All the others take a space."""
PROGRAM = f"""
import os
import msgspec
import streamkit
from streamkit.types import Registry
from streamkit.views import Latest

store = streamkit.connect().store(os.environ["STREAMKIT_STORE"])
types = Registry([type("Named", (msgspec.Struct,), {{"__doc__": {HARMFUL!r}, "__annotations__": {{"at": int}}}})])
views = [store.view({SEGMENT!r}, Latest(lambda entry: entry.segment), [{SPACE!r}])]
"""
TESTED = sorted(set(COMMANDS) - {"console", "demo", "serve"})
"""`serve` and `console` do not end by themselves."""


@pytest.fixture
def harmful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, store_id = f"file://{tmp_path}/stores", str(uuid4())
    monkeypatch.setenv("STREAMKIT_URL", url)
    monkeypatch.setenv("STREAMKIT_STORE", store_id)
    records = [Record(b"", {HARMFUL: HARMFUL, "k": HARMLESS}), *map(Record, _payloads())]
    with streamkit.connect(url) as client:
        for id in (store_id, SOURCE):
            client.store(id).produce(SPACE, SEGMENT, records)
        store = client.store(store_id)
        store.group(SPACE, SEGMENT)
        with store.view(SEGMENT, Latest(lambda entry: entry.segment), [SPACE]) as view:
            view.catch_up()
    (tmp_path / "a_program.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "a_program", raising=False)


def _payloads() -> list[bytes]:
    allowed = HARMFUL.translate(dict.fromkeys(range(0x20)))
    return [HARMFUL.encode(), json.dumps(HARMFUL).encode(), b'"%s"' % allowed.encode(), HARMLESS.encode()]


Ended = tuple[int, str]


@pytest.fixture
def call(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    def run_one(*args: str) -> Ended:
        capsysbinary.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'"\x7f"\n')))
        code = run(list(args))
        said = capsysbinary.readouterr()
        text = (said.out + said.err).decode()
        found = sorted({hex(ord(character)) for character in text.replace("\n", "") if character in HARMFUL})
        assert found == [], text
        return code, said.out.decode()

    return run_one


@pytest.mark.parametrize("name", sorted(set(TESTED) - {"export", "import"}))
@pytest.mark.usefixtures("harmful")
def test_no_command_sends_a_terminal_what_it_would_interpret(name: str, call: Callable[..., Ended]) -> None:
    args = [name, *ARGUMENTS.get(name, [SPACE])]
    flags = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    code, text = call(*args)
    assert code == 0, text
    if "--json" in flags:
        code, text = call(name, "--json", *args[1:])
        assert code == 0
        for line in text.splitlines():
            json.loads(line)
    if "--long" in flags:
        assert call(*args, "--long")[0] == 0


@pytest.mark.usefixtures("harmful")
def test_an_export_and_its_import_send_a_terminal_nothing_that_it_would_interpret(call: Callable[..., Ended]) -> None:
    for at, flags in enumerate(([], ["--json"])):
        assert call("export", *flags, f"{at}.ndjson")[0] == 0
        code, text = call("import", *flags, f"{at}.ndjson", "--store", str(uuid4()))
        assert code == 0, text
        for line in text.splitlines() if flags else []:
            json.loads(line)


@pytest.mark.parametrize("name", TESTED)
@pytest.mark.usefixtures("harmful")
def test_no_refusal_sends_a_terminal_what_it_would_interpret(name: str, call: Callable[..., Ended]) -> None:
    args = ARGUMENTS.get(name, [SPACE])
    assert call(name, f"--{HARMFUL[1:]}")[0] == 2
    assert call(name, "--url", f"gopher{HARMFUL[1:]}://x", *args)[0] != 0
    assert call(name, "--store", HARMFUL[1:], *args)[0] != 0
    assert call(f"{name}{HARMFUL[1:]}")[0] == 2
    flags = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    for flag in sorted(flags & {"--offset", "--min-timestamp", "--until", "--limit", "--segment"}):
        call(name, flag, HARMFUL[1:], *args)


@pytest.mark.usefixtures("harmful")
def test_what_machines_read_says_what_was_stored(call: Callable[..., Ended]) -> None:
    lines = [json.loads(line) for line in call("consume", "--json", SPACE)[1].splitlines()]
    assert [line["space"] for line in lines] == [SPACE] * 5
    assert [line["segment"] for line in lines] == [SEGMENT] * 5
    assert lines[0]["metadata"] == {HARMFUL: HARMFUL, "k": HARMLESS}
    values = [(line["encoding"], line["payload"]) for line in lines[1:]]
    beyond_ascii = HARMFUL.translate(dict.fromkeys(range(0x20)))
    assert values == [("text", HARMFUL), ("json", HARMFUL), ("json", beyond_ascii), ("text", HARMLESS)]
    assert HARMLESS in call("consume", SPACE)[1], "and what is harmless is shown as it is"


@pytest.mark.usefixtures("harmful")
def test_findings_and_warnings_are_shown_and_not_sent(
    call: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify(store: object, space: object, progress: object) -> VerifyReport:
        logging.getLogger("streamkit").warning("a warning %s", HARMFUL)
        return VerifyReport((Finding(SPACE, 0, HARMFUL.encode(), HARMFUL),), 1, 1, 1)

    monkeypatch.setattr(logging.getLogger("streamkit"), "propagate", False)
    monkeypatch.setattr(streamkit.Store, "verify", verify)
    assert call("verify")[0] == 1
    assert call("verify", "--json")[0] == 1


def _characters() -> Iterator[str]:
    yield from map(chr, range(0x3000))
    yield from "\ud800\udfff\ufeff\U0001f469"


def test_text_is_on_one_line_and_json_says_the_same() -> None:
    for character in _characters():
        shown = visible(f"a{character}b")
        harmful = character in HARMFUL or "\ud800" <= character <= "\udfff"
        assert (shown == f"a{character}b") != harmful
        assert len(shown.splitlines()) == 1
        if not "\ud800" <= character <= "\udfff":
            line = json.dumps({"k": character}, ensure_ascii=False).encode()
            assert json.loads(json_escaped(line)) == {"k": character}
            assert not set(json_escaped(line).decode()) & set(HARMFUL)


def test_a_number_stands_with_its_noun_in_the_singular_or_the_plural() -> None:
    assert [amount(count, "entry") for count in (0, 1, 2000)] == ["0 entries", "1 entry", "2,000 entries"]
    assert [amount(count, "dead letter") for count in (1, 2)] == ["1 dead letter", "2 dead letters"]
