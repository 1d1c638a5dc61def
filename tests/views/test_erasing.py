"""What was erased is not in a view any more: by its own `erase`, or built anew; nor in its file, or a published one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest

import streamkit
from streamkit import Record
from streamkit.views import Index, Latest, Links, Query, Search, Vectors, View

MAKES: dict[str, Callable[[], View]] = {
    "index": lambda: Index(lambda entry: entry.payload.decode()),
    "search": lambda: Search(lambda entry: entry.payload.decode()),
    "links": lambda: Links(lambda entry: [entry.payload.decode()]),
    "query": lambda: Query(["x"]),
    "vectors": lambda: Vectors(lambda entry: [float(entry.sequence), 1.0], 2),
}


@pytest.mark.parametrize("kind", sorted(MAKES))
def test_a_ready_made_view_forgets_them_and_its_file_too(tmp_path: Path, kind: str) -> None:
    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        store = client.store(uuid4())
        store.produce("log", "s", [Record(f"secretword{at}".encode()) for at in range(6)])
        store.produce("log", "other", [Record(b"secretword9")])
        view = store.view(kind, MAKES[kind](), ["log"], tmp_path / "v")
        view.catch_up()
        view.publish()
        view.erase(SimpleNamespace(space="log", segment="s", first_sequence=2, last_sequence=4, reason="erased"))
        rows = [payload for (payload,) in view.db.execute("select payload from entries order by id")]
        assert rows == [b"secretword0", b"secretword4", b"secretword5", b"secretword9"]
        for file in (tmp_path / "v.builds").iterdir():
            assert b"secretword1" not in file.read_bytes()
        assert view._snapshots().all() == []
        store.produce("log", "s", [Record(b"later")])
        assert view.catch_up().entries == 8
        with pytest.raises(ValueError, match="does not follow"):
            view.erase(SimpleNamespace(space="x", segment="s", first_sequence=1, last_sequence=1, reason="erased"))


def test_a_view_without_erase_is_built_anew(tmp_path: Path) -> None:
    with streamkit.connect(f"memory://{uuid4().hex}") as client:
        store = client.store(uuid4())
        store.produce("log", "s", [Record(b"a")])
        calls: list[int] = []
        kind = Latest(lambda entry: calls.append(entry.sequence) or entry.segment)  # type: ignore[func-returns-value]
        view = store.view("latest", kind, ["log"], tmp_path / "v")
        view.catch_up()
        view.erase(SimpleNamespace(space="log", segment="s", first_sequence=1, last_sequence=1, reason="erased"))
        assert calls == [1, 1]
