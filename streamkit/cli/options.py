"""The options that every command has, and the store that they name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, NamedTuple, ParamSpec
from uuid import UUID, uuid4

import typer

import streamkit
from streamkit import Client, PermanentError, Store
from streamkit.archive_url import archive_place
from streamkit.names import check_name
from streamkit.store import inner

from ..url import shown_text
from .output import print_note

__all__ = [
    "Archive",
    "Json",
    "MaxTimestamp",
    "MinTimestamp",
    "SegmentName",
    "SpaceName",
    "StoreId",
    "StoreOptions",
    "Url",
    "check_space",
    "metadata_pairs",
    "note_missing",
    "open_client",
    "resolved_archive",
    "resolved_url",
    "store_uuid",
    "with_options",
    "with_store",
]

P = ParamSpec("P")

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="The URL of the stores. Default: $STREAMKIT_URL, else ./streamkit-data."),
]
StoreId = Annotated[str | None, typer.Option("--store", metavar="UUID", help="The store. Default: $STREAMKIT_STORE.")]
Archive = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="URL",
        help="The URL of archives that are not beside the stores. Default: $STREAMKIT_ARCHIVE.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on each line, for programs.")]
SpaceName = Annotated[str, typer.Argument(metavar="SPACE", help="The space.", show_default=False)]
SegmentName = Annotated[str, typer.Argument(metavar="SEGMENT", help="The segment.", show_default=False)]


def _milliseconds(text: str | int) -> int:
    if isinstance(text, int):
        return text
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither milliseconds since the epoch nor a time like 2026-01-31T08:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


MinTimestamp = Annotated[
    int,
    typer.Option(
        parser=_milliseconds,
        metavar="TIME",
        help="From this time on: milliseconds, or ISO 8601 (UTC).",
        show_default=False,
    ),
]
MaxTimestamp = Annotated[
    int, typer.Option(parser=_milliseconds, metavar="TIME", help="Up to this time.", show_default=False)
]


def resolved_url(url: str | None) -> str:
    """The URL that open_client opens, in a form that is valid in another process and directory."""
    url = url or os.environ.get("STREAMKIT_URL") or "streamkit-data"
    return url if "://" in url else Path(url).absolute().as_uri()


def resolved_archive(archive: str | None) -> str | None:
    """The URL of the archives for another process, of --archive or $STREAMKIT_ARCHIVE; None: beside the stores."""
    place = archive or os.environ.get("STREAMKIT_ARCHIVE") or None
    return place if place is None or "://" in place else Path(place).absolute().as_uri()


def open_client(url: str | None, archive: str | None = None, *, beside: bool = False) -> Client:
    """The client of --url, $STREAMKIT_URL or ./streamkit-data. A malformed URL is wrong usage.

    `beside`: the archives are beside the stores, whatever $STREAMKIT_ARCHIVE says.
    """
    place = None if beside else resolved_archive(archive)
    hint = "--archive"
    try:
        if place is not None:
            archive_place(place)
        hint = "--url"
        return streamkit.connect(url, archive=place)
    except streamkit.StreamkitError:
        raise
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=hint) from None


def store_uuid(text: str, option: str) -> UUID:
    """The UUID of a store, which `option` has named."""
    try:
        return UUID(text)
    except ValueError:
        raise typer.BadParameter(f"{shown_text(text)} is not a UUID", param_hint=option) from None


class StoreOptions(NamedTuple):
    """The options of a command that name a store."""

    url: str | None
    store: str | None
    archive: str | None

    @contextmanager
    def open(self) -> Iterator[Store]:
        """The store of --store or $STREAMKIT_STORE. None is guessed, because a store is a tenant."""
        named = self.store or os.environ.get("STREAMKIT_STORE")
        with open_client(self.url, self.archive) as client:
            if not named:
                raise typer.BadParameter(_no_store(client), param_hint="--store")
            with client.store(store_uuid(named, "--store")) as store:
                yield store

    def check_exists(self, store: Store) -> None:
        """Raise PermanentError if the store does not exist: a mistyped UUID must not look like an empty store."""
        with open_client(self.url, self.archive) as client:
            if store.id not in client.stores():
                raise PermanentError(f"there is no store {store.id} at {resolved_url(self.url)}")


def with_options(command: Callable[Concatenate[StoreOptions, P], None]) -> Callable[..., None]:
    """Give a command the options that name a store, after its own. Its first parameter gets them."""
    signature = inspect.signature(command, eval_str=True)
    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in (("url", Url), ("store", StoreId), ("archive", Archive))
    ]

    @wraps(command)
    def calling(*, url: str | None, store: str | None, archive: str | None, **own: Any) -> None:
        command(StoreOptions(url, store, archive), **own)  # type: ignore[call-arg]

    parameters = [*signature.parameters.values()][1:] + named
    calling.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    calling.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return calling


def with_store(command: Callable[Concatenate[Store, P], None]) -> Callable[..., None]:
    """Give a command the options that name a store, after its own. Its first parameter gets the open store."""

    @wraps(command)
    def opening(options: StoreOptions, /, *args: P.args, **own: P.kwargs) -> None:
        with options.open() as opened:
            command(opened, *args, **own)

    return with_options(opening)


def check_space(store: Store, space: str) -> None:
    """Raise PermanentError if the space does not exist: a mistyped name must not look like an empty space."""
    inner(store).check_exists(check_name(space, "space"))


def note_missing(store: Store, *spaces: str) -> None:
    """Print a line on standard error for each space that does not exist, because it reads as empty."""
    for space in spaces:
        try:
            check_space(store, space)
        except PermanentError as error:
            print_note(str(error))


def _no_store(client: Client) -> str:
    found = sorted(map(str, client.stores()))
    if not found:
        return f"name the store (any UUID makes a new one): export STREAMKIT_STORE={uuid4()}"
    shown = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
    return f"name the store, with it or STREAMKIT_STORE; here there is {shown}"


def metadata_pairs(given: Iterable[str]) -> dict[str, str]:
    """The pairs of several NAME=VALUE options."""
    pairs: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--metadata takes NAME=VALUE, not {text[:60]!r}")
        if pairs.setdefault(name, value) != value:
            raise typer.BadParameter(f"--metadata {name!r} is given twice: no entry has two values of one name")
    return pairs
