"""views, view, routes, run: commands for the followers of a store, on this machine and in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from streamkit import Store
from streamkit.terminal import amount

from .options import Json, with_store
from .output import iso, print_line, print_result, record_line
from .program import load, parts_of, program_of
from .progress import progress

if TYPE_CHECKING:
    from streamkit.views.catalog import LocalView

__all__ = ["routes", "run", "view", "views"]

Name = Annotated[str, typer.Argument(metavar="NAME", help="The view's name, or the path of its database.")]
App = Annotated[
    str | None,
    typer.Option("--app", metavar="MODULE:NAME", help="A program, a view, or a list of these."),
]


@with_store
def views(opened: Store, json: Json = False) -> None:
    """List the views that have a database on this machine, and those that are published."""
    from streamkit.views.catalog import find_views

    for found in find_views(opened):
        _print(found, json)


def _print(found: LocalView, json: bool) -> None:
    if json:
        print_line(record_line(found))
        return
    if not found.path:
        print_line(f"{found.name}  not on this machine, {found.published} published")
        return
    state = f"paused: {found.error}" if found.error else f"at {iso(found.timestamp)}"
    print_line(
        f"{found.name}  version {found.version}  spaces: {', '.join(found.spaces)}  "
        f"{amount(found.entries, 'entry')} applied  {state}  "
        f"{amount(found.bytes, 'byte')}, {found.published} published  {found.path}"
    )


@with_store
def view(
    opened: Store,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="show, query, resume, rebuild, or publish.")],
    name: Name,
    sql: Annotated[str | None, typer.Argument(metavar="SQL", help="For query: a SELECT.", show_default=False)] = None,
    app: App = None,
    skip: Annotated[
        bool, typer.Option("--skip", help="For resume: leave out the entry that the view paused at.")
    ] = False,
    json: Json = False,
) -> None:
    """Show a view, query its database in SQL (read-only), let a paused one try again, rebuild it, or publish it.

    `resume`, `rebuild` and `publish` need the program that defines the view: --app module:name.
    """
    if action not in ("show", "query", "resume", "rebuild", "publish"):
        raise typer.BadParameter(f"{action!r} is none of show, query, resume, rebuild, publish", param_hint="ACTION")
    if skip and action != "resume":
        raise typer.BadParameter("--skip is for resume: it leaves out the entry that the view paused at")
    if action == "query" and sql is None:
        raise typer.BadParameter('query needs SQL, as in `streamkit view query totals "select * from totals"`')
    if app is not None or action in ("resume", "rebuild", "publish"):
        _by_program(action, name, sql, app, skip, json)
        return
    from streamkit.views.catalog import find_views, query

    found = list(find_views(opened, name, local=True))
    if not found:
        raise typer.BadParameter(
            f"no database of a view {name!r} is on this machine: `streamkit views` lists the views", param_hint="NAME"
        )
    if action == "show":
        _print(found[0], json)
    else:
        _print_rows(query(found[0].path, sql or ""), json)


def _print_rows(rows: tuple[list[str], Any], json: bool) -> None:
    names, found = rows
    for row in found:
        if json:
            values = {name: _plain(value) for name, value in zip(names, row, strict=True)}
            print_line(record_line(values))
        else:
            print_line("  ".join("-" if value is None else str(_plain(value)) for value in row))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return value


def _by_program(action: str, name: str, sql: str | None, app: str | None, skip: bool, json: bool) -> None:
    if app is None:
        raise typer.BadParameter(
            f"{action} needs the program that defines the view: --app module:name", param_hint="--app"
        )
    from streamkit.views.catalog import ask
    from streamkit.views.open_view import OpenView

    named = [part for part in parts_of(load(app)) if isinstance(part, OpenView) and name in (part.name, part.path)]
    if not named:
        raise typer.BadParameter(f"{app} has no view {name!r}", param_hint="NAME")
    found = named[0]
    if action == "query":
        _print_rows(ask(found.db, found.path, sql or ""), json)
    elif action == "publish":
        done = found.publish()
        print_result(done, f"{done.name}: {amount(done.entries, 'entry')}, {amount(done.bytes, 'byte')}", json)
    else:
        if action == "rebuild":
            with progress("building", unit="entries") as bar:
                at = [0]

                def tell(entries: int) -> None:
                    bar.advance(entries - at[0])
                    at[0] = entries

                status = found.rebuild(progress=tell)
        else:
            if action == "resume":
                found.resume(skip=skip)
            status = found.status()
        text = f"{status.name}  {status.state}  {amount(status.entries, 'entry')} applied"
        if status.error:
            text += f"  at {status.error.space}, {status.error.segment}, {status.error.sequence}: {status.error.error}"
        print_result(status, text, json)


@with_store
def routes(opened: Store, json: Json = False) -> None:
    """List the routes of the store with their positions, and the reasons of paused ones."""
    for found in opened.get_routes():
        error = f"  {found.error.error}" if found.error else ""
        state = "" if found.state == "unknown" else f"  {found.state}{error}"
        read = f"{amount(found.entries, 'entry')} read, {found.copied:,} copied"
        print_result(found, f"{found.name}  {found.source} -> {found.target}  {read}{state}", json)


def run(
    app: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="A Program, or a list of its parts.")],
    seconds: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Run for this long. Without it, until stopped.")
    ] = None,
    json: Json = False,
) -> None:
    """Run the parts of a program in one process, until SIGTERM or Ctrl-C; then print their positions.

    NAME is a `streamkit.run.Program` or `ProgramOverStores`, a view, route, process manager or Worker, a list of these,
    or a function that makes one.
    """
    program = program_of(app)
    program.run(seconds=seconds, signals=True)
    for part in program.status():
        fields = msgspec.to_builtins(part, enc_hook=_told)
        text = f"{part.name}  {part.state}" + (f"  {part.error}" if part.error else "")
        print_result(fields, text, json)


def _told(value: Any) -> str:
    """Convert a value of a status that JSON does not have: an offset to hex text, any other value to its `str`."""
    return value.hex() if isinstance(value, bytes) else str(value)
