"""The command line: every command, its exit code, and its output for machines and for people."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest

import streamkit
from harness.deep_search import files_below, found_in
from streamkit import Record
from streamkit.cli.app import run
from streamkit.errors import no_space
from streamkit.index.verify import Finding, VerifyReport
from streamkit.log.log_end import end_log
from streamkit.names import partition_of
from streamkit.removing.report import Rewritten
from streamkit.salvage.report import SalvageReport
from streamkit.store import inner
from streamkit.testing import ManualClock

COMMAND = [sys.executable, "-m", "streamkit.cli"]
ORDERS = b"".join(b'{"order": "order-%d", "line": %d}\n' % (line % 3, line) for line in range(1, 11))


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


class CommandLine:
    """A command line with a store of its own."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.url = f"file://{folder}/stores"
        self.store = uuid4()
        self.folder = folder
        self._capture = capture
        self._patch = patch
        patch.setenv("STREAMKIT_URL", self.url)
        patch.setenv("STREAMKIT_STORE", str(self.store))

    def __call__(self, *args: str | Path, stdin: bytes = b"") -> Result:
        self._capture.readouterr()
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = run([str(arg) for arg in args])
        return Result(code, *self._capture.readouterr())

    def file(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path

    def append(self, space: str, segment: str, *payloads: bytes, **options: Any) -> None:
        with streamkit.connect(self.url) as client, client.store(self.store) as store:
            store.produce(space, segment, [Record(payload, **options) for payload in payloads])


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    return CommandLine(tmp_path, capsys, monkeypatch)


def payloads(result: Result) -> list[Any]:
    return [line["payload"] for line in result.lines]


# produce


def test_lines_of_a_file_become_entries_of_the_segment_that_they_name(cli: CommandLine) -> None:
    done = cli("produce", "orders", "--segment-key", "order", cli.file("orders.ndjson", ORDERS), "--json")
    assert (done.code, done.err) == (0, "")
    (line,) = done.lines
    assert {name: line[name] for name in ("space", "lines", "segments", "commits")} == {
        "space": "orders",
        "lines": 10,
        "segments": 3,
        "commits": 1,
    }
    read = cli("consume", "orders", "--segment", "order-1", "--json")
    assert [entry["line"] for entry in payloads(read)] == [1, 4, 7, 10]
    assert [entry["sequence"] for entry in read.lines] == [1, 2, 3, 4]


def test_standard_input_is_read_when_no_file_is_named(cli: CommandLine) -> None:
    assert cli("produce", "orders", "--segment", "all", stdin=ORDERS).code == 0
    assert [entry["line"] for entry in payloads(cli("consume", "orders", "--json"))] == list(range(1, 11))


def test_metadata_of_the_command_is_on_every_record(cli: CommandLine) -> None:
    pairs = ["--metadata", "source=import", "--metadata", "by=ada=1"]
    assert cli("produce", "s", "--segment", "a", *pairs, stdin=b"1\n2\n").code == 0
    read = cli("consume", "s", "--json").lines
    assert [entry["metadata"] for entry in read] == [{"source": "import", "by": "ada=1"}] * 2
    assert cli("produce", "s", "--segment", "a", "--metadata", "source", stdin=b"1\n").code == 2


def test_a_payload_is_the_line_byte_for_byte_without_the_space_around_it(cli: CommandLine) -> None:
    line = b'  {"b": 1.10, "a":12345678901234567890,  "order": 7}\r\n'
    assert cli("produce", "orders", "--segment-key", "order", stdin=b"\xef\xbb\xbf" + line + b"\n \n").code == 0
    with streamkit.connect(cli.url) as client, client.store(cli.store) as store:
        (entry,) = store.consume_space("orders")
    assert (entry.segment, entry.payload) == ("7", line.strip())


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'{"order": "a"', "truncated"),
        (b'{"order": "a"} {}', "malformed"),
        (b'{"other": "a"}', "missing required field `order`"),
        (b'{"order": null}', "got `null`"),
        (b'{"order": 1.5}', "got `float`"),
        (b'{"order": true}', "got `bool`"),
        (b'["order"]', "got `array`"),
        (b'{"order": ""}', "it is empty"),
        (b'{"order": "*"}', "reserved"),
        (b'{"order": "a\\u0000b"}', "control character"),
        (b'{"order": "%s"}' % (b"x" * 256), "256 bytes"),
        (b'{"order": "a", "x": "\xff"}', "not UTF-8"),
        (b'{"order": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_nothing_of_its_batch_is_written(
    cli: CommandLine, line: bytes, fault: str
) -> None:
    lines = ORDERS.splitlines()
    path = cli.file("bad.ndjson", b"\n".join([*lines[:5], b"", line, *lines[5:]]))
    done = cli("produce", "orders", "--segment-key", "order", "--batch", "2", path)
    assert done.code == 1
    assert done.out == ""
    assert done.err.startswith(f"InvalidRecord: {path}, line 7: ")
    assert fault in done.err
    assert done.err.endswith("; 4 lines written before it, none of its batch\n")
    assert done.err.count("\n") == 1
    assert [entry["line"] for entry in payloads(cli("consume", "orders", "--json"))] == [1, 2, 3, 4]


def test_the_same_file_with_the_same_idempotency_key_is_written_once(cli: CommandLine) -> None:
    lines = ORDERS.splitlines(keepends=True)
    command = ("produce", "orders", "--segment-key", "order", "--batch", "3", "--idempotency-key", "monday")
    broken = cli(*command, cli.file("orders.ndjson", b"".join([*lines[:7], b"oops\n", *lines[8:]])))
    assert "line 8" in broken.err
    for _ in range(2):
        assert cli(*command, cli.file("orders.ndjson", ORDERS)).code == 0
    assert [entry["line"] for entry in payloads(cli("consume", "orders", "--json"))] == list(range(1, 11))

    other = cli(*command, cli.file("orders.ndjson", ORDERS.replace(b"1", b"2")))
    assert other.code == 1
    assert other.err.startswith("TransactionIdMismatch: ")


def test_an_expected_sequence_is_kept_over_all_batches_and_refused_when_it_is_wrong(cli: CommandLine) -> None:
    command = ("produce", "orders", "--segment", "all", "--batch", "3", "--expected-sequence")
    assert cli(*command, "0", stdin=ORDERS).code == 0
    again = cli(*command, "0", stdin=ORDERS)
    assert again.code == 1
    assert again.err.startswith("SequenceMismatch: ")
    assert "0 lines written" in again.err
    assert cli(*command, "10", stdin=ORDERS).code == 0
    assert len(cli("consume", "orders", "--json").lines) == 20


def test_a_batch_over_several_partitions_is_one_commit_for_each(cli: CommandLine) -> None:
    created = cli("create", "orders", "--partitions", "4", "--json")
    assert created.lines == [{"space": "orders", "partitions": 4, "durability": "committed"}]
    many = b"".join(b'{"order": %d}\n' % (line % 50) for line in range(500))
    done = cli("produce", "orders", "--segment-key", "order", "--batch", "250", "--json", stdin=many)
    assert (done.lines[0]["lines"], done.lines[0]["commits"]) == (500, 8)
    read = cli("consume", "orders", "--json").lines
    assert len(read) == 500
    for segment in range(50):
        own = [entry["sequence"] for entry in read if entry["segment"] == str(segment)]
        assert own == list(range(1, 11))
    assert cli("create", "orders", "--partitions", "2").err.startswith("SpaceExists: ")


def test_what_was_written_of_a_batch_that_is_refused_half_way_is_said(cli: CommandLine) -> None:
    cli("create", "orders", "--partitions", "2")
    first, second = (next(str(n) for n in range(99) if partition_of(str(n), 2) == number) for number in (0, 1))
    command = ("produce", "orders", "--segment-key", "o", "--idempotency-key", "monday")
    assert cli(*command, stdin=b'{"o": "%s"}\n' % second.encode()).code == 0
    lines = b'{"o": "%s"}\n{"o": "%s", "other": 1}\n' % (first.encode(), second.encode())
    refused = cli(*command, stdin=lines)
    assert refused.err.startswith("TransactionIdMismatch: ")
    assert refused.err.endswith("; 1 line written before it, some of its batch\n")
    bad = cli("produce", "orders", "--segment-key", "o", "--batch", "2", stdin=lines + b"oops\n")
    assert bad.err.endswith("; 2 lines written before it, none of its batch\n")


@pytest.mark.parametrize(
    ("options", "order"),
    [([], ["o1", "o1", "o2"]), (["--batch", "1"], ["o1", "o2", "o1"])],
    ids=["within a batch segments stay together", "a line a batch keeps the order of the lines"],
)
def test_lines_come_in_the_order_that_is_documented(cli: CommandLine, options: list[str], order: list[str]) -> None:
    lines = b'{"o": "o1", "n": 1}\n{"o": "o2", "n": 2}\n{"o": "o1", "n": 3}\n'
    assert cli("produce", "orders", "--segment-key", "o", *options, stdin=lines).code == 0
    read = cli("consume", "orders", "--json").lines
    assert [entry["segment"] for entry in read] == order
    assert [entry["payload"]["n"] for entry in read if entry["segment"] == "o1"] == [1, 3]


# consume, follow, peek


def test_an_entry_has_its_stable_fields(cli: CommandLine) -> None:
    cli.append("orders", "order-1", b'{"a": 1}', metadata={"by": "web"})
    (line,) = cli("consume", "orders", "--json").lines
    with streamkit.connect(cli.url) as client, client.store(cli.store) as store:
        entry = store.peek("orders", "order-1")
    assert line == {
        "space": "orders",
        "segment": "order-1",
        "sequence": 1,
        "timestamp": entry.timestamp,
        "stream_id": entry.stream_id,
        "offset": entry.space_offset.hex(),
        "segment_offset": entry.segment_offset.hex(),
        "tier": "hot",
        "trx": {"id": str(entry.trx.id), "node": str(entry.trx.node), "number": 1},
        "metadata": {"by": "web"},
        "encoding": "json",
        "payload": {"a": 1},
    }


@pytest.mark.parametrize(
    ("payload", "encoding", "shown"),
    [
        (b'{"a": [1, 2.50]}', "json", {"a": [1, 2.5]}),
        (b'{\n  "a": 1\n}', "json", {"a": 1}),
        (b'"text"', "json", "text"),
        (b"null", "json", None),
        ("käse".encode(), "text", "käse"),
        (b"", "text", ""),
        (b"NaN", "text", "NaN"),
        (b'"\\ud800"', "text", '"\\ud800"'),
        (b"[" * 100_000, "text", "[" * 100_000),
        (b"\xff\x00\n", "base64", "/wAK"),
    ],
    ids=["json", "json lines", "json text", "null", "text", "empty", "NaN", "lone surrogate", "deep", "bytes"],
)
def test_a_payload_says_how_it_is_encoded(cli: CommandLine, payload: bytes, encoding: str, shown: object) -> None:
    cli.append("orders", "order-1", payload)
    (line,) = cli("consume", "orders", "--json").lines
    assert (line["encoding"], line["payload"]) == (encoding, shown)


def test_a_space_is_read_on_from_the_offset_that_was_printed(cli: CommandLine) -> None:
    cli("produce", "orders", "--segment-key", "order", "--batch", "4", stdin=ORDERS)
    seen, offset = [], None
    while lines := cli("consume", "orders", "--json", "-n", "3", *(["--offset", offset] if offset else [])).lines:
        seen += [line["payload"]["line"] for line in lines]
        offset = lines[-1]["offset"]
    assert seen == [line["payload"]["line"] for line in cli("consume", "orders", "--json").lines]
    assert len(seen) == 10

    text = cli("consume", "orders", "--limit", "3")
    assert len(text.out.splitlines()) == 3
    hint = text.err.removeprefix("continue with: ").split()
    assert len(cli("consume", "orders", *hint).out.splitlines()) == 7


def test_a_segment_is_read_in_bounds_and_says_how_to_go_on(cli: CommandLine) -> None:
    cli.append("orders", "order-1", *(b"%d" % number for number in range(1, 8)))
    command = ("consume", "orders", "--segment", "order-1")
    assert payloads(cli(*command, "--min-sequence", "2", "--max-sequence", "4", "--json")) == [2, 3, 4]
    text = cli(*command, "-n", "5")
    assert text.err == "continue with: --min-sequence 6\n"
    assert payloads(cli(*command, *text.err.split()[-2:], "--json")) == [6, 7]


def test_times_are_milliseconds_or_iso_8601_in_utc(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.append("orders", "order-1", b"1")
    (line,) = cli("consume", "orders", "--json").lines
    after = str(line["timestamp"] + 1)
    assert cli("consume", "orders", "--json", "--max-timestamp", after).lines == [line]
    assert cli("consume", "orders", "--json", "--min-timestamp", after).lines == []
    assert cli("consume", "orders", "--json", "--min-timestamp", "2001-01-01").lines == [line]
    assert cli("consume", "orders", "--json", "--max-timestamp", "2001-01-01T00:00:00+01:00").lines == []
    assert cli("consume", "orders", "--min-timestamp", "yesterday").code == 2

    now = datetime.fromtimestamp(line["timestamp"] / 1000, UTC).isoformat(timespec="milliseconds").partition("+")[0]
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    assert cli("consume", "orders", "--json", "--min-timestamp", now, "--max-timestamp", now).lines == [line]
    monkeypatch.undo()
    time.tzset()


def test_several_spaces_are_merged_each_from_its_own_offset(cli: CommandLine) -> None:
    clock = ManualClock()
    with streamkit.connect(cli.url, clock=clock) as client, client.store(cli.store) as store:
        for number in range(4):
            store.produce(f"space-{number % 2}", "one", [Record(b"%d" % number)])
            clock.sleep(1)
    both = cli("consume", "space-0", "space-1", "--json")
    assert payloads(both) == [0, 1, 2, 3]
    offset = both.lines[0]["offset"]
    assert payloads(cli("consume", "space-0", "space-1", "--offset", f"space-0={offset}", "--json")) == [1, 2, 3]
    assert "space-1" in cli("consume", "space-0", "space-1").out


@pytest.mark.parametrize("offset", ["00ff", "hello", ""])
def test_a_damaged_offset_is_refused(cli: CommandLine, offset: str) -> None:
    cli.append("orders", "order-1", b"1")
    done = cli("consume", "orders", "--offset", offset)
    assert done.code == 1
    assert done.err.startswith("InvalidOffset: ")


def test_peek_shows_the_latest_entry_or_that_there_is_none(cli: CommandLine) -> None:
    cli.append("orders", "order-1", b"1", b"2")
    assert payloads(cli("peek", "orders", "order-1", "--json")) == [2]
    assert cli("peek", "orders", "order-1").out.endswith("order-1  2  2\n")
    (line,) = cli("peek", "orders", "nobody", "--json").lines
    assert (line["sequence"], line["payload"], line["offset"]) == (0, None, None)
    assert cli("peek", "orders", "nobody") == Result(0, "", "nobody in orders is empty\n")


@pytest.mark.parametrize("json", [(), ("--json",)])
@pytest.mark.parametrize(
    ("args", "also"),
    [
        (["consume", "oders"], "no entries\n"),
        (["consume", "oders", "--segment", "s"], "no entries\n"),
        (["consume", "oders", "nowhere"], "no entries\n"),
        (["peek", "oders", "s"], "s in oders is empty\n"),
        (["follow", "oders", "--timeout", "0"], ""),
        (["follow", "oders", "--segment", "s", "--timeout", "0"], ""),
        (["segments", "oders"], ""),
        (["segments", "oders", "--long"], ""),
        (["groups", "oders"], ""),
    ],
)
def test_reading_a_space_that_is_not_there_says_so(
    cli: CommandLine, args: list[str], json: tuple[str, ...], also: str
) -> None:
    cli.append("orders", "s", b"1")
    cli.append("emptied", "s", b"1")
    cli("rm", "emptied", "s", "--yes")
    done = cli(*args, *json)
    assert (done.code, [line for line in done.out.splitlines() if '"sequence":0' not in line]) == (0, [])
    said = f"{no_space(cli.store, 'oders')}\n"
    assert said in done.err
    assert ("has no space 'nowhere'" in done.err) == ("nowhere" in args)
    assert set(done.err.splitlines(keepends=True)) - {said, also} == (
        {f"{no_space(cli.store, 'nowhere')}\n"} if "nowhere" in args else set()
    )
    there = [{"oders": "emptied", "nowhere": "orders"}.get(arg, arg) for arg in args]
    assert "has no space" not in cli(*there, *json).err


def test_work_for_a_space_that_is_not_there_says_so(cli: CommandLine) -> None:
    cli.append("orders", "s", b"1")
    done = cli("work", "oders", "g", "--drain", "--", "true")
    assert (done.code, "has no space 'oders'" in done.err) == (0, True)


def test_a_terminal_gets_no_control_characters_from_payloads(cli: CommandLine) -> None:
    cli.append("orders", "order-1", b"\x1b[2Jgone\n", metadata={"k": "\x1b[2J"})
    out = cli("consume", "orders").out
    assert out.count("\n") == 1
    assert "\x1b" not in out
    assert "\\x1b[2Jgone\\n" in out


def test_follow_ends_after_the_silence_that_it_was_given(cli: CommandLine) -> None:
    cli.append("orders", "order-1", b"1", b"2")
    assert payloads(cli("follow", "orders", "--timeout", "0.05", "--json")) == [1, 2]
    command = ("follow", "orders", "--segment", "order-1", "--after", "1", "--timeout", "0.05")
    assert payloads(cli(*command, "--json")) == [2]


# what there is


def test_one_of_a_thing_is_in_the_singular(cli: CommandLine, tmp_path: Path) -> None:
    cli("produce", "orders", "--segment", "a", stdin=b"1")
    outputs = [
        cli(*command).out
        for command in (
            ("stores", "--long"),
            ("status",),
            ("size",),
            ("verify",),
            ("doctor",),
            ("backup", str(tmp_path / "backups")),
            ("export", str(tmp_path / "orders.ndjson")),
            ("erase", "orders", "a", "--dry-run"),
            ("trim", "orders", "a", "--before", "2", "--dry-run"),
        )
    ]
    assert "  1 space  1 segment  1 entry  1 byte of payload  " in outputs[0]
    nouns = "spaces|segments|entries|transactions|bytes|files|findings"
    assert not re.findall(rf"\b1 (?:{nouns})\b", "".join(outputs)), outputs


def test_stores_spaces_segments_and_status_tell_what_there_is(cli: CommandLine) -> None:
    assert cli("spaces") == Result(0, "", "")
    assert cli("status").err == f"the store {cli.store} is empty\n"
    cli.append("b", "two", b"1", b"2")
    cli.append("a", "order 4", b"1")
    cli.append("b", "one", b"1")
    assert cli("stores").out == f"{cli.store}\n"
    assert cli("stores", "--json").lines == [{"store": str(cli.store)}]
    assert cli("spaces").out == "a\nb\n"
    assert cli("spaces", "--json").lines == [{"space": "a"}, {"space": "b"}]
    assert cli("segments", "b").out == "one\ntwo\n"
    assert cli("segments", "b", "--json").lines[1] == {"space": "b", "segment": "two"}
    assert cli("status", "b", "three").err == "the space 'b' has no segment 'three'\n"
    (status,) = cli("status", "b", "two", "--json").lines
    assert cli("segments", "b", "--long", "--json").lines[1] == status
    assert (status["first_sequence"], status["last_sequence"]) == (1, 2)
    totals = cli("status", "--json").lines
    assert [(line["space"], line["segments"], line["entries"]) for line in totals] == [("a", 1, 1), ("b", 2, 3)]
    assert totals[1]["last_timestamp"] >= totals[1]["first_timestamp"] > 0
    assert "2 segments  3 entries" in cli("status", "b").out


def test_the_status_of_a_store_goes_on_after_a_space_whose_deletion_was_interrupted(cli: CommandLine) -> None:
    cli.append("a", "s", b"1")
    cli.append("b", "s", b"1")
    with streamkit.connect(cli.url) as client, client.store(cli.store) as store:
        store.peek("a", "s")
        end_log(inner(store).spaces["a"].partitions[0])
    found = cli("status")
    assert found.code == 0
    assert found.out.startswith("b  1 segment  1 entry")
    assert "call delete_space() again" in found.err
    assert cli("status", "a").code == 1
    cli("maintain")
    assert cli("spaces").out == "b\n"


@pytest.mark.parametrize(
    "args",
    [
        ("erase", "ordres", "a", "--yes"),
        ("rm", "ordres", "--yes"),
        ("rm", "ordres", "a", "--yes"),
        ("trim", "ordres", "--keep-entries", "1"),
        ("retention", "ordres"),
        ("retention", "ordres", "--max-entries", "1", "--yes"),
        ("archive", "ordres"),
        ("compact", "ordres"),
        ("verify", "ordres"),
        ("repair", "ordres"),
        ("maintain", "ordres"),
        ("status", "ordres"),
        ("status", "ordres", "a"),
        ("size", "ordres"),
    ],
    ids=" ".join,
)
def test_a_space_that_does_not_exist_is_not_taken_for_an_empty_one(cli: CommandLine, args: Sequence[str]) -> None:
    cli("create", "orders")
    told = f"the store {cli.store} has no space 'ordres': get_spaces(), or `streamkit spaces`, lists its spaces"
    assert cli(*args) == Result(1, "", f"PermanentError: {told}\n")
    known = cli(*("orders" if arg == "ordres" else arg for arg in args))
    assert known.code == 0


@pytest.mark.parametrize("command", ["verify", "repair", "maintain"])
def test_a_store_that_does_not_exist_is_refused(cli: CommandLine, command: str) -> None:
    refused = cli(command)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith(f"PermanentError: there is no store {cli.store} at file://")
    cli("create", "orders")
    assert cli("verify").out == "no damage: 0 transactions, 0 entries, 0 segments\n"
    assert cli("repair") == Result(0, "the index was rebuilt: 0 rows written or removed\n", "")
    assert cli("maintain") == Result(0, "", "")


def test_an_erasure_that_was_stopped_is_completed_by_the_same_command(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.append("orders", "order-1", b"secretword")
    with monkeypatch.context() as stopped:
        stopped.setattr("streamkit.removing.erase.finish", lambda *_: Rewritten())
        assert cli("erase", "orders", "order-1", "--yes").code == 0
    assert found_in(files_below(cli.folder / "stores"), b"secretword"), "it was not stopped"
    done = cli("erase", "orders", "order-1")
    assert (done.code, done.out) == (0, "")
    assert done.err.endswith("\nthe rest of an earlier erasure is removed\n")
    assert found_in(files_below(cli.folder / "stores"), b"secretword") == []
    assert "earlier" not in cli("erase", "orders", "order-1").err


def test_trimming_a_segment_takes_a_sequence(cli: CommandLine) -> None:
    cli("produce", "orders", "--segment-key", "order", stdin=ORDERS)
    refused = cli("trim", "orders", "order-0", "--before", "2026-01-31")
    assert (refused.code, refused.out) == (2, "")
    assert "--before of a segment takes a sequence, not '2026-01-31'" in refused.err


# upkeep


def test_a_whole_store_verifies_and_its_index_is_built_anew(cli: CommandLine) -> None:
    cli("produce", "orders", "--segment-key", "order", "--batch", "4", stdin=ORDERS)
    whole = {"ok": True, "findings": 0, "transactions": 3, "entries": 10, "segments": 3}
    assert cli("verify", "--json").lines == [whole]
    assert cli("verify", "orders").out == "no damage: 3 transactions, 10 entries, 3 segments\n"
    before = cli("consume", "orders", "--json").out
    assert cli("maintain") == Result(0, "", "")
    assert cli("repair", "--json").code == 0
    assert cli("consume", "orders", "--json").out == before
    assert cli("verify", "--json").lines == [whole]


def test_damage_is_named_and_the_exit_code_is_1(cli: CommandLine) -> None:
    cli.append("orders", "order-1", b"what was paid: 1000")
    for path in cli.folder.rglob("*"):
        if path.is_file() and b"what was paid: 1" in (content := path.read_bytes()):
            path.write_bytes(content.replace(b"what was paid: 1", b"what was paid: 9"))
    for command in (("verify",), ("consume", "orders")):
        done = cli(*command)
        assert done.code == 1
        assert done.err.startswith("CorruptData: ")


def test_each_finding_is_a_line(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = (Finding("orders", 0, b"TXN\x00", "it is missing"), Finding("orders", 1, b"DAT\x00", "a hole"))
    report = VerifyReport(findings, transactions=3, entries=10, segments=2)
    monkeypatch.setattr(streamkit.Store, "verify", lambda self, space, progress: report)
    done = cli("verify", "--json")
    assert (done.code, done.err.splitlines()[0]) == (1, "CorruptData: 2 findings")
    assert "streamkit salvage orders NEW" in done.err
    assert done.lines == [
        {"space": "orders", "partition": 0, "key": "54584e00", "problem": "it is missing"},
        {"space": "orders", "partition": 1, "key": "44415400", "problem": "a hole"},
        {"ok": False, "findings": 2, "transactions": 3, "entries": 10, "segments": 2},
    ]
    assert cli("verify").out.splitlines()[1] == "orders/1  b'DAT\\x00'  a hole"


# lease


def test_a_command_runs_under_a_lease_and_its_exit_code_is_ours(cli: CommandLine) -> None:
    out = cli.folder / "token"
    script = f"import os, sys; open({str(out)!r}, 'w').write(os.environ['STREAMKIT_LEASE_TOKEN']); sys.exit(7)"
    tokens = []
    for _ in range(2):
        assert cli("lease", "nightly", "--", sys.executable, "-c", script).code == 7
        tokens.append(int(out.read_text()))
    assert tokens[0] < tokens[1]
    missing = cli("lease", "nightly", "--", "no-such-command")
    assert missing.code == 2
    assert "no-such-command" in missing.err


def test_a_lease_that_is_held_is_refused_at_once(cli: CommandLine) -> None:
    with streamkit.connect(cli.url) as client, client.store(cli.store) as store, store.lease("nightly"):
        done = cli("lease", "nightly", "--", sys.executable, "-c", "print('never')")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("LeaseNotAcquired: ")
    assert done.err.count("\n") == 1


def test_a_signal_reaches_the_command_and_the_lease_is_free_afterwards(cli: CommandLine) -> None:
    script = "import time; print('ready', flush=True); time.sleep(60)"
    with subprocess.Popen(
        [*COMMAND, "lease", "nightly", "--", sys.executable, "-c", script], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert cli("lease", "nightly", "--", sys.executable, "-c", "").code == 0


# how a command ends


@pytest.mark.parametrize(
    "args",
    [
        ["no-such-command"],
        ["spaces", "--no-such-option"],
        ["produce", "orders"],
        ["produce", "orders", "--segment", "a", "--segment-key", "b"],
        ["produce", "orders", "--segment", "a", "--batch", "0"],
        ["produce", "orders", "--segment", "a", "no-such-file"],
        ["produce", "orders", "--segment-key", "a", "--expected-sequence", "1"],
        ["consume"],
        ["consume", "a", "--min-sequence", "1"],
        ["consume", "a", "b", "--segment", "c"],
        ["consume", "a", "--segment", "c", "--offset", "00"],
        ["serve", "--tls-key", "key.pem"],
        ["consume", "a", "b", "--offset", "00"],
        ["consume", "a", "--limit", "-1"],
        ["follow", "a", "--after", "1"],
        ["follow", "a", "--segment", "b", "--offset", "00"],
        ["spaces", "--store", "not-a-uuid"],
        ["spaces", "--url", "gopher://x"],
        ["lease", "nightly"],
        ["trim", "a"],
        ["trim", "a", "--keep-entries", "1", "--max-age", "1"],
        ["retention", "a", "--per", "space"],
        ["retention", "a", "--none", "--max-age", "1"],
        ["retention", "a", "--max-age", "-1"],
        ["retention", "a", "--max-age", "1", "--when-full", "sometimes"],
        ["erase", "a", "--yes"],
        ["export", "no-such-folder/orders.ndjson"],
        ["import", "no-such-file"],
        ["erase", "a", "--metadata", "subject:user-1", "--yes"],
        ["erase", "a", "--metadata", "=user-1", "--yes"],
        ["erase", "a", "--metadata", "subject=user-1", "--metadata", "subject=user-2", "--yes"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_and_exit_code_2(cli: CommandLine, args: Sequence[str]) -> None:
    done = cli(*args)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("wrong usage: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "remedy"),
    [
        (["trim", "a", "--before", "2"], "--before of a space takes an offset; for the sequence 2 name a SEGMENT too"),
        (["produce", "a", "--segment", "s", "--segment-key", "f"], "give one of --segment-key FIELD and --segment"),
        (["trim", "a"], "--before, --keep-entries, --keep-bytes, --max-age, not none (see streamkit trim --help)"),
        (["trim", "a", "--max-age", "1", "--keep-bytes", "1"], "not --keep-bytes and --max-age"),
        (["erase", "a"], "give SEGMENT, --metadata NAME=VALUE, or both (see streamkit erase --help)"),
        (["group", "seek", "a"], "(see streamkit group seek --help)"),
        (["no-such-command"], "(see streamkit --help)"),
        (["consume", "a", "--offset", "the-start"], "'the-start' is not an offset"),
        (["consume", "a", "b", "--segment", "c"], "name one of a, b"),
        (["consume", "a", "--segment", "c", "--offset", "00"], "a segment begins at --min-sequence"),
        (["serve", "--tls-key", "key.pem"], "give --tls-certificate too"),
        (["serve", "--jwt-secret", "no-such-file"], "--jwt-secret: there is no file 'no-such-file'"),
        (["serve", "--tls-certificate", "no-such-file"], "--tls-certificate: there is no file 'no-such-file'"),
        (
            ["serve", "--tls-certificate", __file__, "--tls-key", "no-such-key"],
            "--tls-key: there is no file 'no-such-key'",
        ),
        (["serve", "--tls-certificate", __file__], "; give --tls-key FILE"),
        (["serve", "--tls-certificate", __file__, "--tls-key", __file__], "not a certificate and its private key"),
        (["keys", "list", "no-such-file"], "`streamkit keys create` makes it"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_an_error_names_the_options_and_the_help_of_its_command(
    cli: CommandLine, args: Sequence[str], remedy: str
) -> None:
    assert remedy in cli(*args).err


def test_the_help_shows_flags_without_a_value(cli: CommandLine) -> None:
    done = cli("trim", "--help")
    flags = [line for line in done.out.splitlines() if "--json" in line or "--dry-run" in line]
    assert (done.code, len(flags)) == (0, 2)
    assert not any("bool" in line for line in flags)
    assert "--max-age" in done.out


def test_no_store_is_guessed(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STREAMKIT_STORE")
    done = cli("spaces")
    assert done.code == 2
    suggested = done.err.partition("STREAMKIT_STORE=")[2].split()[0]
    assert UUID(suggested)
    cli.append("orders", "order-1", b"1")
    assert str(cli.store) in cli("spaces").err


def test_url_and_store_may_stand_before_the_command_and_win_over_the_environment(cli: CommandLine) -> None:
    cli.append("orders", "order-1", b"1")
    other = str(uuid4())
    assert cli("--store", other, "spaces").out == ""
    assert cli("--store", other, "spaces", "--store", str(cli.store)).out == "orders\n"
    assert cli("--url", f"file://{cli.folder}/elsewhere", "spaces").out == ""


def test_a_refusal_is_one_line_with_the_class_and_exit_code_1(cli: CommandLine) -> None:
    done = cli("produce", "a\nb", "--segment", "one", stdin=b"1\n")
    assert done.code == 1
    assert done.err.startswith("InvalidName: ")
    assert done.err.count("\n") == 1


def test_version_and_help_are_to_be_had(cli: CommandLine) -> None:
    assert cli("--version").out == f"{streamkit.__version__}\n"
    for command in ("produce", "consume", "follow", "peek", "lease", "demo", "create"):
        done = cli(command, "--help")
        assert done.code == 0
        assert "--url" in done.out
    assert "produce" in cli().out


def test_a_closed_pipe_ends_it_quietly(cli: CommandLine) -> None:
    cli.append("orders", "order-1", *(b'{"n": %d}' % number for number in range(20_000)))
    with subprocess.Popen(
        [*COMMAND, "consume", "orders", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    "command", ["produce orders --segment a <&- >&-", "consume orders --json >&-", "status orders >&-"]
)
def test_a_stream_that_was_closed_before_ends_it_quietly(cli: CommandLine, command: str) -> None:
    cli.append("orders", "order-1", b"1")
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m streamkit.cli {command}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert payloads(cli("consume", "orders", "--json")) == [1]


def test_ctrl_c_ends_it_quietly(cli: CommandLine) -> None:
    cli.append("orders", "order-1", b"1")
    with subprocess.Popen(
        [*COMMAND, "follow", "orders", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # These tests may run where the signal is ignored, as in a shell's background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b""


@pytest.mark.parametrize("args", [("erase", "orders", "order-1"), ("rm", "orders"), ("rm", "orders", "order-1")])
def test_a_question_that_nobody_answers_is_one_line_and_changes_nothing(cli: CommandLine, args: Sequence[str]) -> None:
    cli.append("orders", "order-1", b"1")
    done = cli(*args)
    assert done.code == 1
    assert done.err.endswith("? [y/N]: no answer: nothing was changed; --yes does not ask\n")
    assert payloads(cli("consume", "orders", "--json")) == [1]


def test_ctrl_c_at_a_question_ends_it(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> str:
        raise KeyboardInterrupt

    cli.append("orders", "order-1", b"1")
    monkeypatch.setattr("builtins.input", interrupted)
    assert cli("rm", "orders").code == 130
    assert payloads(cli("consume", "orders", "--json")) == [1]


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_one_line_says_what_to_install(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from streamkit.cli import main; main(['spaces'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"MissingDependency: the command line needs {missing}: pip install 'streamkit-store[cli]'\n"


def test_rm_and_maintain_answer_a_program_in_json(cli: CommandLine) -> None:
    cli("produce", "orders", "--segment-key", "order", cli.file("o.ndjson", ORDERS))
    assert cli("maintain", "--json").lines == [{"ok": True, "space": None}]
    assert cli("rm", "orders", "order-1", "--yes", "--json").lines == [
        {"space": "orders", "segment": "order-1", "deleted": True}
    ]
    assert cli("rm", "orders", "--yes", "--json").lines == [{"space": "orders", "segment": None, "deleted": True}]
    assert cli("spaces").out == ""
    refused = cli("rm", "orders", "--yes", "--json")
    assert (refused.code, refused.out) == (1, "")


def test_an_archive_that_is_elsewhere_is_named_by_option_or_environment(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("deltalake")
    monkeypatch.setattr("streamkit.log.partition.still_in_log_from", lambda *_: None)  # it has left the log
    place = f"file://{cli.folder}/cold"
    cli("produce", "orders", "--segment-key", "order", cli.file("o.ndjson", ORDERS))
    assert cli("archive", "orders", "--archive", place).code == 0
    found = cli("consume", "orders", "--json")
    assert found.code == 1
    assert "say where they are kept" in found.err
    assert "--archive URL or STREAMKIT_ARCHIVE" in found.err
    assert found.err.startswith("PermanentError: ")
    for args in (
        ("consume", "orders", "--json", "--archive", place),
        ("--archive", place, "consume", "orders", "--json"),
        ("consume", "orders", "--json", "--archive", f"{cli.folder}/cold"),
    ):
        assert len(cli(*args).lines) == 10
    for args in (
        ("peek", "orders", "order-0"),
        ("status", "orders"),
        ("verify",),
        ("compact", "orders"),
        ("maintain",),
    ):
        assert cli(*args, "--archive", place).code == 0
    monkeypatch.setenv("STREAMKIT_ARCHIVE", place)
    assert len(cli("consume", "orders", "--json").lines) == 10
    assert len(cli("consume", "orders", "--json", "--url", os.environ["STREAMKIT_URL"]).lines) == 10
    with streamkit.connect() as client:
        assert len(list(client.store(cli.store).consume_space("orders"))) == 10


def test_a_space_is_restored_from_another_url_whose_archives_are_beside_it(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("deltalake")
    cli("produce", "orders", "--segment-key", "order", cli.file("o.ndjson", ORDERS))
    assert cli("archive", "orders").code == 0
    monkeypatch.setenv("STREAMKIT_ARCHIVE", f"file://{cli.folder}/cold")
    target = ("--url", f"file://{cli.folder}/other", "--store", str(uuid4()))
    restored = cli("restore", "orders", "--from", str(cli.store), "--from-url", cli.url, "--cold", *target)
    assert (restored.code, restored.err) == (0, "")
    assert len(cli("consume", "orders", "--json", *target).lines) == 10


@pytest.mark.parametrize("named", ["by option", "by environment"])
def test_several_processes_archive_to_a_place_that_is_elsewhere(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    pytest.importorskip("deltalake")
    monkeypatch.chdir(cli.folder)
    place = ["--archive", "cold"] if named == "by option" else []
    if not place:
        monkeypatch.setenv("STREAMKIT_ARCHIVE", f"file://{cli.folder}/cold")
    cli("create", "orders", "--partitions", "2")
    cli("produce", "orders", "--segment-key", "order", cli.file("o.ndjson", ORDERS))
    assert cli("archive", "orders", "--processes", "2", *place).code == 0
    files = list(cli.folder.rglob("*.parquet"))
    assert files
    assert all(file.is_relative_to(cli.folder / "cold") for file in files)
    verified = cli("verify", *place)
    assert (verified.code, verified.err) == (0, "")


@pytest.mark.parametrize(
    "place", ["gopher://x/SECRET", "s3://user:SECRET@bucket/x", "file:///x?SECRET", "file:///x%ff"]
)
def test_a_malformed_archive_url_is_wrong_usage_and_not_repeated(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    found = cli("spaces", "--archive", place)
    assert (found.code, found.out) == (2, "")
    assert "--archive" in found.err
    monkeypatch.setenv("STREAMKIT_ARCHIVE", place)
    again = cli("spaces")
    assert again.code == 2
    assert "SECRET" not in found.err + again.err


def test_a_damaged_space_is_verified_to_the_last_line_and_salvaged(cli: CommandLine) -> None:
    cli("produce", "orders", "--segment-key", "order", cli.file("o.ndjson", ORDERS))
    cli("produce", "other", "--segment", "s", cli.file("o.ndjson", ORDERS))
    orders = cli("consume", "orders", "--json").lines
    log = min(path for path in cli.folder.rglob("*.log") if b"SKTX" in path.read_bytes())
    data = bytearray(log.read_bytes())
    data[data.index(b"SKTX") + 70] ^= 1
    log.write_bytes(data)
    found = cli("verify", "--json")
    assert found.code == 1
    *findings, summary = found.lines
    (space,) = {finding["space"] for finding in findings}
    assert summary["ok"] is False
    assert summary["findings"] == len(findings)
    assert summary["entries"] == 10, "of the space that is whole"
    assert space in ("orders", "other")
    dry = cli("salvage", space, "saved", "--dry-run")
    assert dry.code == 1
    assert "lost: transaction 1 of partition 0" in dry.out
    saved = cli("salvage", space, "saved", "--json")
    assert saved.code == 1
    (report,) = saved.lines
    assert (report["ok"], report["target"], report["dry_run"]) == (False, "saved", False)
    assert report["entries"] < len(orders)
    assert cli("verify", "saved").code == 0


def test_salvage_says_that_a_damaged_place_may_have_been_a_transaction(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.append("orders", "order-1", b"1")
    assert cli("salvage", "orders", "saved", "--dry-run").code == 0
    report = SalvageReport("orders", "saved", 1, 1, damage=("a place",))
    monkeypatch.setattr("streamkit.store.Store.salvage", lambda *_, **__: report)
    done = cli("salvage", "orders", "saved")
    assert done.code == 1
    assert done.err.endswith("CorruptData: 1 damaged place, where a transaction may have been; all others copied\n")


def test_verify_sums_up_after_an_error_too(cli: CommandLine) -> None:
    found = cli("verify", "absent", "--json")
    assert found.code == 1
    summary = found.lines[-1]
    assert (summary["ok"], summary["entries"]) == (False, 0)
    assert summary["error"].startswith("PermanentError: ")


def test_an_unknown_group_is_refused_with_1(cli: CommandLine) -> None:
    cli("produce", "orders", "--segment-key", "order", cli.file("o.ndjson", ORDERS))
    found = cli("group", "show", "orders", "absent")
    assert found.code == 1
    assert "has no group 'absent'" in found.err


def test_compact_and_restore_tell_what_they_did(cli: CommandLine) -> None:
    pytest.importorskip("deltalake")
    for _ in range(2):
        cli("produce", "orders", "--segment-key", "order", cli.file("o.ndjson", ORDERS))
        cli("archive", "orders")
    (report,) = cli("compact", "orders", "--retention-hours", "0", "--json").lines
    assert report == {"space": "orders", "before": 2, "after": 1, "removed": 2}
    assert cli("compact", "orders").out == "1 file became 1; removed: 0 old files\n"
    assert cli("compact", "orders", "--retention-hours", "-1").code == 2
    new = str(uuid4())
    (report,) = cli("restore", "orders", "--from", str(cli.store), "--store", new, "--json").lines
    assert report == {
        "space": "orders",
        "transactions": 2,
        "entries": 20,
        "present": 0,
        "keys": 0,
        "keys_left": 0,
    }
    payloads = [line["payload"] for line in cli("consume", "orders", "--json").lines]
    assert [line["payload"] for line in cli("consume", "orders", "--json", "--store", new).lines] == payloads
    assert "2 transactions existed already" in cli("restore", "orders", "--from", str(cli.store), "--store", new).out
    assert cli("restore", "orders", "--from", str(cli.store), "--cold", "--store", str(uuid4())).code == 0
    for args, code, says in (
        (("restore", "orders", "--from", "x"), 2, "not a UUID"),
        (("restore", "orders", "--from", str(cli.store)), 2, "are the same store"),
        (("restore", "other", "--from", str(cli.store), "--store", new), 1, "has no space 'other'"),
    ):
        result = cli(*args)
        assert result.code == code
        assert says in result.err


def test_a_store_is_backed_up_and_brought_back(cli: CommandLine, tmp_path: Path) -> None:
    cli("produce", "orders", "--segment", "s", stdin=b'{"a": 1}\n{"a": 2}\n')
    backups, new = str(tmp_path / "backups"), f"file://{tmp_path}/new"
    assert "point 1 has 1 transaction of 1 space;" in cli("backup", backups).out
    cli("produce", "orders", "--segment", "s", stdin=b'{"a": 3}\n')
    (report,) = cli("backup", backups, "--json").lines
    assert (report["point"]["number"], report["removed"]) == (2, 0)
    assert [line["number"] for line in cli("backup", backups, "--points", "--json").lines] == [1, 2]
    before = cli("consume", "orders", "--json").lines
    assert "point 2 of" in cli("restore", "--backup", backups, "--url", new).out
    assert cli("consume", "orders", "--json", "--url", new).lines == before
    other = str(uuid4())
    options = ("--backup-of", str(cli.store), "--store", other, "--point", "1", "--json")
    (restored,) = cli("restore", "orders", "--backup", backups, *options).lines
    assert (restored["spaces"], restored["erasures"]) == (1, 0)
    assert cli("consume", "orders", "--json", "--store", other).lines == before[:2]
    assert "repeat their effects" in " ".join(cli("restore", "--help").out.split())
    for args, code, said in [
        (("restore", "--backup", backups), 1, "is not empty"),
        (("restore", "--backup", backups, "--from", other), 2, "give one of"),
        (("restore",), 2, "give one of"),
        (("restore", "--backup", backups, "--cold"), 2, "goes with --from"),
        (("restore", "--from", other), 2, "name the space"),
        (("restore", "orders", "--from", other, "--point", "1"), 2, "goes with --backup"),
        (("restore", "--backup", backups, "--point", "7", "--url", new, "--store", other), 1, "no backup of the store"),
        (("restore", "--backup", backups, "--backup-of", "x"), 2, "not a UUID"),
        (("backup", backups, "--keep", "0"), 2, "1 or more"),
        (("backup", backups, "--store", str(uuid4())), 1, "there is no store"),
    ]:
        ended = cli(*args)
        assert (ended.code, said in ended.err) == (code, True), ended.err


def test_the_retention_of_a_space_is_shown_and_replaced(cli: CommandLine) -> None:
    cli.append("orders", "a", b"1", b"2", b"3")
    cli.append("orders", "b", b"1")
    assert cli("retention", "orders").out == "no bounds\n"
    refused = cli("retention", "orders", "--max-entries", "2", stdin=b"n\n")
    assert (refused.code, refused.out) == (1, "")
    assert "now: no bounds\nnew: at most 2 entries for each segment; entries beyond are removed\n" in refused.err
    assert cli("size", "--json").lines[0]["entries"] == 4
    assert cli("retention", "orders", "--max-entries", "2", stdin=b"y\n").code == 0
    assert cli("consume", "orders", "--segment", "a", "--skip-gaps", "--json").lines[0]["sequence"] == 2
    bounds = {"max_age": 60.5, "max_entries": None, "max_bytes": 1000, "per": "space", "when_full": "reject"}
    args = ["--max-age", "60.5", "--max-bytes", "1000", "--per", "space", "--when-full", "reject"]
    assert cli("retention", "orders", *args, "--yes", "--json").lines == [bounds]
    assert cli("retention", "orders", "--json").lines == [bounds]
    shown = "at most 60.5 seconds old, at most 1,000 bytes for each space; writes beyond are refused\n"
    assert cli("retention", "orders").out == shown
    assert cli("retention", "orders", "--none").out == "no bounds\n"
    assert cli("retention", "orders").out == "no bounds\n"


def test_a_reader_passes_over_trimmed_entries_if_it_is_told_to(cli: CommandLine) -> None:
    cli.append("orders", "a", b"1")
    offset = json.loads(cli("consume", "orders", "--json").out)["offset"]
    cli.append("orders", "a", b"2")
    cli.append("orders", "a", b"3")
    cli("trim", "orders", "--keep-entries", "1")
    reads = [
        ("consume", "orders", "--offset", offset),
        ("consume", "orders", "--segment", "a", "--min-sequence", "1"),
        ("follow", "orders", "--offset", offset, "--timeout", "0"),
        ("follow", "orders", "--segment", "a", "--after", "1", "--timeout", "0"),
    ]
    for read in reads:
        refused = cli(*read, "--json")
        assert (refused.code, refused.out) == (1, "")
        assert refused.err.startswith("EntriesRemoved: ")
        assert refused.err.endswith("; on the command line: --skip-gaps\n")
        done = cli(*read, "--json", "--skip-gaps")
        assert (done.code, [json.loads(line)["payload"] for line in done.out.splitlines()]) == (0, [3])


def test_a_group_is_shown_with_its_settings_and_gaps(cli: CommandLine) -> None:
    cli.append("orders", "a", b"1")
    with streamkit.connect(cli.url) as client, client.store(cli.store) as store:
        store.group("orders", "billing", start=store.end_offset("orders"), ack_timeout=7.0)
        store.produce("orders", "a", [Record(b"2"), Record(b"3")])
        store.trim("orders", keep_entries=0)
        store.queue("jobs").put(b"1")
    shown = cli("group", "show", "orders", "billing").out
    assert "consumers: none\n" in shown
    assert "settings: mode shared, ack_timeout 7.0, " in shown
    assert "gaps: space 'orders': partition 0, entries 2 to 3 were trimmed\n" in shown
    assert "None" not in shown + cli("group", "show", "jobs", "queue").out
