"""The figures that `sourdine figures` draws: what the accounting says, recomputed each time.

Every number in them comes from `sourdine.accounting`; the figures of a single release are in noise.py.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sourdine.accounting import (
    Promise,
    advanced,
    amplified,
    basic,
    curve,
    gaussian_sigma,
    moments_epsilon,
)
from sourdine.accounting.normal import Array
from sourdine.accounting.rdp import MOMENTS
from sourdine.errors import InputError
from sourdine.events import GaussianEvent, PoissonEvent, ShuffledEvent
from sourdine.report import local, noise, style

_SLACKS = (0.1, 0.25, 0.5, 0.75, 0.9)  # shares of delta tried as the slack of advanced composition


def accountants() -> Figure:
    """Epsilon against steps by four accountants, in the setting of Abadi et al. 2016.

    Basic and advanced composition (Dwork et al. 2006; Dwork, Rothblum, Vadhan 2010) start from the
    exact (epsilon, delta) of one sampled step; the moments accountant is Abadi's, with moments up to
    32; the last is our curve, composed numerically.
    """
    rate, sigma, delta, most = 0.01, 4.0, 1e-5, 10_000
    step = PoissonEvent(rate, GaussianEvent(sigma))
    one = curve(step)

    def promise(count: int, share: float) -> Promise:
        """One step at an equal part of a share of delta."""
        return Promise(one.epsilon_upper(share * delta / count), share * delta / count)

    def by_basic(count: int) -> float:
        return basic([promise(count, 1.0)] * count).epsilon

    def by_advanced(count: int) -> float:
        return min(advanced(promise(count, 1 - s), count, s * delta).epsilon for s in _SLACKS)

    def by_moments(count: int) -> float:
        return moments_epsilon(count * step, delta)

    def by_curve(count: int) -> float:
        return curve(count * step).epsilon_upper(delta)

    steps = [round(n) for n in np.geomspace(10, most, 16).tolist()]
    costs = [[cost(n) for n in steps] for cost in (by_basic, by_advanced, by_moments, by_curve)]
    figure = style.canvas(
        f"One training run, four accountants: ε falls from {costs[0][-1]:.0f} to {costs[-1][-1]:.3f} "
        "as they learn more about the mechanism",
        f"Abadi et al. 2016: Poisson rate {rate:g}, noise multiplier {sigma:g}. Basic: one step's "
        "exact ε at δ/steps. Advanced: part of δ is slack, the best of "
        f"{', '.join(f'{s:.0%}' for s in _SLACKS)}; the rest goes to the steps in equal parts. "
        "Loss distribution: the proven upper end; its interval is narrower than the line.",
        margin=1.8,
    )
    plot = style.axes(figure, x="steps", y=f"ε at δ = {style.scientific(delta)}")
    plot.set_xscale("log")
    plot.set_yscale("log")
    names = (
        "basic composition",
        "advanced composition",
        "moments accountant",
        "privacy loss distribution",
    )
    colors = (style.ORANGE, style.AMBER, style.GREEN, style.BLUE)
    for name, cost, color, up in zip(names, costs, colors, (0, 0, 15, -15), strict=True):
        plot.plot(steps, cost, color=color, linewidth=style.LINE)
        plot.plot(steps[-1], cost[-1], "o", color=color, markersize=5, clip_on=False)
        style.label(plot, (steps[-1], cost[-1]), f"{name}\n{cost[-1]:.3g}", color, by=(9, up))
    highest = MOMENTS[-1] - 1
    floor = math.log(1 / delta) / highest
    words = f"never below ln(1/δ)/{highest:.0f} = {floor:.2f}"
    style.label(plot, (35, floor), words, style.GREEN, by=(0, -9), size=style.SMALL)
    plot.set_xlim(steps[0], steps[-1])
    return figure


def amplification() -> Figure:
    """Epsilon of one step on a Poisson sample, against the rate.

    Left: ln(1 + rate (e^epsilon - 1)) from any epsilon-DP mechanism (Li, Qardaji, Su 2012). Right:
    Gaussian noise calibrated to (epsilon, delta), its exact curve after sampling at the same delta.
    """
    bases, delta = (8.0, 4.0, 2.0, 1.0, 0.5), 1e-5
    colors = (style.ORANGE, style.AMBER, style.GREEN, style.BLUE, style.PURPLE)
    rates = np.geomspace(1e-3, 1, 25).tolist()
    small, large = (amplified(Promise(base), 0.01).epsilon for base in (1.0, 8.0))
    figure = style.canvas(
        f"Sampling 1% of the records turns ε = 1 into {small:.3f}, but ε = 8 only into {large:.2f}",
        "One step on a Poisson sample. Left: ln(1 + rate (exp(ε) − 1)) (Li, Qardaji, Su 2012). Right: "
        f"noise calibrated to ε at δ = {style.scientific(delta)} without sampling, then the exact ε of "
        "the sampled step at the same δ. Dotted: slope 1, what ε = 1 would cost if the gain were "
        "proportional.",
        margin=0.45,
        headed=True,
    )

    def pure(base: float) -> list[float]:
        return [amplified(Promise(base), rate).epsilon for rate in rates]

    def gaussian(base: float) -> list[float]:
        event = GaussianEvent(gaussian_sigma(base, delta))
        return [curve(PoissonEvent(rate, event)).epsilon_upper(delta) for rate in rates]

    titles = ("Any ε-DP mechanism", f"Gaussian mechanism at δ = {style.scientific(delta)}")
    plot: Axes | None = None
    for place, cost in enumerate((pure, gaussian), 1):
        y = "ε of one sampled step" if place == 1 else ""
        plot = style.axes(
            figure, (1, 2), place, title=titles[place - 1], x="sampling rate", y=y, like=plot
        )
        plot.set_xscale("log")
        plot.set_yscale("log")
        plot.plot(rates, rates, color=style.GREY, linewidth=1.2, linestyle=":")
        for base, color in zip(bases, colors, strict=True):
            plot.plot(rates, cost(base), color=color, linewidth=style.LINE)
            style.label(plot, (1.0, base), f"ε = {base:g}", color)
        plot.set_xlim(rates[0], rates[-1])
        plot.set_ylim(1e-4, 12)
        style.pointer(plot, (0.025, 0.025), (0.055, 0.0016), "slope 1: ε = rate", style.GREY)
    figure.subplots_adjust(wspace=0.34)
    return figure


def shuffling() -> Figure:
    """Poisson lots against shuffled batches over one epoch, epsilon against the noise.

    Shuffled batches cost at most one Gaussian release and at least what the threshold attack shows
    (Chua et al. 2024); the truth lies in the shaded gap.
    """
    delta = 1e-6
    sigmas = np.linspace(0.4, 2.0, 17)
    panels = {batches: _epoch(batches, sigmas, delta) for batches in (100, 1000)}
    at_one, label_at = (int(np.abs(sigmas - sigma).argmin()) for sigma in (1.0, 1.3))
    lots, least, _ = panels[1000]
    figure = style.canvas(
        f"Shuffled batches give away at least ε = {least[at_one]:.2f} "
        f"where Poisson lots of the same size cost {lots[at_one]:.2f}",
        f"One epoch of T batches, δ = {style.scientific(delta)}, zero-out; the title is T = 1,000 at "
        "σ = 1. Poisson: T steps at rate 1/T, the proven upper end. Shuffled: at most one Gaussian "
        "release without amplification, at least what the threshold attack of Chua et al. 2024 shows.",
        headed=True,
    )
    plot: Axes | None = None
    for place, (batches, (lots, least, most)) in enumerate(panels.items(), 1):
        y = f"ε at δ = {style.scientific(delta)}" if place == 1 else ""
        title = f"T = {batches:,} batches"
        plot = style.axes(figure, (1, 2), place, title=title, x="noise multiplier σ", y=y, like=plot)
        plot.set_yscale("log")
        plot.fill_between(sigmas, least, most, color=style.ORANGE, alpha=0.18, linewidth=0)
        plot.plot(sigmas, most, color=style.ORANGE, linewidth=style.LINE)
        plot.plot(sigmas, least, color=style.ORANGE, linewidth=style.LINE, linestyle="--")
        plot.plot(sigmas, lots, color=style.BLUE, linewidth=style.LINE)
        plot.set_xlim(sigmas[0], sigmas[-1])
        for values, words, by, align in (
            (most, "shuffled, at most", (0, 13), "left"),
            (least, "shuffled,\nat least", (-9, -11), "right"),
        ):
            at = (sigmas[label_at], values[label_at])
            style.label(plot, at, words, style.ORANGE, by=by, align=align)
        at = (sigmas[at_one], lots[at_one])
        style.label(plot, at, "Poisson lots", style.BLUE, by=(-10, -10), align="right")
    figure.subplots_adjust(wspace=0.2)
    return figure


def _epoch(batches: int, sigmas: Array, delta: float) -> tuple[Array, Array, Array]:
    """Poisson's upper end, shuffling's lower and upper end, for each sigma."""
    steps = [batches * PoissonEvent(1 / batches, GaussianEvent(s)) for s in sigmas.tolist()]
    lots = [curve(event).epsilon_upper(delta) for event in steps]
    shuffled = [curve(ShuffledEvent(s, batches)).epsilon(delta) for s in sigmas.tolist()]
    return np.array(lots), np.array([i.lower for i in shuffled]), np.array([i.upper for i in shuffled])


FIGURES: dict[str, Callable[[], Figure]] = {
    "densities": noise.densities,
    "privacy-loss": noise.privacy_loss,
    "accountants": accountants,
    "amplification": amplification,
    "attributes": noise.attributes,
    "shuffling": shuffling,
    "delta-meaning": noise.delta_meaning,
    "randomized-response": local.randomized_response,
    "local-central": local.local_central,
    "smokers": local.smokers,
}


def draw(names: Sequence[str], folder: Path) -> list[Path]:
    """Write NAME.png and NAME.svg for each name into the folder, and return their paths.

    The bytes of an SVG depend on nothing but the figure and the versions of matplotlib and its fonts.
    Raises InputError for a name that is not in FIGURES, before anything is drawn.
    """
    names = list(dict.fromkeys(names))
    for name in names:
        if name not in FIGURES:
            raise InputError(_unknown(name))
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with style.house():
        for name in names:
            figure = FIGURES[name]()
            written += [folder / f"{name}.png", folder / f"{name}.svg"]
            figure.savefig(written[-2], dpi=style.DPI)
            figure.savefig(written[-1], metadata={"Date": None})
    return written


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, FIGURES, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return f"there is no figure {name!r}{hint} There are: {', '.join(FIGURES)}."
