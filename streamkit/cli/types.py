"""The commands `types export` and `types check`, for the registry of a program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from streamkit.terminal import json_escaped

from .output import print_line, print_note
from .program import load

if TYPE_CHECKING:
    from streamkit.types import Registry

__all__ = ["types"]

types = typer.Typer(help="Export the types of a program, and compare them with those of its last release.")
_Named = Annotated[str, typer.Argument(metavar="MODULE:NAME", help="A Registry, or a function that makes one.")]


@types.command()
def export(registry: _Named) -> None:
    """Print the types as a JSON document: each with its version and its JSON Schema. Keep it with a release."""
    from streamkit.types.schemas import schemas_of

    print_line(msgspec.json.format(json_escaped(msgspec.json.encode(schemas_of(_registry(registry))))))


@types.command()
def check(
    registry: _Named,
    released: Annotated[
        Path, typer.Argument(metavar="FILE", help="The types of the last release, as `types export` printed them.")
    ],
) -> None:
    """Compare the types with those of the last release.

    Ends with 1 if they would fail to read entries that the release has written, and names each reason.
    """
    from streamkit.types.schemas import breaking_changes

    found = _registry(registry)
    try:
        changes = breaking_changes(msgspec.json.decode(released.read_bytes()), found)
    except OSError as error:
        raise typer.BadParameter(f"{released} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise typer.BadParameter(f"{released}: {error}") from None
    for change in changes:
        print_note(change)
    if changes:
        raise typer.Exit(1)
    print_line(f"{len(list(found))} types read all that the last release has written")


def _registry(name: str) -> Registry[Any]:
    from streamkit.types import Registry

    found = load(name)
    if not isinstance(found, Registry):
        raise typer.BadParameter(f"{name} is of type {type(found).__name__}, not a streamkit.types.Registry")
    return found
