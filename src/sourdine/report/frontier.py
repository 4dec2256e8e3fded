"""The privacy-utility frontier: how well each method does at each budget, and without privacy.

The figure of Senge et al. 2022. It shows released numbers only; knows no method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from sourdine.errors import InputError
from sourdine.report import style

_INKS = (
    *((style.BLUE, "o", "-"), (style.ORANGE, "s", "-"), (style.GREEN, "^", "-")),
    *(
        (style.PURPLE, "D", "-"),
        (style.AMBER, "v", "-"),
        (style.INK, "P", "--"),
        (style.GREY, "X", "--"),
    ),
)
_GAP = 0.055
"""Least distance of two labels, as a share of the height of the axes."""


@dataclass(frozen=True)
class Point:
    """The mean of several runs with their lowest and highest; epsilon is inf without privacy."""

    epsilon: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Frontier:
    """A line of points for each method, and under what settings they were found.

    epsilon: what all private runs together cost, or None where none was private. always: what always
    one answer reaches.
    """

    metric: str
    lines: Mapping[str, Sequence[Point]]
    model: str
    delta: float
    unit: str
    trained: int
    tested: int
    seeds: int
    epsilon: float | None
    always: float | None = None

    def __post_init__(self) -> None:
        if not any(self.lines.values()):
            raise InputError("there is nothing to draw: no run has a result.")


def draw(found: Frontier, path: Path) -> None:
    """Writes the figure, as PNG or SVG by the name of the file."""
    with style.house():
        figure = frontier(found)
        if path.suffix == ".svg":
            figure.savefig(path, metadata={"Date": None})
        else:
            figure.savefig(path, dpi=style.DPI)


def frontier(found: Frontier) -> Figure:
    """Performance over epsilon on a logarithmic axis; "no privacy" stands apart at its right end."""
    figure = style.canvas(_title(found), _caption(found), margin=0.9)
    name = f"{found.metric} on held out records"
    plot = style.axes(
        figure, x=f"ε at δ = {style.scientific(found.delta)} per {found.unit}, each run", y=name
    )
    points = [point for line in found.lines.values() for point in line]
    budgets = sorted({p.epsilon for p in points if math.isfinite(p.epsilon)})
    open_end = any(math.isinf(p.epsilon) for p in points)
    place = _places(budgets, open_end)
    ends: list[tuple[float, float, str, str]] = []
    for (method, line), (color, marker, dash) in zip(found.lines.items(), _INKS, strict=False):
        ordered = sorted(line, key=lambda point: point.epsilon)
        _line(plot, ordered, place, color, marker, dash)
        last = ordered[-1]
        ends.append((place[last.epsilon], last.mean, method, color))
    floor = [] if found.always is None else [found.always]
    for value in floor:
        plot.axhline(value, color=style.GREY, linewidth=1.0, linestyle=(0, (5, 3)), zorder=0)
    _limits(plot, [*points, *(Point(budgets[0] if budgets else 1.0, v, v, v) for v in floor)], place)
    plot.set_xticks([place[e] for e in budgets], [f"{e:g}" for e in budgets])
    if open_end:
        _mark_open_end(plot, place, budgets)
    plot.xaxis.set_minor_locator(NullLocator())
    _labels(plot, ends)
    return figure


def _places(budgets: list[float], open_end: bool) -> dict[float, float]:
    """Where each budget stands: its logarithm, and a step further for none at all."""
    place = {epsilon: math.log10(epsilon) for epsilon in budgets}
    if open_end:
        span = math.log10(budgets[-1] / budgets[0]) if budgets else 0.0
        place[math.inf] = (math.log10(budgets[-1]) if budgets else 0.0) + max(0.25, 0.28 * span)
    return place


def _line(
    plot: Axes,
    points: Sequence[Point],
    place: Mapping[float, float],
    color: str,
    marker: str,
    dash: str,
) -> None:
    """Means with their spread: a band where budgets follow each other, a bar where there is none."""
    private = [point for point in points if math.isfinite(point.epsilon)]
    x = [place[point.epsilon] for point in private]
    style_of: dict[str, Any] = {
        "color": color,
        "marker": marker,
        "markersize": 5.5,
        "linewidth": style.LINE,
    }
    plot.plot(x, [point.mean for point in private], linestyle=dash, **style_of)
    low, high = [point.low for point in private], [point.high for point in private]
    plot.fill_between(x, low, high, color=color, alpha=0.14, linewidth=0)
    bars = private if len(private) == 1 else []
    for point in points:
        if math.isinf(point.epsilon):
            bars = [*bars, point]
            at = place[math.inf]
            plot.plot([at], [point.mean], linestyle="", **{**style_of, "markerfacecolor": "white"})
            if private:
                join = ([x[-1], at], [private[-1].mean, point.mean])
                plot.plot(*join, color=color, linewidth=1.0, linestyle=":", zorder=1)
    for point in bars:
        plot.vlines(place[point.epsilon], point.low, point.high, color=color, linewidth=1.2)


def _limits(plot: Axes, points: Sequence[Point], place: Mapping[float, float]) -> None:
    """Room around all that is drawn, and no value above 1 that cannot be."""
    low, high = min(p.low for p in points), max(p.high for p in points)
    room = max(0.01, 0.08 * (high - low))
    plot.set_ylim(max(0.0, low - room), min(1.0 + 0.2 * room, high + room))
    left, right = min(place.values()), max(place.values())
    side = max(0.05, 0.06 * (right - left))
    plot.set_xlim(left - side, right + side)


def _mark_open_end(plot: Axes, place: Mapping[float, float], budgets: list[float]) -> None:
    ticks = [*(place[e] for e in budgets), place[math.inf]]
    names = [*(f"{e:g}" for e in budgets), "no privacy"]
    plot.set_xticks(ticks, names)
    if budgets:
        cut = (place[budgets[-1]] + place[math.inf]) / 2
        plot.axvline(cut, color=style.GREY, linewidth=0.8, linestyle=(0, (2, 3)))


def _labels(plot: Axes, ends: list[tuple[float, float, str, str]]) -> None:
    """The name of each line at its end, moved apart where two would meet."""
    low, high = plot.get_ylim()
    order = sorted(ends, key=lambda end: end[1])
    at = spread([(end[1] - low) / (high - low) for end in order], _GAP)
    right = plot.get_xlim()[1]
    for (x, y, name, color), share in zip(order, at, strict=True):
        where = low + share * (high - low)
        line = {"arrowstyle": "-", "color": color, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 5}
        written = plot.annotate(name, (x, y), (right, where), arrowprops=line, annotation_clip=False)
        written.set(size=style.TEXT, color=color, ha="left", va="center")


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Places from 0 to 1 in rising order, each near the one wanted, `gap` apart where there is room.

    Neighbours that are too close become a block around the mean of what they want.
    """
    blocks: list[list[float]] = []
    for value in wanted:
        blocks.append([value])
        while len(blocks) > 1 and _start(blocks[-1], gap) < _start(blocks[-2], gap) + gap * len(
            blocks[-2]
        ):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    return [_start(block, gap) + gap * number for block in blocks for number in range(len(block))]


def _start(block: Sequence[float], gap: float) -> float:
    height = gap * (len(block) - 1)
    return max(0.0, min(1.0 - height, sum(block) / len(block) - height / 2))


def _title(found: Frontier) -> str:
    private = [
        (point, name)
        for name, line in found.lines.items()
        for point in line
        if math.isfinite(point.epsilon)
    ]
    if not private:
        return f"Without privacy: {found.metric} of each method"
    least = min(point.epsilon for point, _ in private)
    best, name = max(
        ((point, name) for point, name in private if point.epsilon == least),
        key=lambda one: one[0].mean,
    )
    spread = f" ({best.low:.3f} to {best.high:.3f})" if found.seeds > 1 else ""
    return f"At ε = {least:g}, {name} does best on average: {found.metric} {best.mean:.3f}{spread}"


def _caption(found: Frontier) -> str:
    times = (
        "one run each"
        if found.seeds == 1
        else f"mean of {found.seeds} runs each, from lowest to highest"
    )
    things = "records" if found.unit == "example" else "people"
    said = (
        f"{found.model}, about {found.trained:,} {things} for training and {found.tested:,} held out; "
    )
    said += f"{times}; "
    said += "noise in the metric included. "
    if found.always is not None:
        said += f"Dashes: always answering the most frequent class, {found.always:.3f}. "
    if found.epsilon is not None:
        up = math.ceil(found.epsilon * 100) / 100
        said += f"All private runs together cost ε ≤ {up:.2f}. "
    if any(math.isinf(point.epsilon) for line in found.lines.values() for point in line):
        said += "Hollow marks are NOT PRIVATE."
    return said.strip()
