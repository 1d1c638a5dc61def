"""Going on to another file of the log: wherever a writer ends, all others go on from there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

import pytest
from fix_local import Append, LocalStore, P, Put, in_child, write

from streamkit.backend import ABSENT, Conflict
from streamkit_local import log
from streamkit_local.head import BASE, END, SYNCED, unseal
from streamkit_local.reading import Reader
from streamkit_local.record import StoredRecord
from streamkit_local.state import LogFile


class Ending:
    """Stands for the words of a head: `end` is called as soon as the word `last` was stored."""

    def __init__(self, words: memoryview, last: int, end: Callable[[], object]) -> None:
        self.words = words
        self.last = last
        self.end = end

    def __getitem__(self, number: int) -> int:
        found: int = self.words[number]
        return found

    def __setitem__(self, number: int, word: int) -> None:
        self.words[number] = word
        if number == self.last:
            self.last = -1
            self.end()


def go_on_until(local: LocalStore, last: int, end: Callable[[], object]) -> None:
    """Put a row for which another file is begun, and let it end there."""
    local.backend.get(P, [b"row"])
    opened = local.backend._shared.logs[P]  # type: ignore[attr-defined]
    words, roll = opened.words, log.ROLL
    opened.words = Ending(words, last, end)
    log.ROLL = 10  # type: ignore[misc]
    try:
        write(local.backend, P, [Put(b"another", b"row")])
    finally:
        log.ROLL = roll  # type: ignore[misc]
        opened.words = words


def look(local: LocalStore) -> None:
    with pytest.raises(Conflict):
        local.backend.put(P, b"row", b"", ABSENT)


@pytest.mark.parametrize("last", [BASE, END, SYNCED], ids=["base", "end", "synced"])
@pytest.mark.parametrize("looked", [False, True])
def test_a_writer_may_be_killed_between_any_words_of_a_file_that_it_began(
    local: LocalStore, last: int, looked: bool
) -> None:
    write(local.backend, P, [Put(b"row", b"1")])  # nothing is written before the words are stored
    assert in_child(lambda: go_on_until(local, last, lambda: os._exit(7))) == 7
    if looked:
        assert in_child(lambda: look(local)) == 0
    write(local.backend, P, [Put(b"mine", b"2"), Append(b"1", b"3")], durable=False)
    rows = {b"row": b"1", b"mine": b"2", b"1": b"3"}
    assert local.rows() == rows

    def anew() -> None:
        assert local.rows() == rows

    assert in_child(anew) == 0
    end, _, synced = (
        unseal(int.from_bytes(local.head().read_bytes()[at : at + 8], sys.byteorder)) for at in (512, 520, 528)
    )
    assert synced <= end
    assert local.rows_anew() == rows


@pytest.mark.parametrize("last", [BASE, END, SYNCED], ids=["base", "end", "synced"])
def test_a_thread_that_is_interrupted_between_them_goes_on(local: LocalStore, last: int) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    write(local.backend, P, [Put(b"row", b"1")])
    with pytest.raises(KeyboardInterrupt):
        go_on_until(local, last, interrupt)
    write(local.backend, P, [Put(b"mine", b"2"), Append(b"1", b"3")])
    assert local.rows() == local.rows_anew() == {b"row": b"1", b"mine": b"2", b"1": b"3"}


def test_going_on_reads_no_file_again_that_is_known_to_be_needed(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "ROLL", 1000)
    bases: list[int] = []
    walk = Reader.walk

    def counted(self: Reader, file: LogFile, *arguments: int) -> Iterator[StoredRecord]:
        bases.append(file.base)
        return walk(self, file, *arguments)

    def append(first: int, last: int) -> int:
        """The number of files that were walked through meanwhile."""
        bases.clear()
        write(local.backend, P, [Append(b"%05d" % at, bytes(500)) for at in range(first, last)], durable=False)
        return len(set(bases))

    monkeypatch.setattr(Reader, "walk", counted)
    append(0, 100)
    assert len(list(local.path.rglob("*.log"))) > 30
    assert append(100, 104) < 10
    # A file without the row that is known is read again, and goes.
    local.backend.delete(P, [b"%05d" % at for at in range(90)])
    append(104, 108)
    assert len(list(local.path.rglob("*.log"))) < 20
    assert sorted(local.rows()) == [b"%05d" % at for at in range(90, 108)]
