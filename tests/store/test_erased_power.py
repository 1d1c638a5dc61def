"""Erased entries do not come back after a power cut: deleted files are gone from the disk, not only from its cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import streamkit
from harness.deep_search import files_below, found_in
from harness.power import Disk
from streamkit import Client, Entry, Record, Store
from streamkit.groups import Delivery
from streamkit.views import Index

SECRET = os.urandom(24).hex().encode()


def fail(delivery: Delivery) -> None:
    raise ValueError(SECRET.decode())


def text(entry: Entry) -> str:
    return entry.payload[:48].decode()


def fill(store: Store, archived: bool) -> None:
    for at in range(40):
        filler = os.urandom((100, 3000, 30_000)[at % 3])
        store.produce("a", "user-1", [Record(SECRET + filler, {"note": SECRET.decode()})])
        store.produce("a", "user-2", [Record(b"kept %d" % at)])
        if archived and at == 10:
            store.archive("a")
        if at in (20, 30):
            store.maintain()
    store.group("a", "some", max_deliveries=1, segments=["user-1"]).run(fail, drain=True)


def erase(client: Client, store: Store) -> None:
    assert store.erase("a", "user-1").unreached == ()


def delete_space(client: Client, store: Store) -> None:
    store.delete_space("a")
    store.erase("a", "user-1")


def delete_store(client: Client, store: Store) -> None:
    client.delete_store(store.id)


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("durability", ["committed", "buffered"])
@pytest.mark.parametrize("archived", [False, True], ids=["log alone", "archived"])
@pytest.mark.parametrize("work", [erase, delete_space, delete_store])
def test_nothing_comes_back_after_a_power_cut(
    tmp_path: Path, torn: bool, durability: Any, archived: bool, work: Any
) -> None:
    if archived:
        pytest.importorskip("deltalake")
    root = tmp_path / "root"
    disk = Disk(root)
    with disk.watch(), streamkit.connect(root.as_uri()) as client:
        store = client.store(uuid4())
        store.create_space("a", durability=durability)
        fill(store, archived)
        with store.view("words", Index(text), ["a"], tmp_path / "views" / "v") as view:
            view.catch_up()
            view.publish()
        disk.keep(torn)
        assert work is delete_store or found_in(files_below(disk.noted), SECRET)
        work(client, store)
        disk.keep(torn)
    assert found_in(files_below(disk.noted), SECRET) == []
    disk.swap()
    if work is erase:
        with streamkit.connect(root.as_uri()) as client:
            store = client.store(store.id)
            assert [entry.payload for entry in store.consume_space("a")] == [b"kept %d" % at for at in range(40)]
            assert store.verify().ok
