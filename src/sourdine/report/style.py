"""How the figures look: one palette, three sizes of text, and axes without ornament.

Every size and colour is stated here and passed explicitly, so that a figure looks the same whatever
matplotlibrc its reader has. Only matplotlib's object interface is used: no pyplot, no open windows.
"""

from __future__ import annotations

import textwrap
from contextlib import AbstractContextManager

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# After Okabe and Ito, told apart with every common form of colour blindness; purple and amber are
# darker than theirs, so that text in them can be read on white.
BLUE, ORANGE, GREEN, PURPLE, AMBER = "#0072B2", "#D55E00", "#009E73", "#A6508A", "#B07A00"
INK, GREY, FAINT = "#222222", "#6B6B6B", "#DDDDDD"

TITLE, TEXT, SMALL = 13.0, 10.0, 8.5  # sizes of text, in points
LINE = 2.0
WIDTH, HEIGHT = 9.0, 5.6  # inches
DPI = 150

_EDGE = 0.16  # inches between the rim of the figure and its texts
_TITLE_CHARACTERS, _CAPTION_CHARACTERS = 84, 142  # what fits in WIDTH
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def house() -> AbstractContextManager[None]:
    """matplotlib's defaults and a fixed salt for the names inside an SVG, until the context ends."""
    return matplotlib.style.context(["default", {"svg.hashsalt": "sourdine"}])


def canvas(
    title: str, caption: str, *, taller: float = 0.0, margin: float = 0.0, headed: bool = False
) -> Figure:
    """An empty figure with its finding above, its setting below, and room for axes between.

    In inches, `taller` is added to the height and `margin` kept free right of the axes, for labels at
    the ends of curves; `headed` leaves room for titles of single plots.
    """
    height = HEIGHT + taller
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    finding, setting = _lines(title, _TITLE_CHARACTERS), _lines(caption, _CAPTION_CHARACTERS)
    left, low = _EDGE / WIDTH, _EDGE / height
    above = figure.text(left, 1 - low, "\n".join(finding), size=TITLE, weight="bold", color=INK)
    above.set(ha="left", va="top", linespacing=1.25)
    below = figure.text(left, low, "\n".join(setting), size=SMALL, color=GREY)
    below.set(ha="left", va="bottom", linespacing=1.3)
    figure.subplots_adjust(
        left=0.75 / WIDTH,
        right=1 - (0.2 + margin) / WIDTH,
        top=1 - (0.5 if headed else 0.32) / height - 0.24 * len(finding) / height,
        bottom=(0.75 + 0.16 * len(setting)) / height,
    )
    return figure


def _lines(text: str, most: int) -> list[str]:
    """As few lines of at most `most` characters as will do, of about equal length."""
    for sign in "=≤":  # a formula is never broken at its relation
        text = text.replace(f" {sign} ", f"\u00a0{sign}\u00a0")
    fewest = len(textwrap.wrap(text, most))
    return next(
        lines
        for width in range(len(text) // fewest, most + 1)
        if len(lines := textwrap.wrap(text, width)) == fewest
    )


def axes(
    figure: Figure,
    grid: tuple[int, int] = (1, 1),
    place: int = 1,
    *,
    title: str = "",
    x: str = "",
    y: str = "",
    like: Axes | None = None,
) -> Axes:
    """One plot of a figure: a light grid, no spines above and at the right.

    `like` is a plot with which it shares the limits of both axes.
    """
    plot = figure.add_subplot(*grid, place, sharex=like, sharey=like)
    plot.set_title(title, size=TEXT, color=INK, loc="left", pad=8)
    plot.set_xlabel(x, size=TEXT, color=INK)
    plot.set_ylabel(y, size=TEXT, color=INK)
    plot.tick_params(labelsize=SMALL, labelcolor=INK, color=GREY, which="both")
    plot.grid(visible=True, which="major", color=FAINT, linewidth=0.6)
    plot.set_axisbelow(True)
    for side in ("top", "right"):
        plot.spines[side].set_visible(False)
    for side in ("bottom", "left"):
        plot.spines[side].set_color(GREY)
    return plot


def label(
    plot: Axes,
    at: tuple[float, float],
    text: str,
    color: str = INK,
    *,
    by: tuple[float, float] = (6, 0),
    align: str = "left",
    size: float = TEXT,
) -> None:
    """Text beside a point of the data, shifted `by` so many typographic points."""
    written = plot.annotate(text, at, by, textcoords="offset points", annotation_clip=False)
    written.set(size=size, color=color, ha=align, va="center", linespacing=1.25)


def pointer(
    plot: Axes, at: tuple[float, float], text_at: tuple[float, float], text: str, color: str = INK
) -> None:
    """Text away from what it names, at the end of a thin line to it."""
    line = {"arrowstyle": "-", "color": color, "linewidth": 0.8, "relpos": (0.0, 0.5)}
    written = plot.annotate(text, at, text_at, arrowprops=line)
    written.set(size=TEXT, color=color, ha="left", va="center", linespacing=1.3)


def scientific(value: float) -> str:
    """A small or large number as it is written by hand: 10⁻⁵, 1.6·10⁻⁴."""
    digits, exponent = f"{value:.1e}".split("e")
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPT)
    return power if digits == "1.0" else f"{digits}·{power}"
