"""An engine that does within few transactions what it does else within thousands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from streamkit.index import compaction, merge, run_format, upkeep
from streamkit.log import policy, tail

__all__ = ["CLEAR", "LARGE", "cramped"]

CLEAR = 60.0
"""Seconds after which what is packed leaves the log."""
LARGE = 500
"""Bytes of the largest record that is packed."""


@contextmanager
def cramped(*, upkeep_after: int = 2, inline: int = 700) -> Iterator[None]:
    """Stores that are opened in here bring their index forward every other transaction, keep next to nothing in the
    head, merge runs and packs two by two and a few hundred bytes at a time, a step an upkeep, and pack no record beyond
    LARGE bytes."""
    tight = policy.Policy(
        upkeep=upkeep_after,
        frame=100,
        inline=inline,
        merge=4096,
        fanout=2,
        share=2,
        runs=4,
        clear=CLEAR,
        poll=(0.25, 5.0),
    )
    with ExitStack() as stack:
        for module, name, value in (
            (policy, "LOCAL", tight),
            (policy, "REMOTE", tight),
            (run_format, "BLOCK_BYTES", 64),
            (compaction, "ROW_BYTES", 300),
            (merge, "FILE_BYTES", 1000),
            (merge, "_FILES", 1 << 20),
            (merge, "_LEVEL_BYTES", 1 << 10),
            (merge, "_SLICE", 1),
            (upkeep, "FANOUT", 2),
            (upkeep, "_PACK", 256),
            (upkeep, "_CLEAR", 2),
            (upkeep, "_MORE_STEPS", 0),
            (tail, "MOST", LARGE),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield
