"""Several processes of the server on one socket. One that ends is started again, until the first process ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from types import FrameType

import msgspec

from ..decoders import json_decoder
from .server import Options, listen, make_application, serve

__all__ = ["serve_by_workers"]

_PAUSE = 0.5
"""Seconds before a process that ended is started again."""


def serve_by_workers(options: Options, workers: int, started: Callable[[str], object]) -> None:
    """Serve by so many processes until SIGTERM or SIGINT."""
    make_application(options)  # wrong options are refused now
    with listen(options.host, options.port) as listening:
        listening.set_inheritable(True)
        _Supervisor(options, listening, workers).run(started)


class _Supervisor:
    """Holds the processes."""

    def __init__(self, options: Options, listening: socket.socket, workers: int) -> None:
        self._options = options
        self._listening = listening
        self._processes = [self._start() for _ in range(workers)]
        self._is_ending = False

    def _start(self) -> subprocess.Popen[bytes]:
        handle = self._listening.fileno()
        told = {**os.environ, "STREAMKIT_WORKER": msgspec.json.encode(self._options).decode()}
        return subprocess.Popen(
            [sys.executable, "-m", "streamkit.serve.workers", str(handle)], pass_fds=[handle], env=told
        )

    def _end(self, number: int, _: FrameType | None) -> None:
        self._is_ending = True
        for process in self._processes:
            process.send_signal(signal.SIGTERM)

    def run(self, started: Callable[[str], object]) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        where = self._listening.getsockname()
        started(f"http{'s' if self._options.certificate else ''}://{where[0]}:{where[1]}")
        while not self._is_ending:
            time.sleep(_PAUSE)
            for at, process in enumerate(self._processes):
                if process.poll() is not None and not self._is_ending:
                    self._processes[at] = self._start()
        end = time.monotonic() + self._options.limits.drain_seconds + 5
        for process in self._processes:
            try:
                process.wait(max(end - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _work(handle: int) -> None:
    options = json_decoder(Options).decode(os.environ.pop("STREAMKIT_WORKER"))
    serve(options, sockets=[socket.socket(fileno=handle)])


if __name__ == "__main__":
    _work(int(sys.argv[1]))
