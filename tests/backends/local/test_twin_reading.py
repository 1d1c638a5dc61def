"""The rows of a local log, and what is known of its last file, are the same for both codecs, and so is damage."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from fix_covered import EXHAUSTIVE
from fix_local import Append, Delete, LocalStore, P, Put, flip, write

from harness.codecs import CODECS, choose, using
from streamkit.errors import CorruptData
from streamkit_local import log
from streamkit_local.record import WHOLE

pytestmark = pytest.mark.skipif(len(CODECS) < 2, reason="the compiled twin is not installed: make speed")
FLIPS = 4000 if EXHAUSTIVE else 120


def seen(local: LocalStore, random: Random) -> Any:
    """Everything that a process finds that opens the store."""
    try:
        backend = local.open()
        rows = [*backend.scan(P, b"", b"\xff" * 300)]
        keys = sorted({b"", b"\xff", *(row.key for row in rows)})
        parts = [random.choices(keys, k=2) for _ in range(8)]
        some = [[*backend.scan(P, *part, limit=random.randrange(4))] for part in parts]
        state = backend._log(P).state  # type: ignore[attr-defined]
        file = state.files[-1]
        return rows, some, state.rows, state.last, state.end, file.first, file.samples, state._sample
    except CorruptData as error:
        return str(error)


@pytest.mark.parametrize("roll", [8 << 20, 40_000])
def test_rows_are_the_same_for_both_codecs_and_so_is_damage(
    local: LocalStore, roll: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "ROLL", roll)
    random = Random(roll)
    for number in range(400):
        op: Any = Append(b"%06d" % number, random.randbytes(random.choice([0, 1, 100, 300, 300, 4096])))
        if random.random() < 0.05:
            op = Append(op.key, random.randbytes(random.choice([WHOLE - 1, WHOLE, WHOLE + 1, 3 * WHOLE])))
        if random.random() < 0.1:
            op = Put(b"row%d" % random.randrange(4), random.randbytes(random.choice([9, 300])))
        write(local.backend, P, [op], durable=False)
        if random.random() < 0.02:
            write(local.backend, P, [Delete(b"%06d" % at) for at in range(random.randrange(number + 1), number)])
    damaged = 0
    for turn in range(FLIPS):
        local.close()
        file = random.choice(local.logs())
        place, bit = random.randrange(file.stat().st_size), random.randrange(8)
        if turn:
            flip(file, place, bit)
        found = []
        for codec in CODECS:
            with using(codec):
                choose(codec)
                found.append(seen(local, Random(turn)))
        assert found[0] == found[1], f"bit {bit} of byte {place} of {file}"
        damaged += isinstance(found[0], str)
        local.close()
        if turn:
            flip(file, place, bit)
    assert 0 < damaged < FLIPS
