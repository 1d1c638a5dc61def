"""lease: a command that runs while a lease is held, and no longer."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer

from streamkit import Lease

from .options import StoreId, Url, open_store

__all__ = ["lease"]

_GRACE = 10.0


def lease(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The lease.", show_default=False)],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="What to run.", show_default=False)],
    ttl: Annotated[float, typer.Option(metavar="SECONDS", help="How long it outlives its holder.")] = 30.0,
    wait: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Keep trying for so long. Else not at all.")
    ] = None,
    url: Url = None,
    store: StoreId = None,
) -> None:
    """Run COMMAND while holding the lease NAME; exit as it does.

    Exits 1 at once if someone else holds the lease. If it is lost on the way, COMMAND is terminated. COMMAND finds
    the fencing token in $STREAMKIT_LEASE_TOKEN.
    """
    with open_store(url, store) as opened, opened.lease(name, ttl=ttl, wait=wait) as held:
        code = _run(command, name, held)
        held.check()
    raise typer.Exit(code)


def _run(command: list[str], name: str, held: Lease) -> int:
    environment = {**os.environ, "STREAMKIT_LEASE": name, "STREAMKIT_LEASE_TOKEN": str(held.token)}
    with _signals() as reaches:
        try:
            child = subprocess.Popen(command, env=environment)
        except OSError as error:
            raise typer.BadParameter(f"cannot run {command[0]!r}: {error.strerror}") from None
        reaches(child)
        threading.Thread(target=_end_when_lost, args=(child, held), daemon=True).start()
        code = child.wait()
    return code if code >= 0 else 128 - code


def _end_when_lost(child: subprocess.Popen[bytes], held: Lease) -> None:
    held.lost.wait()
    child.terminate()
    try:
        child.wait(_GRACE)
    except subprocess.TimeoutExpired:
        child.kill()


@contextmanager
def _signals() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Ctrl-C reaches the child through the terminal; a signal to us alone is passed on. Either way we see its end.

    From before there is a child, as it may be known to others before it is known here; what came until then is passed
    on when it is. What is ignored stays so, for the child as well.
    """
    children: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        for child in children:
            child.send_signal(number)
        if not children:
            early.append(number)

    def reaches(child: subprocess.Popen[bytes]) -> None:
        children.append(child)
        for number in early:
            child.send_signal(number)

    handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {
        signal.SIGTERM: pass_on,
        signal.SIGHUP: pass_on,
        signal.SIGINT: lambda _number, _frame: None,
    }
    before = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield reaches
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
