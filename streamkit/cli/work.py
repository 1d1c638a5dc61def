"""work: a command for each entry of a group."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Annotated

import typer

from streamkit import Store

from .options import SpaceName, note_missing, with_store
from .output import print_note

if TYPE_CHECKING:
    from streamkit.groups import Delivery

__all__ = ["work"]


class CommandFailed(Exception):
    """The command of a job failed. The warning about the attempt names this class."""


@with_store
def work(
    opened: Store,
    space: SpaceName,
    group: Annotated[
        str, typer.Argument(metavar="GROUP", help="The group. It is made if it does not exist.", show_default=False)
    ],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="The command to run.", show_default=False)],
    consumer: Annotated[str | None, typer.Option(metavar="NAME", help="The name of the consumer.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, metavar="N", help="Jobs at the same time.")] = 1,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Jobs that are claimed together.")] = 1,
    seconds: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Run for this long. Without it, until stopped.")
    ] = None,
    drain: Annotated[bool, typer.Option("--drain", help="End when nothing is left to do now.")] = False,
) -> None:
    """Run COMMAND for each entry, with the payload on its standard input.

    Exit code 0 acknowledges the entry. After another one the entry comes again later.

    COMMAND finds $STREAMKIT_SPACE, $STREAMKIT_SEGMENT, $STREAMKIT_SEQUENCE and $STREAMKIT_ATTEMPT. On SIGTERM the
    commands that run are finished, and the other entries are handed back.
    """

    def handle(delivery: Delivery) -> None:
        entry = delivery.entry
        told = {"SPACE": entry.space, "SEGMENT": entry.segment, "SEQUENCE": entry.sequence, "ATTEMPT": delivery.attempt}
        environment = {**os.environ, **{f"STREAMKIT_{name}": str(value) for name, value in told.items()}}
        try:
            done = subprocess.run(command, input=entry.payload, env=environment, check=False)
        except OSError as error:
            raise CommandFailed(f"cannot run {command[0]!r}: {error.strerror}") from None
        if done.returncode:
            raise CommandFailed(f"{command[0]} exited with {done.returncode}")

    if shutil.which(command[0]) is None:
        raise typer.BadParameter(f"cannot run {command[0]!r}: there is no such command")
    note_missing(opened, space)
    done = opened.group(space, group).run(handle, consumer, concurrency, batch, seconds=seconds, drain=drain)
    print_note(f"{done.acked} done, {done.failed} attempts failed, {done.dead} dead, {done.lost} too late")
