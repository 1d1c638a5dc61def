"""URLs of stores and archives. An error about a URL never repeats it: people paste keys and tokens into URLs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from urllib.parse import SplitResult

__all__ = ["local_path", "shown_scheme", "shown_text", "split_url", "unescape", "url_options"]

_SCHEME = r"[a-z][a-z0-9+.-]{0,30}"
_OPTION = r"[a-z][a-z_]{0,30}"


def split_url(url: str) -> SplitResult:
    """The parts of `url`, still escaped. ValueError for text that is no URL."""
    from urllib.parse import urlsplit

    if any(character in url.rstrip("\r\n") for character in "\t\r\n"):
        # urlsplit would leave them out, and name another place. One at the end is a file's.
        raise ValueError("the URL has a line break or a tab in it")
    try:
        return urlsplit(url)
    except ValueError:
        raise ValueError("the URL is malformed: its host cannot be read") from None


def unescape(text: str) -> str:
    """`text` of a URL with its percent escapes decoded. ValueError if they are not UTF-8."""
    from urllib.parse import unquote

    try:
        found = unquote(text, errors="strict")
        found.encode()  # a lone surrogate has no UTF-8
        return found
    except UnicodeError:
        raise ValueError(
            "a percent escape in the URL is not UTF-8: write each byte of the name's UTF-8 as % and two hex digits"
        ) from None


def shown_text(text: str) -> str:
    """`text` for an error, or "a URL" for a URL that was given in place of another argument."""
    return "a URL" if "://" in text else repr(text[:60])


def local_path(path: str | PathLike[str]) -> Path:
    """`path` as a Path. ValueError for a URL, which would name a file in a directory such as "s3:"."""
    from pathlib import Path

    if isinstance(path, str) and "://" in path:
        raise ValueError("a file on this machine is named by its path, not by a URL")
    return Path(path)


def shown_scheme(url: str) -> str:
    """The scheme of `url` for an error, with "://"; "" if the URL has none that can be shown."""
    scheme, separator, _ = url.partition("://")
    return f"{scheme}://" if separator and re.fullmatch(_SCHEME, scheme) else ""


def url_options(url: str, known: Sequence[str]) -> dict[str, str]:
    """The query of `url` as a dict. ValueError for an option that is not in `known`, or that is given twice."""
    from urllib.parse import parse_qsl

    query = split_url(url).query
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict")
    except ValueError:
        raise ValueError("an option in the URL has a percent escape that is not UTF-8") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            # A name without a value, or with other characters, may be a piece of a token.
            shown = f" {name!r}" if re.fullmatch(_OPTION, name) and f"{name}=" in query else ""
            options = ", ".join(sorted(known)) or "none"
            raise ValueError(f"unknown option{shown} in the URL; known here: {options}")
        if name in found:
            raise ValueError(f"the option {name!r} is given twice in the URL")
        found[name] = value
    return found
