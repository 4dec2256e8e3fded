"""Exposure of planted secrets, by how often they were repeated in the training text.

The figure of Carlini et al. 2019. It shows numbers only; knows no model and no secret.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sourdine import checks
from sourdine.errors import InputError
from sourdine.report import style

Floats = npt.NDArray[np.float64]
_ROW = 1.55
"""Inches of one histogram."""


@dataclass(frozen=True)
class Exposures:
    """Exposures in bits for each number of repetitions, 0 for secrets that were never put in.

    most: the bits of a secret, log2 of its candidates. model: what was attacked, in a few words.
    """

    bits: Mapping[int, Sequence[float]]
    most: float
    model: str

    def __post_init__(self) -> None:
        checks.positive("most", self.most)
        if not self.bits or not all(self.bits.values()):
            raise InputError("there is nothing to draw: a number of repetitions has no exposure.")
        every = [one for found in self.bits.values() for one in found]
        if not all(0 <= one <= self.most * (1 + 1e-9) for one in every):
            raise InputError(
                f"an exposure is outside of 0 to {self.most:.4g}, the bits of a secret; give those of "
                "secrets with that many candidates."
            )


def draw(found: Exposures, path: Path) -> None:
    """Writes the figure, as PNG or SVG by the name of the file."""
    with style.house():
        figure = exposures(found)
        if path.suffix == ".svg":
            figure.savefig(path, metadata={"Date": None})
        else:
            figure.savefig(path, dpi=style.DPI)


def exposures(found: Exposures) -> Figure:
    """One histogram for each number of repetitions, the fewest above, over the same bits."""
    rows = sorted(found.bits)
    taller = max(0.0, _ROW * len(rows) + 1.7 - style.HEIGHT)
    figure = style.canvas(_title(found), _caption(found), taller=taller, margin=1.35)
    figure.subplots_adjust(hspace=0.28)
    edges = np.arange(0.0, math.ceil(found.most) + 1.0)
    high = 1.12 * max(
        max(0.5 * len(bits), float(np.histogram(bits, edges)[0].max())) for bits in found.bits.values()
    )
    for place, times in enumerate(rows, start=1):
        last = place == len(rows)
        name = "exposure in bits" if last else ""
        plot = style.axes(figure, (len(rows), 1), place, x=name, y="secrets")
        plot.tick_params(labelbottom=last)
        _histogram(plot, found.bits[times], edges, found.most)
        plot.set(xlim=(0, edges[-1]), ylim=(0, high))
        plot.xaxis.set_major_locator(MaxNLocator(10, integer=True))
        plot.yaxis.set_major_locator(MaxNLocator(3, integer=True, min_n_ticks=1))
        style.label(plot, (edges[-1], high / 2), _times(times), style.BLUE, by=(10, 0))
    return figure


def _histogram(plot: Axes, bits: Sequence[float], edges: Floats, most: float) -> None:
    """Bars of one bit; dotted, what secrets that the model never met would give at most on average."""
    plot.hist(bits, edges.tolist(), color=style.BLUE, alpha=0.85, rwidth=0.9)
    beyond = np.where(edges < most, 2.0**-edges, 0.0)
    plot.stairs(-np.diff(beyond) * len(bits), edges, color=style.INK, linestyle=":", linewidth=1.4)
    plot.axvline(most, color=style.ORANGE, linestyle="--", linewidth=1.2)


def _times(times: int) -> str:
    return {0: "never put in", 1: "put in once"}.get(times, f"repeated {times} times")


def _title(found: Exposures) -> str:
    times = max(found.bits)
    median = statistics.median(found.bits[times])
    begun = {0: "Never put in", 1: "Put in once"}.get(times, f"Repeated {times} times")
    return f"{begun}, a secret gives away {median:.1f} of its {found.most:.1f} bits (median)"


def _caption(found: Exposures) -> str:
    counts = sorted({len(bits) for bits in found.bits.values()})
    many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    noun = "secret" if counts[-1] == 1 else "secrets"
    return (
        f"{found.model}; {many} planted {noun} in each row. Dashed: all bits of a secret, so that the "
        "first guess is right. Dotted: secrets that the model never met, of which a share of at most "
        "2⁻ᵉ has exposure e or more."
    )
