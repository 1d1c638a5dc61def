"""A store with groups, queues, views, routes and process managers is backed up at work, and comes back as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from fix_covered import EXHAUSTIVE

import streamkit
from harness.working_store import at_work, figures, finish, prepare, spaces_of, work_once
from streamkit import Client, Entry, InvalidOffset, Store
from streamkit.backup import restore

PLACES = [
    pytest.param("memory", "memory", id="memory", marks=pytest.mark.exhaustive_only),  # as between remote and local
    pytest.param("local", "local", id="local", marks=pytest.mark.exhaustive_only),
    pytest.param("remote", "local", id="remote-to-local"),
    pytest.param("local", "remote", id="local-to-remote"),
    pytest.param("s3", "s3", id="s3", marks=pytest.mark.s3),
    pytest.param("azure", "azure", id="azure", marks=[pytest.mark.azure, pytest.mark.exhaustive_only]),
    pytest.param(
        "s3", "azure", id="s3-to-azure", marks=[pytest.mark.s3, pytest.mark.azure, pytest.mark.exhaustive_only]
    ),
]


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "wait_for_tokens", lambda clock, point: None)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Makes the URL of a root of its own, by its kind."""

    def make(kind: str) -> str:
        name = uuid4().hex[:12]
        if kind == "s3":
            return str(request.getfixturevalue("s3_bucket").url(name))
        if kind == "azure":
            return str(request.getfixturevalue("azurite").url("back" + name))
        return f"file://{tmp_path}/{name}" if kind == "local" else f"memory://{name}" + "?remote=1" * (kind == "remote")

    return make


def opened(clients: list[Client], url: str, id: UUID) -> Store:
    clients.append(streamkit.connect(url))
    return clients[-1].store(id)


@pytest.mark.parametrize(("source", "target"), PLACES)
def test_every_figure_is_equal_and_every_effect_comes_once(
    place: Callable[[str], str], source: str, target: str, tmp_path: Path
) -> None:
    clients: list[Client] = []
    id, backups = uuid4(), place(target)
    store = opened(clients, place(source), id)
    prepare(store)
    for at in range(6):
        work_once(store, at)
    offsets = {space: store.end_offset(space) for space in spaces_of(store)}
    first = store.backup(backups)
    for at in range(6, 10):
        work_once(store, at)
    second = store.backup(backups)
    assert second.point.number == 2
    assert second.bytes < first.bytes * 2
    expected = figures(store)

    restored = opened(clients, place(target), id)
    report = restored.restore_backup(backups)
    assert (report.point, report.spaces) == (second.point, len(spaces_of(store)))
    found = figures(restored)
    for space in expected:
        assert found[space] == expected[space], space
    for space, offset in offsets.items():
        after = list(store.consume_space(space, offset=offset, gaps="skip"))
        assert list(restored.consume_space(space, offset=offset, gaps="skip")) == after
    finish(restored, tmp_path / "view.sqlite")
    finish(store, tmp_path / "other.sqlite")

    earlier = opened(clients, place(target), id)
    earlier.restore_backup(backups, point=1)
    for space, offset in offsets.items():
        assert earlier.end_offset(space) == offset
    with pytest.raises(InvalidOffset, match="beyond the end"):
        list(earlier.consume_space("orders", offset=store.end_offset("orders")))
    finish(earlier, tmp_path / "earlier.sqlite")
    for client in clients:
        client.close()


@pytest.mark.parametrize(("source", "target"), PLACES if EXHAUSTIVE else PLACES[2:4])
def test_a_store_is_backed_up_while_it_works(
    place: Callable[[str], str], source: str, target: str, tmp_path: Path
) -> None:
    clients: list[Client] = []
    id, backups, url = uuid4(), place("local"), place(source)
    steps = 5 if {source, target} & {"s3", "azure"} else 20
    store = opened(clients, url, id)
    prepare(store)
    work_once(store, 0)
    reports, known = [], []
    with at_work(lambda: opened(clients, url, id)) as work:
        for _ in range(3 if EXHAUSTIVE else 2):
            known.append({space: store.end_offset(space) for space in WRITTEN})
            work.give(steps)
            reports.append(store.backup(backups))
            work.wait()
    assert work.errors == []
    assert len({report.point.transactions for report in reports}) == len(reports)
    everything = {space: list(store.consume_space(space, gaps="skip")) for space in WRITTEN}
    for report, before in zip(reports, known, strict=True):
        point = report.point
        restored = opened(clients, place(target), id)
        restored.restore_backup(backups, point=point.number)
        for space, entries in everything.items():
            there = list(restored.consume_space(space, gaps="skip"))
            assert all(entry.timestamp <= point.timestamp for entry in there)
            # A write that is in progress while the point is chosen may be missing, with any timestamp.
            for segment, written in by_segment(entries).items():
                found = by_segment(there).get(segment, [])
                assert found == written[: len(found)], (space, segment)
            missing = list(store.consume_space(space, offset=restored.end_offset(space), gaps="skip"))
            assert len(there) + len(missing) == len(entries), space
            later = list(store.consume_space(space, offset=before[space], gaps="skip"))
            assert len(missing) <= len(later), "the point lacks an entry from before the backup"
        finish(restored, tmp_path / f"{point.number}.sqlite", wait=True)
    for client in clients:
        client.close()


WRITTEN = ("orders", "accounts", "audit", "sent")


def by_segment(entries: list[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.segment, []).append(entry)
    return found
