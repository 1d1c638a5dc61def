"""The run as a picture."""

from __future__ import annotations

import math
from pathlib import Path

from .report import Run, number

__all__ = ["draw"]

_COLOURS = {"streamkit": "#0b6e4f", "bare file": "#c3c8d0", "SQLite": "#7f9fc4", "eventsourcing": "#d8a657"}
_INK, _FAINT, _LINE = "#1f2430", "#6b7280", "#e8eaee"
_PANELS = (
    (
        "Durable when the append returns",
        (
            ("append, 1 a commit", "1 record\na commit"),
            ("append, 1 a commit, 16 threads", "the same,\n16 threads"),
            ("append, 1000 a commit", "1000 records\na commit"),
        ),
    ),
    (
        "Buffered: a power cut may take the last moments  (eventsourcing has no such mode: durable)",
        (
            ("append buffered, 1 a commit", "1 record\na commit"),
            ("append buffered, 1000 a commit", "1000 records\na commit"),
        ),
    ),
    (
        "Reading what was written 1000 a commit",
        (
            ("consume_space, written 1000 a commit", "everything,\nin order"),
            ("consume_segment, written 1000 a commit", "segment\nby segment"),
        ),
    ),
)


def draw(run: Run, path: Path) -> None:
    """Bars on a logarithmic scale, each with its figure, its ratio to streamkit, and the range of its rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    found = {result.work: result for result in run.results}
    panels = []
    for title, works in _PANELS:
        groups = []
        for work, label in works:
            if work in found:
                rounds = {name: values for name in _COLOURS if (values := found[work].rounds.get(name))}
                groups.append((label, rounds, {name: found[work].median(name) for name in rounds}))
        if groups:
            panels.append((title, groups))
    if not panels:
        return
    figures = [value for _, groups in panels for _, _, medians in groups for value in medians.values()]
    low = 10 ** math.floor(math.log10(min(figures)) - 0.3)
    high = 10 ** (math.log10(max(figures)) + 0.9)
    heights = [sum(len(rounds) for _, rounds, _ in groups) + 0.8 * len(groups) + 1.2 for _, groups in panels]
    pyplot.rcParams.update({"font.family": "DejaVu Sans", "text.color": _INK, "axes.edgecolor": "#c9cdd4"})
    size = 1.5 + 0.235 * sum(heights)
    figure, axes = pyplot.subplots(len(panels), 1, figsize=(9, size), sharex=True, squeeze=False, height_ratios=heights)
    for (title, groups), (axis,) in zip(panels, axes, strict=True):
        at = 0.0
        ticks = []
        for label, rounds, medians in groups:
            ticks.append((at + (len(rounds) - 1) / 2, label))
            for name, values in rounds.items():
                value, ours = medians[name], name == "streamkit"
                axis.barh(at, value - low, left=low, height=0.84, color=_COLOURS[name], zorder=2)
                axis.plot((min(values), max(values)), (at, at), color=_INK, linewidth=1.1, alpha=0.55, zorder=3)
                text = number(value) if ours else f"{number(value)}   {_ratio(value / medians['streamkit'])} ×"
                axis.text(
                    max(values) * 1.09,
                    at,
                    text,
                    va="center_baseline",
                    fontsize=8.5,
                    fontweight="bold" if ours else "normal",
                    color=_COLOURS[name] if ours else _INK,
                )
                at += 1
            at += 0.8
        axis.set_yticks([tick for tick, _ in ticks], [label for _, label in ticks], fontsize=9)
        axis.set_xscale("log")
        axis.set_xlim(low, high)
        axis.set_ylim(at - 0.8 - 0.35, -0.65)
        axis.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=4)
        axis.grid(axis="x", color=_LINE, zorder=0)
        axis.minorticks_off()
        axis.tick_params(length=0, labelcolor=_INK, labelbottom=False)
        for side in ("top", "right", "bottom"):
            axis.spines[side].set_visible(False)
    decades = [10.0**power for power in range(round(math.log10(low)), math.floor(math.log10(high)) + 1)]
    last = axes[-1][0]
    last.set_xticks(decades, [f"{number(decade).split('.')[0]}{_unit(decade)}" for decade in decades], fontsize=8.5)
    last.minorticks_off()
    last.tick_params(axis="x", labelbottom=True, labelcolor=_FAINT)
    figure.text(0.015, 1 - 0.16 / size, "Entries a second", fontsize=13, fontweight="bold", va="top")
    figure.text(
        0.015,
        1 - 0.47 / size,
        "logarithmic scale; 128-byte random payloads; median of the rounds of one run on one disk, the line is their "
        "range; × of streamkit",
        fontsize=8,
        color=_FAINT,
        va="top",
    )
    figure.text(
        0.015,
        0.1 / size,
        "{processor}; {disk}; Python {python}; ".format_map(run.machine) + run.when,
        fontsize=7.5,
        color=_FAINT,
    )
    figure.legend(
        handles=[Patch(color=colour, label=name) for name, colour in _COLOURS.items()],
        loc="upper right",
        ncols=len(_COLOURS),
        frameon=False,
        fontsize=9,
        handlelength=1.1,
        handleheight=1.0,
        columnspacing=1.4,
        bbox_to_anchor=(0.995, 1 - 0.06 / size),
    )
    figure.tight_layout(rect=(0, 0.22 / size, 1, 1 - 0.62 / size), h_pad=0.9)
    figure.savefig(path, dpi=160, facecolor="white")
    pyplot.close(figure)


def _ratio(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _unit(value: float) -> str:
    return number(value).partition(" ")[2] and f" {number(value).partition(' ')[2]}"
