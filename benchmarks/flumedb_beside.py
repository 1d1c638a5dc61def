"""flumedb on Node compared with streamkit: append + index, lookups, views of existing entries.

    python -m benchmarks.flumedb_beside [entries] [--publish]

It needs `node`, and `npm install` in benchmarks/flumedb, which pins the versions; without them it says so. Both get the
same 150 B of JSON, 1000 in a batch. flumelog-offset does not sync; a store does, or not: "buffered".
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

import streamkit
from streamkit import Entry, Record, Store
from streamkit.views import Index, Reduce

from .views import payloads

HERE = Path(__file__).parent / "flumedb"
PAGE = Path(__file__).parents[1] / "docs" / "views.md"
BEGIN, END = "<!-- figures: python -m benchmarks.flumedb_beside --publish -->", "<!-- end of figures -->"
WORK = ("append + index", "lookups", "index of what is there", "reduce of what is there")
_LOOKUPS = 20_000
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Figure(NamedTuple):
    count: int
    clock: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.count / self.clock:,.0f} ({self.count / self.cpu:,.0f})"


def _timed(count: int, work: Callable[[], object]) -> Figure:
    clock, cpu = time.perf_counter(), time.process_time()
    work()
    return Figure(count, time.perf_counter() - clock, time.process_time() - cpu)


def _key(entry: Entry) -> int:
    key: int = _decode(entry.payload)["n"]
    return key


def _count(state: dict[str, int], entry: Entry) -> dict[str, int]:
    user = _decode(entry.payload)["user"]
    state[user] = state.get(user, 0) + 1
    return state


def ours(store: Store, folder: Path, durability: str, values: list[bytes]) -> dict[str, Figure]:
    store.create_space("log", durability=durability)
    index = Index(_key)
    view = store.view("index", index, ["log"], folder / "index")

    def append() -> None:
        for at in range(0, len(values), 1000):
            store.produce("log", "s", [Record(payload) for payload in values[at : at + 1000]])
            view.catch_up()

    dice = random.Random(1)

    def look_up() -> None:
        for _ in range(_LOOKUPS):
            wanted = dice.randrange(len(values))
            assert _key(index.get(wanted)[0]) == wanted

    found = {"append + index": _timed(len(values), append), "lookups": _timed(_LOOKUPS, look_up)}
    view.close()
    for what, kind in (("index of what is there", Index(_key)), ("reduce of what is there", Reduce(_count, {}))):
        with store.view(what, kind, ["log"], folder / what) as again:
            found[what] = _timed(len(values), again.catch_up)
            assert again.status().entries == len(values)
    return found


def theirs(folder: Path, values: list[bytes]) -> dict[str, Figure] | None:
    """None where it is not installed."""
    node = shutil.which("node")
    if node is None or not (HERE / "node_modules" / "flumedb").is_dir():
        print(f"not compared: it needs node, and `npm install` in {HERE}")
        return None
    written = folder / "payloads"
    written.write_bytes(b"\n".join(values))
    command = [node, str(HERE / "bench.js"), str(folder), str(written), str(_LOOKUPS)]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    lines = map(json.loads, done.stdout.splitlines())
    return {line["what"]: Figure(line["count"], line["clock"], line["cpu"]) for line in lines}


def table(columns: dict[str, dict[str, Figure]], entries: int) -> str:
    rows = [f"| {entries:,} entries of 150 B JSON | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    rows += [f"| {work} | {' | '.join(str(found[work]) for found in columns.values())} |" for work in WORK]
    return "\n".join(rows)


def main(arguments: list[str]) -> None:
    entries = int(next((one for one in arguments if one.isdecimal()), 100_000))
    values = [payload.strip() for payload in payloads(entries)]
    columns: dict[str, dict[str, Figure]] = {}
    with tempfile.TemporaryDirectory() as name, streamkit.connect(f"file://{name}/stores") as client:
        for durability in ("committed", "buffered"):
            folder = Path(name) / durability
            columns[f"streamkit, {durability}"] = ours(client.store(uuid4()), folder, durability, values)
        there = theirs(Path(name), values)
        if there is not None:
            columns["flumedb 2.1.8 on Node"] = there
    text = table(columns, entries)
    print(f"a second, by the clock (by CPU time, of all threads); load {os.getloadavg()[0]:.0f}\n{text}")
    if "--publish" in arguments and there is not None:
        page = PAGE.read_text()
        before, after = page.split(BEGIN)[0], page.split(BEGIN)[1].split(END, 1)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main(sys.argv[1:])
