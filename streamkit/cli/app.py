"""The commands, put together, and how each may end."""

from __future__ import annotations

import logging
import os
import runpy
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from streamkit import MissingDependency, StreamkitError, __version__, errors

from . import archive as cold
from . import backup as backups
from . import doctor, groups, init, lease, look, read, removing, serve, transfer, types, upkeep, work, write
from . import views as following
from .options import Archive, StoreId, Url
from .output import print_line, print_note

__all__ = ["run"]


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """typer would end with 1 when the reader of our output has gone; that is no refusal."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0


app = typer.Typer(
    name="streamkit",
    cls=_Commands,
    help="An event-stream store without a server: ordered segments on local disk, S3 or Azure.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
for command in (
    write.produce,
    write.create,
    read.consume,
    read.peek,
    read.follow,
    look.stores,
    look.spaces,
    look.segments,
    look.status,
    upkeep.verify,
    upkeep.repair,
    upkeep.salvage,
    upkeep.maintain,
    doctor.doctor,
    cold.archive,
    cold.compact,
    backups.backup,
    backups.restore,
    transfer.export,
    transfer.import_,
    removing.trim,
    removing.retention,
    removing.erase,
    removing.size,
    removing.rm,
    lease.lease,
    groups.groups,
    work.work,
    following.views,
    following.view,
    following.routes,
    following.run,
    serve.serve,
    init.init,
    serve.console,
):
    app.command(command.__name__.rstrip("_"))(command)
app.add_typer(groups.group, name="group")
app.add_typer(groups.queue, name="queue")
app.add_typer(serve.keys, name="keys")
app.add_typer(types.types, name="types")


EXAMPLE = Path(__file__).parents[2] / "examples" / "demo"


@app.command("demo")
def demo(url: Url = None) -> None:
    """Append the 336,776 departures from New York in 2013 to a store, then query them. Needs a checkout.

    Each run uses a new store under the URL.
    """
    if not EXAMPLE.is_dir():
        raise MissingDependency(f"there is no {EXAMPLE}: the demo is an example. Run it in a checkout: make demo")
    runpy.run_path(str(EXAMPLE), run_name="demo")["show"](url)


def _version(asked: bool) -> None:
    if asked:
        print_line(__version__)
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    url: Url = None,
    store: StoreId = None,
    archive: Archive = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """--url, --store and --archive may stand before the command as well as after it."""
    given = {"url": url, "store": store, "archive": archive}
    here = {name: value for name, value in given.items() if value is not None}
    context.default_map = {found.name: here for found in app.registered_commands if found.name}
    for several in app.registered_groups:
        commands = several.typer_instance.registered_commands if several.typer_instance else ()
        context.default_map[several.name or ""] = {found.name: here for found in commands if found.name}


class _Notes(logging.Handler):
    """Print the library's warnings as lines on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        cause = f": {type(error).__name__}: {error}" if error else ""
        print_note(f"{record.levelname.lower()}: {record.getMessage()}{cause}".replace("\n", " "))


def _name(error: Exception) -> str:
    """The class of an error as it is known outside: rooms have their own, more exact ones."""
    return next(
        (kind.__name__ for kind in type(error).__mro__ if kind.__name__ in errors.__all__), type(error).__name__
    )


def _open_standard_streams() -> None:
    """Open the standard streams that the caller has closed, on the null device. The order gives each stream its own
    descriptor."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (until the end)


@cache
def _program() -> Any:
    """Build all commands once a process: that takes longer than most of them run."""
    program = typer.main.get_command(app)
    commands = [program]
    for command in commands:
        commands += getattr(command, "commands", {}).values()
        for option in command.params:
            if getattr(option, "is_flag", False):
                option.metavar = ""  # otherwise the help shows `--json <bool>`, as if a value followed
    return program


def run(args: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit code. A refusal is one line on standard error: the class and the message."""
    _open_standard_streams()
    logger = logging.getLogger("streamkit")
    if not logger.hasHandlers():
        logger.addHandler(_Notes(logging.WARNING))
    try:
        code = _program()(args=args, prog_name="streamkit", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except typer.TyperException as error:
        if message := " ".join(error.format_message().split()):
            context = getattr(error, "ctx", None)
            print_note(f"wrong usage: {message} (see {context.command_path if context else 'streamkit'} --help)")
        return error.exit_code
    except (StreamkitError, OSError) as error:
        message = "; ".join((str(error), *getattr(error, "__notes__", ())))
        print_note(f"{_name(error)}: {message}".replace("\n", " "))
        return 1
    except ValueError as error:
        print_note(f"wrong usage: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
