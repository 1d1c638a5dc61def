"""The URL of a root of a test's own in each of the places that adapters are judged in."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

__all__ = ["url_in"]


def url_in(place: str, request: pytest.FixtureRequest) -> str:
    """A URL in "memory", "local", "s3" or "azure". The servers are started if necessary."""
    match place:
        case "memory":
            return f"memory://{uuid4().hex}"
        case "local":
            folder: Path = request.getfixturevalue("tmp_path")
            return folder.as_uri()
        case "s3":
            return str(request.getfixturevalue("s3_bucket").url())
        case _:
            return str(request.getfixturevalue("azurite").url())
