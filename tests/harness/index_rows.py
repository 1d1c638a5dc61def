"""The rows of a partition's index, to be damaged: of its runs and of the inline run, in which all of them are put."""

from __future__ import annotations

from msgspec.structs import replace

from streamkit.backend import Backend
from streamkit.index.block_cache import BlockCache
from streamkit.index.run_format import encode_inline
from streamkit.index.runs import Runs
from streamkit.log.keys import HEAD
from streamkit.log.partition import seed_of
from streamkit.log.rows import Head, decode_row, encode_row


def read_head(backend: Backend, partition: bytes) -> Head:
    value = backend.get(partition, [bytes(HEAD)])[0]
    assert value is not None
    return decode_row(Head, HEAD, value.data)


def read_rows(backend: Backend, partition: bytes) -> dict[bytes, bytes]:
    if backend.get(partition, [bytes(HEAD)])[0] is None:
        return {}
    head = read_head(backend, partition)
    runs = Runs(backend, partition, seed_of(head.settings, partition), head.manifest, BlockCache())
    return dict(runs.scan(b"", b"\xff"))


def write_rows(backend: Backend, partition: bytes, rows: dict[bytes, bytes]) -> None:
    if not rows:
        return
    head = read_head(backend, partition)
    keys = sorted(rows)
    inline = encode_inline(keys, [rows[key] for key in keys], seed_of(head.settings, partition))
    manifest = head.manifest.with_inline(inline, 1, head.watermark)
    manifest = replace(manifest, runs=(), merges=())
    backend.put(partition, bytes(HEAD), encode_row(HEAD, replace(head, manifest=manifest)))
