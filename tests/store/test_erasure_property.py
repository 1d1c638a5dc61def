"""No byte of an erased entry is stored: random histories on every backend."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest
from fix_covered import EXHAUSTIVE

from harness.erasure_histories import BOUNDARY, CLASSES, GLOB, PUBLISH, History
from harness.worlds import World

_MANY, _FEW = (2000, 200) if EXHAUSTIVE else (25, 2)
_BEGIN = int(os.environ.get("STREAMKIT_SEED", "0"))


@pytest.mark.exhaustive_only("azure")  # S3 is the service of every run
@pytest.mark.timeout(0 if EXHAUSTIVE else 600)
def test_nothing_of_what_was_erased_is_stored_whatever_happened_before(
    world: World, covered: Callable[[str, int], None], request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("deltalake")
    seen: Counter[str] = Counter()
    count = _FEW if world.is_service else _MANY
    # 1927: a row that waits for its deletion held entries that its pack had dropped. 452: a file whose run was still
    # needed held a pack that was merged into another one.
    for seed in (*range(_BEGIN, _BEGIN + count), *(() if world.is_service else (452, 1927))):
        history = History(world, seed)
        try:
            history.run(steps=3 if world.is_service else 6)
        except BaseException as error:
            error.add_note(f"seed {seed}: {', '.join(history.steps)}")
            raise
        seen.update(history.seen)
    kind = request.node.callspec.id
    covered(f"histories before an erasure, {kind}", count)
    for name in CLASSES:
        covered(f"of them with {name}, {kind}", seen[name])
    if not world.is_service or EXHAUSTIVE:
        assert all(seen[name] for name in (BOUNDARY, GLOB, PUBLISH)), seen
