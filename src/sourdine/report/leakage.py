"""How far a model's members can be told from others: the ROC curve on log axes, and score densities.

Shows rates and smooth densities, no score of a record; knows no attack.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from sourdine.errors import InputError
from sourdine.report import style

Floats = np.ndarray[Any, np.dtype[np.float64]]
_INKS = (
    *((style.BLUE, "-"), (style.ORANGE, "-"), (style.GREEN, "-"), (style.PURPLE, "-")),
    *((style.AMBER, "-"), (style.INK, "-"), (style.BLUE, ":"), (style.ORANGE, ":"), (style.GREEN, ":")),
)
_GAP = 0.058
"""Distance of two names in the key, as a share of the height of the axes."""
_SMALLEST = 1e-4


@dataclass(frozen=True, eq=False)
class Curve:
    """True-positive rates at rising false-positive rates, with the ends of their intervals."""

    fpr: Floats
    tpr: Floats
    low: Floats
    high: Floats
    auc: float


@dataclass(frozen=True, eq=False)
class Density:
    """Densities of the scores of members and others over the same grid."""

    grid: Floats
    members: Floats
    others: Floats


@dataclass(frozen=True, eq=False)
class Leakage:
    """What attacks found, by name.

    best: the attack whose band is drawn. trusted: the false-positive rate below which there are too few
    others for a rate to mean anything. finding, caption: what stands above and below.
    """

    curves: Mapping[str, Curve]
    densities: Mapping[str, Density]
    best: str
    members: int
    others: int
    confidence: float
    trusted: float
    finding: str
    caption: str = ""
    things: str = "records"

    def __post_init__(self) -> None:
        if self.best not in self.curves:
            raise InputError("there is nothing to draw: no attack has a curve.")


def draw(figure: Figure, path: Path) -> None:
    """Writes a figure, as PNG or SVG by the name of the file."""
    if path.suffix == ".svg":
        figure.savefig(path, metadata={"Date": None})
    else:
        figure.savefig(path, dpi=style.DPI)


def roc(found: Leakage) -> Figure:
    """The curves on log axes, where a threat shows at its left end; the band is that of the best."""
    caption = (
        f"{_caption(found)} Band: {found.confidence:.0%} Clopper-Pearson interval of {found.best}, at "
        "each false-positive rate by itself."
    )
    figure = style.canvas(found.finding, caption, margin=2.2)
    plot = style.axes(figure, x="false-positive rate", y="true-positive rate")
    least = max(_SMALLEST, 1 / found.others)
    floor = min(least, 1 / found.members)
    x = np.geomspace(least, 1, 200)
    plot.plot(x, x, color=style.GREY, linewidth=1.2, linestyle="--")
    ends: list[tuple[float, str, str, str]] = []
    order = sorted(found.curves, key=lambda name: -found.curves[name].auc)
    for name, (color, dash) in zip(order, _INKS, strict=False):
        curve = found.curves[name]
        seen = curve.fpr >= least * (1 - 1e-9)
        fpr, tpr = curve.fpr[seen], np.maximum(curve.tpr[seen], floor / 2)
        if name == found.best:
            band = np.maximum(curve.low[seen], floor / 2), np.maximum(curve.high[seen], floor / 2)
            plot.fill_between(fpr, *band, color=color, alpha=0.16, linewidth=0, step="post")
        width = style.LINE if name == found.best else 1.3
        plot.step(fpr, tpr, where="post", color=color, linestyle=dash, linewidth=width)
        ends.append((curve.auc, f"{name}  {curve.auc:.3f}", color, dash))
    plot.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(floor, 1.12))
    for axis in (plot.xaxis, plot.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
        axis.set_minor_locator(NullLocator())
    if least < found.trusted < 1:
        plot.axvspan(least, found.trusted, color=style.FAINT, alpha=0.35, linewidth=0, zorder=0)
        said = "too few others to tell"  # above the axes, where no curve is
        style.label(plot, (least, 1.12), said, style.GREY, by=(0, 7), size=style.SMALL)
    _key(plot, [*ends, (0.5, "chance  0.500", style.GREY, "--")])
    return figure


def densities(found: Leakage) -> Figure:
    """The scores of members and of others, one plot for each attack that has any spread."""
    shown = [name for name, one in found.densities.items() if one.members.any() and one.others.any()]
    if not shown:
        raise InputError("there is nothing to draw: every attack gives all records one score.")
    columns = 1 if len(shown) == 1 else 2 if len(shown) <= 4 else 3
    rows = math.ceil(len(shown) / columns)
    caption = (
        f"{_caption(found)} Scores of all {found.things} of a side, smoothed; high speaks for a member."
    )
    figure = style.canvas(found.finding, caption, taller=max(0.0, 2.1 * (rows - 2)), headed=True)
    figure.subplots_adjust(wspace=0.18, hspace=0.5)
    for place, name in enumerate(shown, 1):
        one = found.densities[name]
        below = place > len(shown) - columns
        title = f"{name}, AUC {found.curves[name].auc:.3f}"
        plot = style.axes(figure, (rows, columns), place, title=title, x="score" if below else "")
        for values, color, dash in ((one.others, style.GREY, "--"), (one.members, style.BLUE, "-")):
            plot.plot(one.grid, values, color=color, linestyle=dash, linewidth=1.6)
            plot.fill_between(one.grid, 0, values, color=color, alpha=0.13, linewidth=0)
        plot.set_ylim(bottom=0)
        plot.set_yticks([])
        plot.spines["left"].set_visible(False)
        if place == 1:
            _name(plot, one)
    return figure


def _name(plot: Axes, one: Density) -> None:
    """Which line is whose, in the corner that the curves leave free."""
    middle = float(np.mean(one.grid))
    heavy = max(one.members, one.others, key=lambda values: float(values.max()))
    right = float(one.grid[int(np.argmax(heavy))]) < middle
    at, align = (0.98, "right") if right else (0.02, "left")
    for line, (name, color) in enumerate((("members", style.BLUE), ("others", style.GREY))):
        written = plot.text(at, 0.9 - 0.14 * line, name, transform=plot.transAxes)
        written.set(size=style.SMALL, color=color, ha=align, va="center", weight="bold")


def _key(plot: Axes, ends: Sequence[tuple[float, str, str, str]]) -> None:
    """Names right of the axes by falling AUC: curves meet at (1, 1), where no label could tell them."""
    head = plot.text(1.09, 0.97, "AUC", transform=plot.transAxes)
    head.set(size=style.SMALL, color=style.GREY, ha="left", va="center")
    for place, (_, text, color, dash) in enumerate(sorted(ends, key=lambda end: -end[0]), 1):
        at = 0.97 - _GAP * place
        line = {"color": color, "linestyle": dash, "linewidth": 1.6, "clip_on": False}
        plot.plot([1.03, 1.075], [at, at], transform=plot.transAxes, **line)  # type: ignore[arg-type]
        written = plot.text(1.09, at, text, transform=plot.transAxes)
        written.set(size=style.TEXT, color=color, ha="left", va="center")


def _caption(found: Leakage) -> str:
    counted = "" if found.things == "records" else f" ({found.things})"
    return f"{found.members:,} members, {found.others:,} others{counted}. {found.caption}".strip()
