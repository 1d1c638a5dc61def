"""The URL of `connect(archive=...)`: checked before anything is opened, as the URL of the stores is."""

from __future__ import annotations

from importlib import import_module

import msgspec

from .errors import MissingDependency
from .importing import IMPORTING
from .url import shown_scheme

__all__ = ["ArchivePlace", "archive_place"]

_MODULES = {
    "file": "streamkit_local",
    "s3": "streamkit_s3",
    "az": "streamkit_azure",
    "azure": "streamkit_azure",
    "azurite": "streamkit_azure",
}
_FORMS = "file:///path, s3://bucket/prefix, az://container/path, azure://account/container/path"


class ArchivePlace(msgspec.Struct, frozen=True):
    """A directory for archives, as delta-rs names it, and delta-rs storage options."""

    root: str
    options: dict[str, str]
    shares_options: bool
    """True if the URL names no service: then a store's own service and credentials are used, if the schemes agree."""

    def __repr__(self) -> str:
        return f"ArchivePlace({self.root!r})"


def archive_place(url: str) -> ArchivePlace:
    """The place that an archive URL names. No I/O.

    ValueError for another URL, which is not repeated. MissingDependency if the package behind it is not installed.
    """
    if not isinstance(url, str):
        raise TypeError(f"an archive URL is str, not {type(url).__name__}")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _MODULES:
        shown = shown_scheme(url)
        what = f"no archive is kept at {shown}" if shown else "this archive URL has no known scheme"
        raise ValueError(f"{what}: archive is the URL of a directory, such as {_FORMS}")
    try:
        with IMPORTING:  # by archive_place, too
            root, options = import_module(_MODULES[scheme]).archive_place(url)
    except ImportError as error:
        extra = _MODULES[scheme].removeprefix("streamkit_")
        raise MissingDependency(
            f"an archive at {scheme}:// needs {error.name}, which is not installed: "
            f"pip install 'streamkit-store[{extra}]'"
        ) from error
    except ValueError as error:
        raise ValueError(f"the archive URL: {error}") from None
    return ArchivePlace(root, options, scheme in ("s3", "az") and "?" not in rest)
