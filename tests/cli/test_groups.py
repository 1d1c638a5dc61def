"""streamkit groups, group …, queue …, work."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import streamkit
from streamkit import Record, Store
from streamkit.cli.app import run


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    url, store_id = f"file://{tmp_path}/stores", uuid4()
    monkeypatch.setenv("STREAMKIT_URL", url)
    monkeypatch.setenv("STREAMKIT_STORE", str(store_id))
    with streamkit.connect(url) as client:
        yield client.store(store_id)


def lines(capfd: pytest.CaptureFixture[str], *args: str) -> list[Any]:
    capfd.readouterr()
    assert run([*args, "--json"]) == 0
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_a_job_is_put_received_and_acknowledged_by_its_receipt(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["queue", "put", "jobs", '{"to": "me"}', "--priority", "3"]) == 0
    (job,) = lines(capfd, "queue", "receive", "jobs")
    assert (job["attempt"], job["entry"]["payload"]) == (1, {"to": "me"})
    assert run(["queue", "receive", "jobs"]) == 1, "there is no other one"
    assert run(["queue", "ack", "jobs", job["receipt"]]) == 0
    (shown,) = lines(capfd, "group", "show", "jobs", "queue")
    assert (shown["acked"], shown["pending"], shown["settings"]["queue"]) == (1, 0, True)
    assert run(["queue", "ack", "jobs", job["receipt"]]) == 1
    assert capfd.readouterr().err.startswith("DeliveryLost: ")


def test_of_several_jobs_those_are_acknowledged_that_are_not_lost(
    store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    store.queue("jobs").put_many([b"1", b"2", b"3"])
    receipts = [job["receipt"] for job in lines(capfd, "queue", "receive", "jobs", "--limit", "3")]
    assert run(["queue", "ack", "jobs", receipts[0]]) == 0
    assert run(["queue", "ack", "jobs", *receipts]) == 1
    said = capfd.readouterr().err
    assert said.startswith("DeliveryLost: ")
    assert said.endswith(f"; this is true for 1 of 3 receipts: {receipts[0]}\n")
    assert store.queue("jobs").status().acked == 3


def test_a_queue_that_does_not_exist_is_named_and_not_made(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    store.queue("jobs").put(b"1")
    for args in (["receive", "jbos"], ["ack", "jbos", "r"]):
        assert run(["queue", *args]) == 1
        assert "has no queue 'jbos'" in capfd.readouterr().err
    assert store.get_groups("jbos") == []
    assert run(["queue", "receive", "jbos", "--wait", "0.01"]) == 1, "somebody may put the first job meanwhile"


def test_dead_letters_are_labelled(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    store.produce("orders", "a", [Record(b"poison")])
    with store.group("orders", "billing").consumer() as consumer:
        consumer.reject(consumer.receive()[0], "broken\x1b[31m")
    assert run(["group", "dead", "orders", "billing"]) == 0
    (line,) = capfd.readouterr().out.splitlines()
    assert line.startswith("dead since 2")
    assert "  1 attempt  reason: broken\\x1b[31m  entry: 2" in line
    assert line.endswith("a  1  poison")


def test_a_group_is_shown_moved_and_removed(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    store.produce("orders", "a", [Record(b"1"), Record(b"2")])
    consumer = store.group("orders", "billing").consumer("one", linger=0)
    first, _ = consumer.receive()
    consumer.reject(first, "broken")
    assert lines(capfd, "groups", "orders") == [{"space": "orders", "group": "billing"}]
    (pending,) = lines(capfd, "group", "pending", "orders", "billing", "--consumer", "one")
    assert (pending["consumer"], pending["entry"]["payload"]) == ("one", 2)
    (dead,) = lines(capfd, "group", "dead", "orders", "billing")
    assert (dead["reason"], dead["entry"]["sequence"]) == ("broken", 1)
    assert run(["group", "redrive", "orders", "billing"]) == 0
    assert capfd.readouterr().err == "1 brought back\n"
    assert run(["group", "seek", "orders", "billing", "end"]) == 0
    assert consumer.receive() == []
    assert run(["group", "show", "orders", "billing"]) == 0
    assert "lag: 0\n" in capfd.readouterr().out
    assert run(["group", "rm", "orders", "billing"]) == 0
    assert store.get_groups("orders") == []


def test_looking_makes_no_group(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    store.produce("orders", "a", [Record(b"1")])
    assert run(["group", "show", "orders", "biling"]) == 1
    assert "it has none" in capfd.readouterr().err
    assert store.get_groups("orders") == []


def test_a_command_works_off_a_group(store: Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store.produce("orders", "a", [Record(b"good"), Record(b"bad"), Record(b"good")])
    store.group("orders", "billing", max_deliveries=1)
    program = (
        "import os, sys; text = sys.stdin.read(); sequence = os.environ['STREAMKIT_SEQUENCE'];"
        "open(f'{sys.argv[1]}/{sequence}', 'w').write(text); sys.exit(text == 'bad')"
    )
    assert run(["work", "orders", "billing", "--drain", "--", sys.executable, "-c", program, str(tmp_path)]) == 0
    assert [(tmp_path / name).read_text() for name in "123"] == ["good", "bad", "good"]
    assert capfd.readouterr().err.endswith("2 done, 1 attempts failed, 1 dead, 0 too late\n")
    assert [letter.entry.sequence for letter in store.group("orders", "billing").dead_letters()] == [2]


def test_the_warning_about_a_failed_command_names_its_exit_code(
    store: Store, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("streamkit")  # pytest's own handler would take the warnings
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "handlers", [])
    store.produce("orders", "a", [Record(b"bad")])
    store.group("orders", "billing", max_deliveries=1)
    assert run(["work", "orders", "billing", "--drain", "--", sys.executable, "-c", "raise SystemExit(3)"]) == 0
    warning, count = capfd.readouterr().err.splitlines()
    assert warning.endswith(f"attempt 1 of 1: CommandFailed: {sys.executable} exited with 3")
    assert count == "0 done, 1 attempts failed, 1 dead, 0 too late"


def test_a_group_is_moved_to_an_offset_or_to_an_end(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    store.produce("orders", "a", [Record(b"1")])
    store.group("orders", "billing")
    assert run(["group", "seek", "orders", "billing", "start"]) == 1
    assert "'start' is not an offset" in (text := capfd.readouterr().err)
    assert "'beginning' or 'end'" in text
    assert run(["group", "seek", "orders", "billing", "end"]) == 0
    assert store.group("orders", "billing").status().lag == 0


def test_a_command_that_does_not_exist_takes_nothing(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    store.produce("orders", "a", [Record(b"good")])
    assert run(["work", "orders", "billing", "--drain", "--", "no-such-command"]) == 2
    assert "cannot run 'no-such-command'" in capfd.readouterr().err
    assert list(store.get_groups("orders")) == []
