"""The command line in a process of its own that begins at once: one process with everything imported forks it.

    with warm_command(folder / "streamkit"):
        ...  # a shell with the folder in its PATH runs `streamkit …` in a tenth of the time of a new interpreter

The file is a small program. It hands its arguments, environment, folder and standard streams to the process that forks,
hands on its signals, and ends as the forked process ends.
"""

from __future__ import annotations

import gc
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["warm_command"]

_CLIENT = """#!{python} -IS
import json, os, signal, socket, sys

asking = socket.socket(socket.AF_UNIX)
asking.connect({path!r})
asked = {{"arguments": sys.argv, "folder": os.getcwd(), "environment": dict(os.environ)}}
message = json.dumps(asked).encode() + b"\\n"
sent = socket.send_fds(asking, [message], [0, 1, 2])
asking.sendall(message[sent:])
answers = asking.makefile()
pid = int(answers.readline())
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: os.kill(pid, number))
code = int(answers.readline())
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


@contextmanager
def warm_command(program: Path) -> Iterator[None]:
    """Make `program`, which runs the command line until the block ends."""
    # The address of such a socket has a hundred characters at most, and the folder of a test may have more.
    with tempfile.TemporaryDirectory(prefix="streamkit-", dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as asked:
        path = f"{folder}/asked"
        asked.bind(path)
        asked.listen(16)
        program.write_text(_CLIENT.format(python=sys.executable, path=path))
        program.chmod(0o755)
        command = [sys.executable, __file__, str(asked.fileno())]
        with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[asked.fileno()]):
            yield  # it ends when its standard input does


# -- in the process that forks ----------------------------------------------------------------------------------------


def _serve(listening: socket.socket) -> None:
    from harness.warm import received, wait_for
    from streamkit.cli import main

    with suppress(SystemExit), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        main(["stores", "--url", "memory://nothing"])  # what a command imports when it runs
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the processes that wait for the programs
    gc.freeze()
    while 0 not in select.select([listening, 0], [], [])[0]:
        asking, _ = listening.accept()
        with asking:
            asked, fds = received(asking) or (None, [])
            if asked is not None and os.fork() == 0:
                listening.close()
                wait_for(partial(_run, asked, fds), asking.fileno(), *fds, 0)
            for fd in fds:
                os.close(fd)


def _run(asked: dict[str, Any], fds: list[int]) -> NoReturn:
    """End as `python -m streamkit.cli` does."""
    for standard, fd in enumerate(fds):
        os.dup2(fd, standard)
        os.close(fd)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    sys.path[0] = asked["folder"]
    sys.argv = asked["arguments"]
    code = 1
    try:
        runpy.run_module("streamkit.cli", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BrokenPipeError):
            sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
    _serve(socket.socket(fileno=int(sys.argv[1])))
