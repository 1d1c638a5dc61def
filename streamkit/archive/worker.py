"""A process that writes files of archives. It reads tasks as lines of JSON, and answers each with a line of JSON."""

from __future__ import annotations

import sys

import msgspec

from ..client import connect
from ..errors import StreamkitError
from ..store import inner
from .spread import Work, Wrote, write_files_of

__all__: list[str] = []


def main() -> None:
    read, write = sys.stdin.buffer, sys.stdout.buffer
    url, archive = msgspec.json.decode(read.readline(), type=tuple[str, str | None])
    with connect(url, archive=archive) as client:
        while line := read.readline():
            work = msgspec.json.decode(line, type=Work)
            store = client.store(work.store)
            answer: Wrote | str
            try:
                answer = write_files_of(store, work)
            except StreamkitError as error:
                answer = f"{type(error).__name__}: {error}"
            try:
                write.write(msgspec.json.encode(answer) + b"\n")
                write.flush()
            except OSError:
                # The holder of the lease is gone: nobody will commit these.
                if isinstance(answer, Wrote):
                    inner(store).archive(work.space).table.discard(file for file, _ in answer.files if file is not None)
                return


if __name__ == "__main__":
    main()
