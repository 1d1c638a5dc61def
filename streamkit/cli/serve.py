"""serve: the stores of a URL over HTTP."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from .options import StoreId, Url
from .output import print_line

__all__ = ["serve"]


def serve(
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 4437,
    url: Url = None,
    store: StoreId = None,
) -> None:
    """Serve the stores of --url over HTTP until SIGTERM or Ctrl-C.

    The store of --store is `_` in paths. It needs the extra `serve`.
    """
    from ..serve.server import serve

    serve(
        url,
        host=host,
        port=port,
        store=store or os.environ.get("STREAMKIT_STORE"),
        started=lambda address: print_line(f"streamkit serves {address}"),
    )
