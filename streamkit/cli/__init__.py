"""The command line: `streamkit`, or `python -m streamkit.cli`. It needs the extra `cli`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> None:
    """Run one command (of `sys.argv` by default) and exit: 0 done, 1 refused, 2 wrong usage."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError as error:
        print(
            f"MissingDependency: the command line needs {error.name}: pip install 'streamkit-store[cli]'",
            file=sys.stderr,
        )
        sys.exit(1)
    from .app import run

    sys.exit(run(args))
