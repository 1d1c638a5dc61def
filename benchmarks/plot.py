"""The run as a picture."""

from __future__ import annotations

from pathlib import Path

from .report import Run, number

__all__ = ["draw"]

_COLOURS = {"streamkit": "#0b6e4f", "bare file": "#b9bec6", "SQLite": "#7f9fc4", "eventsourcing": "#d8a657"}
_INK, _FAINT = "#1f2430", "#6b7280"
_PANELS = (
    (
        "Durable when append returns",
        (("append, 1 a commit", "1 record\na commit"), ("append, 1000 a commit", "1000 records\na commit")),
    ),
    (
        "Buffered: a power cut may take the last moments",
        (
            ("append buffered, 1 a commit", "1 record\na commit"),
            ("append buffered, 1000 a commit", "1000 records\na commit"),
        ),
    ),
    (
        "Reading, data written 1000 a commit",
        (
            ("consume_space, written 1000 a commit", "everything,\nin commit order"),
            ("consume_segment, written 1000 a commit", "segment\nby segment"),
        ),
    ),
)


def draw(run: Run, path: Path) -> None:
    """Bars on a logarithmic scale, each with its figure, and its ratio to streamkit."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    found = {result.work: result for result in run.results}
    panels = [
        (title, rows)
        for title, groups in _PANELS
        if (rows := [(found[work], label) for work, label in groups if work in found])
    ]
    if not panels:
        return
    bars = [sum(len(result.rounds) for result, _ in rows) + len(rows) for _, rows in panels]
    pyplot.rcParams.update({"font.family": "DejaVu Sans", "text.color": _INK, "axes.edgecolor": "#d6d9de"})
    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=(9, 1.1 + 0.31 * sum(bars)), sharex=True, squeeze=False, height_ratios=bars
    )
    for (title, rows), (axis,) in zip(panels, axes, strict=True):
        at = 0.0
        ticks = []
        for result, label in rows:
            ours = result.median()
            middle = at + (len(result.rounds) - 1) / 2
            ticks.append((middle, label))
            for name in sorted(result.rounds, key=lambda name: (name != "streamkit", list(_COLOURS).index(name))):
                value = result.median(name)
                axis.barh(at, value, height=0.82, color=_COLOURS[name], zorder=2)
                text = number(value) + ("" if name == "streamkit" else f"   ({value / ours:.2g} ×)")
                bold = "bold" if name == "streamkit" else "normal"
                axis.text(value * 1.06, at, text, va="center", fontsize=8.5, fontweight=bold, zorder=3)
                at += 1
            at += 0.9
        axis.set_yticks([tick for tick, _ in ticks], [label for _, label in ticks], fontsize=9)
        axis.set_xscale("log")
        axis.set_title(title, loc="left", fontsize=10.5, fontweight="bold", pad=5)
        axis.invert_yaxis()
        axis.grid(axis="x", color="#e8eaee", zorder=0)
        axis.tick_params(length=0, labelcolor=_FAINT)
        for side in ("top", "right", "bottom"):
            axis.spines[side].set_visible(False)
    last = axes[-1][0]
    last.set_xlim(1000, 1e8)
    last.set_xticks([1e3, 1e4, 1e5, 1e6, 1e7, 1e8], ["1 k", "10 k", "100 k", "1 M", "10 M", "100 M"], fontsize=8.5)
    last.set_xlabel(
        "entries a second, logarithmic scale; in brackets the ratio to streamkit", fontsize=8.5, color=_FAINT
    )
    figure.legend(
        handles=[Patch(color=colour, label=name) for name, colour in _COLOURS.items()],
        loc="upper right",
        ncols=len(_COLOURS),
        frameon=False,
        fontsize=9,
        bbox_to_anchor=(0.985, 0.995),
    )
    figure.tight_layout(rect=(0, 0, 1, 0.965))
    figure.savefig(path, dpi=160, facecolor="white")
    pyplot.close(figure)
