"""lease: a command that runs while a lease is held, and no longer."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Annotated

import typer

from streamkit import Lease, Store

from .options import with_store

__all__ = ["lease"]

_GRACE = 10.0
Send = Callable[[int], None]
"""Sends a signal to the command."""


@with_store
def lease(
    opened: Store,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The lease.", show_default=False)],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="What to run.", show_default=False)],
    ttl: Annotated[
        float, typer.Option(metavar="SECONDS", help="The lease ends after this time if its holder is killed.")
    ] = 30.0,
    wait: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Keep trying for this long. Without it, try once.")
    ] = None,
) -> None:
    """Run COMMAND while holding the lease NAME, and end with its exit code.

    Exits with 1 at once if another process holds the lease. If the lease is lost meanwhile, COMMAND gets SIGTERM. It
    finds the fencing token in $STREAMKIT_LEASE_TOKEN.
    """
    with opened.lease(name, ttl=ttl, wait=wait) as held:
        code = _run(command, name, held)
        held.check()
    raise typer.Exit(code)


def _run(command: list[str], name: str, held: Lease) -> int:
    environment = {**os.environ, "STREAMKIT_LEASE": name, "STREAMKIT_LEASE_TOKEN": str(held.token)}
    shared = _in_foreground()
    with _signals(from_terminal=shared) as reaches:
        try:
            child = subprocess.Popen(command, env=environment, process_group=None if shared else 0)
        except OSError as error:
            raise typer.BadParameter(f"cannot run {command[0]!r}: {error.strerror}") from None
        send = child.send_signal if shared else partial(_send_to_group, child)
        reaches(send)
        threading.Thread(target=_end_when_lost, args=(child, send, held), daemon=True).start()
        code = child.wait()
    return code if code >= 0 else 128 - code


def _in_foreground() -> bool:
    """True if Ctrl-C at a terminal reaches our process group.

    Then the command stays in our group, so that it may use the terminal, also as a part of a pipeline. Otherwise it
    gets a group of its own, so that what we pass on reaches all that it has started.
    """
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _send_to_group(child: subprocess.Popen[bytes], number: int) -> None:
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)


def _end_when_lost(child: subprocess.Popen[bytes], send: Send, held: Lease) -> None:
    held.lost.wait()
    send(signal.SIGTERM)
    try:
        child.wait(_GRACE)
    except subprocess.TimeoutExpired:
        send(signal.SIGKILL)


@contextmanager
def _signals(from_terminal: bool) -> Iterator[Callable[[Send], None]]:
    """Pass signals on to the command, and end when it ends. SIGINT `from_terminal` has reached it already.

    This begins before there is a child, because others may know the child earlier than this process. Signals that come
    before are passed on once the child is known. An ignored signal stays ignored, also for the child.
    """
    children: list[Send] = []
    early: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and from_terminal:
            return
        for send in children:
            send(number)
        if not children:
            early.append(number)

    def reaches(send: Send) -> None:
        children.append(send)
        for number in early:
            send(number)

    before = {
        number: signal.signal(number, pass_on)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield reaches
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
