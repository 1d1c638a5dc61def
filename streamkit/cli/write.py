"""produce and create: into a store."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from streamkit import OutcomeUnknown, Record, Store, StreamkitError
from streamkit.names import check_name, partition_of
from streamkit.store import inner
from streamkit.terminal import amount

from .ndjson import RecordBatch, read_batches, segment_from, segment_named
from .options import Json, SpaceName, metadata_pairs, with_store
from .output import print_result
from .progress import progress

__all__ = ["create", "produce"]


@with_store
def create(
    opened: Store,
    space: SpaceName,
    partitions: Annotated[
        int, typer.Option(min=1, metavar="N", help="The number of partitions. It cannot be changed later.")
    ] = 1,
    durability: Annotated[
        str, typer.Option(metavar="NAME", help="committed, or buffered (local disk only).")
    ] = "committed",
    json: Json = False,
) -> None:
    """Create a space with more partitions, or another durability, than its first write would give it.

    If the space exists with the same settings, nothing is changed."""
    opened.create_space(space, partitions=partitions, durability=durability)
    fields: dict[str, Any] = {"space": space, "partitions": partitions, "durability": durability}
    print_result(fields, f"{space}  {amount(partitions, 'partition')}, {durability}", json)


@with_store
def produce(
    opened: Store,
    space: SpaceName,
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="NDJSON; '-' or none: standard input.")
    ] = None,
    segment_key: Annotated[
        str | None, typer.Option(metavar="FIELD", help="The value of this field is the segment of a line.")
    ] = None,
    segment: Annotated[str | None, typer.Option(metavar="SEGMENT", help="Every line goes to this segment.")] = None,
    batch: Annotated[int, typer.Option(min=1, metavar="LINES", help="The number of lines in one commit.")] = 1000,
    idempotency_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="A key for this run: the same files with the same key are written once."),
    ] = None,
    expected_sequence: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="With --segment: write only if this is its last sequence; 0 for a new segment."
        ),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--metadata",
            metavar="NAME=VALUE",
            help="Metadata of every record. Repeat it for several.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Append the lines of NDJSON files, or of standard input, to the segments of a space.

    Each line becomes a record, unchanged. The order within a segment is kept. Lines are committed in batches, all of a
    batch or none. The first bad line ends the command with its number, and nothing of its batch is written.

    Example: `streamkit produce orders orders.ndjson --segment-key id --metadata source=import`
    """
    pairs = metadata_pairs(metadata or ()) or None
    if (segment is None) == (segment_key is None):
        raise typer.BadParameter("give one of --segment-key FIELD and --segment SEGMENT, for the segment of a line")
    if expected_sequence is not None and segment is None:
        raise typer.BadParameter("--expected-sequence needs --segment")
    paths = files or ["-"]
    for path in paths:
        if path != "-" and not Path(path).exists():
            raise typer.BadParameter(f"there is no file {path!r}")
    if segment is not None:
        segment_of = segment_named(check_name(segment, "segment"))
    elif segment_key is not None:
        segment_of = segment_from(segment_key)

    started = time.perf_counter()
    lines, commits, segments = 0, 0, set[str]()
    of_batch = "none"
    with progress(space, _total_bytes(paths), unit="B") as bar:
        known = inner(opened).look_up(space)[0]
        partitions = len(known.partitions) if known else 1
        try:
            for part in read_batches(paths, segment_of, batch, pairs):
                for partition, frames in _by_partition(part, partitions).items():
                    key = None if idempotency_key is None else f"{idempotency_key}:{part.number}:{partition}"
                    with opened.transaction(space, idempotency_key=key) as trx:
                        for name, records in frames.items():
                            trx.produce(name, records, expected_sequence=expected_sequence)
                    count = sum(map(len, frames.values()))
                    lines, commits = lines + count, commits + 1
                    of_batch = "some"
                    if expected_sequence is not None:
                        expected_sequence += count
                of_batch = "none"
                segments.update(part.segments)
                bar.advance(part.bytes)
        except StreamkitError as error:
            if isinstance(error, OutcomeUnknown):
                of_batch = "perhaps some"
            error.add_note(f"{amount(lines, 'line')} written before it, {of_batch} of its batch")
            raise
    seconds = time.perf_counter() - started
    fields = {
        "space": space,
        "lines": lines,
        "segments": len(segments),
        "commits": commits,
        "seconds": round(seconds, 3),
    }
    rate = lines / seconds if seconds else 0.0
    written = f"{amount(lines, 'line')} to {amount(len(segments), 'segment')} of {space}"
    text = f"{written} in {amount(commits, 'commit')}, {rate:,.0f} lines/s"
    print_result(fields, text, json)


def _by_partition(batch: RecordBatch, partitions: int) -> dict[int, dict[str, list[Record]]]:
    """A transaction has one partition, so a batch is as many transactions as it meets partitions."""
    if partitions == 1:
        return {0: batch.segments}
    split: dict[int, dict[str, list[Record]]] = {}
    for segment, records in batch.segments.items():
        split.setdefault(partition_of(segment, partitions), {})[segment] = records
    return split


def _total_bytes(paths: list[str]) -> int | None:
    return None if "-" in paths else sum(Path(path).stat().st_size for path in paths)
