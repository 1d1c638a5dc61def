"""The transactions after the index are known alike, if the twin applies many of them in one step and if Python does."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from fix_covered import EXHAUSTIVE

import streamkit
from harness.codecs import CODECS, using
from streamkit import Record, Store
from streamkit.log.partition import Partition

pytestmark = pytest.mark.skipif(len(CODECS) < 2, reason="the compiled twin is not installed: make speed")


def partition_of(store: Store) -> Partition:
    return store._shared.spaces["x"].partitions[0]


def grow(store: Store, random: Random, transactions: int) -> None:
    """Write transactions. Most have one frame and nothing else."""
    for _ in range(transactions):
        segment, kind = f"s{random.randrange(12)}", random.random()
        records = [Record(random.randbytes(random.choice([0, 10, 200]))) for _ in range(random.choice([1, 1, 1, 3]))]
        if kind < 0.9:
            store.produce("x", segment, records)
        elif kind < 0.93:
            store.produce("x", segment, records, idempotency_key=f"k{random.randrange(9)}-{random.random()}")
        elif kind < 0.96:
            with store.transaction("x") as trx:
                for name in random.sample(range(12), 2):
                    trx.produce(f"s{name}", records)
        elif kind < 0.98:
            store.produce("x", segment, [Record(random.randbytes(5000))])
        elif store.peek("x", segment).sequence > 1:
            store.trim("x", segment=segment, before=store.peek("x", segment).sequence)


def known(store: Store) -> Any:
    partition = partition_of(store)
    tail = partition.tail
    return (
        (tail.watermark, tail.pieces, tail.removals, tail.records, tail.keys, tail.bytes, tail.frames),
        (partition.number, partition.timestamp, partition.position, partition.size, partition.known_end()),
        {name: partition.cached[name] for name in sorted(partition.cached)},
        (partition.floor, partition.thinned, partition.moments.after(0)),
    )


@pytest.mark.parametrize("seed", range(40 if EXHAUSTIVE else 4))
def test_a_tail_is_the_same_from_both_codecs(tmp_path: Path, seed: int) -> None:
    random, id = Random(seed), uuid4()
    with streamkit.connect(tmp_path.as_uri()) as client:
        store = client.store(id)
        store.create_space("x", durability="buffered")
        grow(store, random, 150)
        readers = []
        for codec in CODECS:
            with using(codec):
                # One reader knows some statuses already when the others come.
                readers.append(streamkit.connect(tmp_path.as_uri()).store(id))
                readers[-1].peek("x", "s1")
        for transactions in (0, 40, 700):
            grow(store, random, transactions)
            states = []
            for codec, reader in zip(CODECS, readers, strict=True):
                with using(codec), streamkit.connect(tmp_path.as_uri()) as late:
                    reader.peek("x", "s2")
                    late.store(id).peek("x", "s1")
                    states.append((known(reader), known(late.store(id)), [*reader.consume_space("x")]))
            assert states[0] == states[1]
        for reader in readers:
            reader.close()
