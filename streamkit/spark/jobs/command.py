"""The parts that the jobs' command lines share."""

from __future__ import annotations

import argparse
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from ...archive.spread import Rewritten, Spread, Task, Wrote, do_task
from ...client import Client, connect
from ...errors import PermanentError, StreamkitError
from ...store import Store, inner
from ...terminal import amount, visible
from ..session import session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["arguments", "existing", "in_tasks", "main", "on_executors", "say", "spread_over", "start", "targets"]

_AT_ONCE = 256
"""Tasks whose results are awaited together."""
_LIBRARIES = {"_internal", "grpc", "py4j", "pyarrow", "pyspark"}
"""Modules whose errors end a job with one line; `_internal` is the module of delta-rs's errors."""
_W = TypeVar("_W")
_R = TypeVar("_R")


def arguments(name: str, about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m streamkit.spark.jobs.{name}", description=about)
    parser.add_argument("--url", required=True, help="where the stores are")
    parser.add_argument("--store", default="*", help="a UUID, several with commas, or * for all (the default)")
    parser.add_argument("--space", default="*", help="a space, or * for all (the default)")
    parser.add_argument("--archive", help="where the archives are, if not beside the stores")
    return parser


def say(text: str) -> None:
    print(visible(text), flush=True)


def targets(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Return (store, space) of all that the job is about. ValueError for a store that does not exist."""
    with connect(options.url, archive=options.archive) as client:
        there = sorted(client.stores())
        if options.store == "*":
            stores = there
        else:
            stores = [_store(part.strip()) for part in options.store.split(",")]
            for store in stores:
                if store not in there:
                    raise ValueError(f"the store {store} does not exist under {options.url.partition('?')[0]}")
        found = []
        for store in stores:
            spaces = list(client.store(store).get_spaces())
            found += [(str(store), space) for space in spaces if options.space in ("*", space)]
    if not found:
        name = "" if options.space == "*" else f" {options.space!r}"
        raise ValueError(f"there is no space{name} in {amount(len(stores), 'store')}")
    return found


def _store(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ValueError(f"--store takes UUIDs with commas between them, or *, not {text[:60]!r}") from None


def existing(client: Client, store: str, space: str) -> Store:
    """The store of a planned pair. PermanentError if its space is gone by now."""
    found = client.store(store)
    if inner(found).look_up(space)[0] is None:
        raise PermanentError(f"the space {space!r} of the store {store} is gone: was the store deleted?")
    return found


def on_executors(
    spark: SparkSession, work: Sequence[tuple[str, str]], task: Callable[[str, str], Any], what: str
) -> list[Any]:
    """task(store, space) for each, in parallel on the executors. An error of one does not stop the others.

    The results, in which an error is a StreamkitError's text, as (store, space, result, error).
    """

    def run(pair: tuple[str, str]) -> tuple[str, str, Any, str]:
        try:
            return *pair, task(*pair), ""
        except (StreamkitError, ValueError) as error:
            return *pair, None, f"{type(error).__name__}: {error}"

    say(f"{what}: {amount(len(work), 'space')}")
    found = []
    for row in in_tasks(spark, work, run):
        found.append(row)
        store, space, result, error = row
        text = amount(len(result), "finding") if isinstance(result, list) else result
        say(f"  {len(found)}/{len(work)} {store} {space!r}: {error or text}")
    return found


def in_tasks(spark: SparkSession, work: Sequence[_W], task: Callable[[_W], _R]) -> Iterator[_R]:
    """task(one) for each, each in a Spark task of its own. The results come in order, some hundreds at a time.

    A frame and no RDD: Spark Connect has no RDDs.
    """

    def run(part: Sequence[_W], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for at in batch.column(0).to_pylist():
                yield pa.record_batch({"result": pa.array([pickle.dumps(task(part[at]))], pa.binary())})

    for begin in range(0, len(work), _AT_ONCE):
        part = list(work[begin : begin + _AT_ONCE])
        frame = spark.range(0, len(part), 1, len(part)).mapInArrow(partial(run, part), "result binary")
        for row in frame.collect():
            yield pickle.loads(row[0])


def spread_over(spark: SparkSession, url: str, place: str | None) -> Spread:
    """Has files of an archive written by Spark's tasks. The driver commits them to the table."""

    def write(task: Task) -> Wrote | Rewritten:
        with connect(url, archive=place) as client:
            return do_task(client.store(task.store), task)

    return lambda tasks: in_tasks(spark, tasks, write)


def main(job: Callable[[Sequence[str] | None], int]) -> None:
    """Run a job. A refusal is one line on standard error."""
    try:
        code = job(None)
    except (StreamkitError, ValueError, OSError) as error:
        print(visible(f"{type(error).__name__}: {error}"), file=sys.stderr)
        code = 2 if isinstance(error, ValueError) and not isinstance(error, StreamkitError) else 1
    except Exception as error:
        if not any(kind.__module__.partition(".")[0] in _LIBRARIES for kind in type(error).__mro__):
            raise
        # Further lines are stack traces of the library.
        print(visible(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"), file=sys.stderr)
        code = 1
    sys.exit(code)


def start(name: str) -> SparkSession:
    return session(f"streamkit {name}")
