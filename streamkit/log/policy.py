"""The engine's policy for a backend's limits: the length of the tail, the frames that are copied, the pause between two
looks."""

from __future__ import annotations

from typing import NamedTuple

from ..backend import Limits

__all__ = ["LOCAL", "NEVER", "REMOTE", "Policy", "policy_of"]

NEVER = 1 << 62


class Policy(NamedTuple):
    upkeep: int
    """Transactions after which the index is brought forward; earlier if they are large. A process that opens the space
    reads at most so many."""
    frame: int
    """Frames up to this many bytes are copied into the index, so that a segment is read where its rows are."""
    inline: int
    """Bytes of the newest run that the head itself holds."""
    merge: int
    """Bytes that one upkeep merges, at most."""
    fanout: int
    """The number of neighbouring runs of one size that are merged into one."""
    share: float
    """The bytes that they have together, at least, as a multiple of the largest one's: a large run is not rewritten for
    the sake of a few small ones."""
    runs: int
    """The number of runs above which neighbours of any size are merged, because a process that begins asks all runs."""
    clear: float
    """The most seconds for which packed transactions also stay in the log; the space's archive grace may be less."""
    poll: tuple[float, float]
    """Seconds between two looks while following: at first, and at most when nothing happens."""
    losses: int = NEVER
    """Commits in a row that meet others', after which a request is posted in the inbox. NEVER: there is no inbox, as
    where a call is cheap."""


# Simulated, for 30 to 400 upkeeps: five runs and a share of 1.8 rewrite as many bytes as four and 2, and a reader meets
# a tenth to a sixth fewer runs. Eight would save a tenth of the bytes, and a reader would meet up to a third more runs.
LOCAL = Policy(
    upkeep=4096,
    frame=4 << 10,
    inline=8 << 10,
    merge=8 << 20,
    fanout=5,
    share=1.8,
    runs=48,
    clear=60.0,
    poll=(0.002, 0.05),
)
REMOTE = Policy(
    upkeep=21,
    frame=32 << 10,
    inline=48 << 10,
    merge=2 << 20,
    fanout=4,
    share=2,
    runs=5,
    clear=float("inf"),
    poll=(0.25, 5.0),
    losses=2,
)


def policy_of(limits: Limits) -> Policy:
    return REMOTE if limits.remote else LOCAL
