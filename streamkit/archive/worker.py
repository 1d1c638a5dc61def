"""A process that writes files of archives. It reads tasks as lines of JSON, and answers each with a line of JSON."""

from __future__ import annotations

import sys

import msgspec

from ..client import connect
from ..decoders import json_decoder
from ..errors import StreamkitError
from .spread import Rewritten, Task, Wrote, discard_files, do_task

__all__: list[str] = []


def main() -> None:
    read, write = sys.stdin.buffer, sys.stdout.buffer
    url, archive = json_decoder(tuple[str, str | None]).decode(read.readline())
    with connect(url, archive=archive) as client:
        while line := read.readline():
            task = json_decoder(Task).decode(line)
            store = client.store(task.store)
            answer: Wrote | Rewritten | str
            try:
                answer = do_task(store, task)
            except StreamkitError as error:
                answer = f"{type(error).__name__}: {error}"
            try:
                write.write(msgspec.json.encode(answer) + b"\n")
                write.flush()
            except OSError:
                # The process that gave the task out is gone, so these files will not be committed.
                if not isinstance(answer, str):
                    discard_files(store, task.space, answer)
                return


if __name__ == "__main__":
    main()
