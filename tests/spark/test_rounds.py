"""Batch, stream, sink, rollup and restore, killed at random beside writers, an archiver and compaction: nothing twice,
nothing missing, nothing stuck. What is right is told by an oracle of its own: what the writers were acknowledged."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fix_covered import EXHAUSTIVE
from fix_spark import Doomed

from harness import spark_rounds
from harness.spark_world import FRAME, World

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(0),
    pytest.mark.skipif(
        not EXHAUSTIVE, reason="a sample is killed and repeated by others; STREAMKIT_EXHAUSTIVE=1 kills at random"
    ),
]

KINDS = ("batch", "stream", "sink", "rollup", "restore")
KILLS = int(os.environ.get("STREAMKIT_SPARK_KILLS", "200"))
KILLS_S3 = int(os.environ.get("STREAMKIT_SPARK_KILLS", "30"))
SECONDS = float(os.environ.get("STREAMKIT_SPARK_SECONDS", "inf"))
"""Seconds after which no further process is killed."""
_PATIENCE = float(os.environ.get("STREAMKIT_SPARK_PATIENCE", "600"))
"""Seconds after which what does not end is stuck: more where the machine has other things to do."""
_AFTERMATH = (
    "Stream closed",
    "Broken pipe",
    "Connection reset",
    "EOFException",
    "Python worker exited unexpectedly",
    "failed to connect back",
    "CANNOT_OPEN_SOCKET",
)
"""Spark's errors about a kept worker that was killed before, or is slow to start. A second try works."""


class Driver:
    """The Spark program: asked, killed, asked again."""

    def __init__(self, doomed: Callable[..., Doomed], world: World) -> None:
        self.doomed, self.world = doomed, world
        self.folder = world.path / "asked"
        self.folder.mkdir()
        self.output = str(world.path / "rollup")
        self.number = 0
        self.program: Doomed | None = None
        self.took = dict.fromkeys(KINDS, 2.0)
        self.killed: Counter[str] = Counter()
        self.finished: set[str] = set()
        """The frames that were written."""

    def start(self) -> Doomed:
        if self.program is None or self.program.process.poll() is not None:
            before = set(self.folder.glob("ready-*"))
            self.program = self.doomed(spark_rounds.__file__ or "", str(self.folder))
            ready = self.program.wait_until(lambda: set(self.folder.glob("ready-*")) > before, _PATIENCE)
            assert ready, self.program.said()
        return self.program

    def question(self, kind: str) -> tuple[dict[str, Any], list[int] | None]:
        world, chance = self.world, self.world.chance
        asked: dict[str, Any] = {
            "do": kind,
            "url": world.url,
            "store": str(world.source.id),
            "into": str(world.into.id),
        }
        wanted = None
        match kind:
            case "batch":
                until, wanted = world.end()
                asked |= {"until": until, "native": chance.random() < 0.5}
            case "stream":
                asked |= {"checkpoint": str(world.path / "checkpoint"), "rows": chance.choice(("500", "5000"))}
                asked |= {"split": chance.choice(("100", "1000", "100000"))}
            case "sink":
                if not world.frames or world.frames[-1] in self.finished:
                    world.frames.append(f"frame-{len(world.frames)}")
                tasks: dict[str, Any] = {
                    "adaptive": chance.choice(("true", "false")),
                    "tasks": chance.choice((1, 2, 5)),
                    "parts": chance.choice((1, 3)),
                }
                asked |= {
                    "frame": world.frames[-1],
                    "rows": FRAME,
                    "adaptive": chance.choice(("true", "false")),
                    **tasks,
                }
            case "rollup":
                asked |= {"output": self.output}
            case _:
                asked |= {"restored": str(world.restored.id)}
        return asked, wanted

    def finish(self, kind: str) -> None:
        """Run until it is done, without a kill."""
        ends = time.monotonic() + _PATIENCE
        while not self.run(kind):
            assert time.monotonic() < ends, f"{kind} is stuck"

    def run(self, kind: str, kill: str = "") -> bool:
        """One attempt; False if it was killed, or failed because it was. An error without a kill is one."""
        self.world.allowed = 60
        asked, wanted = self.question(kind)
        program = self.start()
        (self.folder / "asking").write_text(json.dumps(asked))
        (self.folder / "asking").rename(self.folder / f"ask-{self.number}.json")
        answer = self.folder / f"answer-{self.number}.json"
        began = time.monotonic()
        if kill:
            time.sleep(self.world.chance.random() * self.took[kind])
            if not answer.exists():
                if kill == "all":
                    program.kill()
                    self.killed[f"{kind}, JVM and all"] += 1
                elif program.kill_workers():
                    self.killed[f"{kind}, its workers"] += 1
                else:
                    kill = ""
        while not answer.exists():
            if program.process.poll() is not None:
                assert kill == "all", program.said()
                (self.folder / f"ask-{self.number}.json").unlink()
                return False
            assert time.monotonic() < began + _PATIENCE, f"stuck at {asked}: {program.said()}"
            time.sleep(0.02)
        self.number += 1
        told = json.loads(answer.read_text())
        if "error" in told:
            assert kill or any(words in told["error"] for words in _AFTERMATH), told["error"]
            return False
        self.took[kind] = 0.7 * self.took[kind] + 0.3 * (time.monotonic() - began)
        if wanted is not None:
            assert told["found"] == wanted
        if kind == "sink":
            self.finished.add(asked["frame"])
        return True


def rounds(world: World, doomed: Callable[..., Doomed], kills: int) -> Counter[str]:
    driver, chance, ends = Driver(doomed, world), world.chance, time.monotonic() + SECONDS
    world.write(30)
    with world.beside():
        driver.start()
        while driver.killed.total() < kills and time.monotonic() < ends:
            kind = chance.choice(KINDS)
            while not driver.run(kind, "all" if chance.random() < 0.1 else "workers"):
                if chance.random() < 0.25:
                    driver.finish(kind)
                    break
            print(dict(driver.killed), dict(world.done), flush=True)
    for kind in KINDS:
        driver.finish(kind)
    world.check_copies()
    world.check_rollup(driver.output)
    world.check_restored()
    assert world.done["archive runs"]
    return driver.killed + world.done


def seed() -> int:
    return int(os.environ.get("STREAMKIT_SEED", "11"))


def test_killed_at_random_beside_writers_archiver_and_compaction(
    doomed: Callable[..., Doomed], tmp_path: Path, covered: Callable[[str, int], None]
) -> None:
    world = World((tmp_path / "stores").as_uri(), tmp_path, seed(), 0.5)
    try:
        for name, count in rounds(world, doomed, KILLS).items():
            covered(f"Spark rounds: {name}", count)
    finally:
        world.close()


@pytest.mark.s3
def test_killed_at_random_on_s3(
    doomed: Callable[..., Doomed], tmp_path: Path, covered: Callable[[str, int], None], s3_bucket: Any
) -> None:
    world = World(s3_bucket.url("rounds"), tmp_path, seed(), 1.0)
    try:
        for name, count in rounds(world, doomed, KILLS_S3).items():
            covered(f"Spark rounds on S3: {name}", count)
    finally:
        world.close()
