"""Programs of the harness, each in its own process, which begins at once. One process that has everything imported
forks them; a new interpreter would import an SDK for half a second and more.

    program = start(racer.__file__, "page", url, store_id, 1, url=url)
    program.stdin, program.stdout, program.kill(), program.wait(), …      # as of a subprocess.Popen with text pipes

Nothing of a store is open in the process that forks, so there is nothing to inherit: what it has of a store is closed
before. Whoever is asked for the first program on a URL of a kind lists that root's stores once, to have the SDK loaded.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import IO, Any, NoReturn

__all__ = ["Program", "received", "start", "wait_for"]

_lock = threading.Lock()
_asking: tuple[int, socket.socket] | None = None
"""The id of the process that asks, and its socket to the server."""


class Program:
    """A process as subprocess.Popen has one; whether it has ended is told by the process that waits for it."""

    def __init__(self, stdin: int, stdout: int, status: int) -> None:
        self.stdin: IO[str] = open(stdin, "w")  # noqa: SIM115
        self.stdout: IO[str] = open(stdout)  # noqa: SIM115
        self.returncode: int | None = None
        self._status = open(status)  # noqa: SIM115
        self.pid = int(self._status.readline())

    def poll(self) -> int | None:
        if self.returncode is None and self._has_ended(0):
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not self._has_ended(timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def _has_ended(self, timeout: float | None) -> bool:
        told = select.poll()  # its descriptor may be a great one, in a process that has many files open
        told.register(self._status, select.POLLIN)
        return bool(told.poll(None if timeout is None else timeout * 1000))

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """End its standard input, and return all that it prints; standard error is not kept."""
        with suppress(BrokenPipeError):
            self.stdin.close()
        timer = threading.Timer(timeout, self.kill) if timeout else None
        if timer:
            timer.start()
        try:
            said = "" if self.stdout.closed else self.stdout.read()
            self.wait(timeout)
        finally:
            if timer:
                timer.cancel()
        self.stdout.close()
        return said, ""

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stdout.close()
        with suppress(BrokenPipeError):
            self.stdin.close()
        self.wait()


def start(path: str, *arguments: object, url: str) -> Program:
    """Run a file as `python PATH ARGUMENTS…` would, with the environment as it is now; it works at `url`."""
    asked = {"path": path, "arguments": [*map(str, arguments)], "url": url, "environment": dict(os.environ)}
    its_input, stdin = os.pipe()
    stdout, its_output = os.pipe()
    status, its_status = os.pipe()
    message = json.dumps(asked).encode() + b"\n"
    with _lock:
        server = _server()
        sent = socket.send_fds(server, [message], [its_input, its_output, its_status])
        server.sendall(message[sent:])
        for fd in (its_input, its_output, its_status):
            os.close(fd)
        return Program(stdin, stdout, status)  # which has heard that it runs, before another one is asked for


def _server() -> socket.socket:
    """The socket of this process's server, which ends with the process."""
    global _asking
    if _asking is None or _asking[0] != os.getpid():
        mine, its = socket.socketpair()
        with its:
            subprocess.Popen(
                [sys.executable, __file__, str(its.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
            )
        _asking = os.getpid(), mine
    return _asking[1]


# -- in the process that forks ----------------------------------------------------------------------------------------


def _serve(asking: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when no client is left
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the processes that wait for the programs
    warm: set[str] = set()
    while request := received(asking):
        asked, fds = request
        os.environ.clear()
        os.environ.update(asked["environment"])
        kind = asked["url"].partition(":")[0]
        if kind not in warm:
            _load(asked["url"])
            warm.add(kind)
            gc.freeze()
        if os.fork() == 0:
            asking.close()
            stdin, stdout, status = fds
            wait_for(partial(_run, asked, stdin, stdout), status, stdin, stdout)
        for fd in fds:
            os.close(fd)


def _load(url: str) -> None:
    import streamkit
    import streamkit.groups

    with streamkit.connect(url) as client:
        next(client.stores(), None)


def received(asking: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next request on a socket, and its file descriptors; None at the end."""
    message, fds = b"", list[int]()
    while not message.endswith(b"\n"):
        part, more, _, _ = socket.recv_fds(asking, 1 << 20, 3)
        if not part:
            return None
        message += part
        fds += more
    return json.loads(message), fds


def wait_for(program: Callable[[], NoReturn], status: int, *its: int) -> NoReturn:
    """Fork a process that runs the program. Write its id and its end to `status`; `its` are descriptors that it has."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(status)
        program()
    for fd in its:
        os.close(fd)
    with suppress(BrokenPipeError):
        os.write(status, b"%d\n" % pid)
        os.write(status, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _run(asked: dict[str, Any], stdin: int, stdout: int) -> NoReturn:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = 1
    try:
        for fd, standard in ((stdin, 0), (stdout, 1)):
            os.dup2(fd, standard)
            os.close(fd)
        sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
        sys.argv = [asked["path"], *asked["arguments"]]
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BrokenPipeError):
            sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
