"""Figures of a single release: what noise hides, and what epsilon and delta say about it."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sourdine.accounting import PrivacyLoss, gaussian_sigma, gaussian_sigma_classic
from sourdine.accounting.normal import Array
from sourdine.events import GaussianEvent
from sourdine.report import style

_EPSILON, _DELTA = 1.0, 1e-5
_COUNTS = (100, 101)  # the neighbours in `densities`


def densities() -> Figure:
    """Laplace and Gaussian noise around two neighbouring counts, and the ratio of the densities.

    Both mechanisms are calibrated to the same epsilon, the Gaussian by Balle and Wang 2018. Pure DP
    bounds the ratio everywhere (Dwork et al. 2006), approximate DP only up to delta.
    """
    scale, sigma = 1 / _EPSILON, gaussian_sigma(_EPSILON, _DELTA)
    tail = PrivacyLoss.of(GaussianEvent(sigma)).tail(_EPSILON)
    figure = style.canvas(
        "Laplace noise bounds the ratio of the densities everywhere, "
        "Gaussian noise everywhere but in its far tails",
        f"A count of {_COUNTS[0]} and its neighbour {_COUNTS[1]}, each mechanism calibrated to "
        f"ε = {_EPSILON:g} (Gaussian: δ = {style.scientific(_DELTA)}, analytic calibration). "
        r"Shaded: ratios beyond $e^{\pm ε}$, which pure ε-DP rules out.",
        taller=0.6,
        headed=True,
    )
    x = np.linspace(_COUNTS[0] - 19.5, _COUNTS[1] + 19.5, 1601)
    apart = [x - count for count in _COUNTS]
    spread = sigma * math.sqrt(2 * math.pi)
    laplace = [np.exp(-np.abs(a) / scale) / (2 * scale) for a in apart]
    gaussian = [np.exp(-((a / sigma) ** 2) / 2) / spread for a in apart]
    titles = (
        f"Laplace, scale {scale:g}: standard deviation {math.sqrt(2) * scale:.2f}",
        f"Gaussian: standard deviation {sigma:.2f}",
    )
    notes = (
        "never beyond,\nwhatever the answer",
        f"above $e^{{ε}}$ with probability\n{style.scientific(tail)} if the count is {_COUNTS[0]}",
    )
    upper: Axes | None = None
    lower: Axes | None = None
    for column, pair in enumerate((laplace, gaussian)):
        y = "" if column else "density of the answer"
        upper = style.axes(figure, (2, 2), 1 + column, title=titles[column], y=y, like=upper)
        _neighbours(upper, x, pair)
        y = "" if column else f"ratio, {_COUNTS[0]} over {_COUNTS[1]}"
        lower = style.axes(figure, (2, 2), 3 + column, x="released answer", y=y, like=lower)
        _ratio(lower, x, pair[0] / pair[1])
        at = (_COUNTS[1] + 0.5, math.exp(1.5 * _EPSILON))
        style.label(lower, at, notes[column], size=style.SMALL, by=(0, 0))
    figure.subplots_adjust(hspace=0.22, wspace=0.16)
    return figure


def _neighbours(plot: Axes, x: Array, pair: list[Array]) -> None:
    for count, density, color, line in zip(
        _COUNTS, pair, (style.BLUE, style.ORANGE), ("-", "--"), strict=True
    ):
        plot.plot(x, density, color=color, linestyle=line, linewidth=style.LINE)
        height = 0.85 * float(density.max())
        side = x[density >= height]
        name = f"count {count}"
        if count == _COUNTS[0]:
            style.label(plot, (side[0], height), name, color, by=(-16, 0), align="right")
        else:
            style.label(plot, (side[-1], height), name, color, by=(16, 0))


def _ratio(plot: Axes, x: Array, ratio: Array) -> None:
    plot.set_yscale("log")
    plot.plot(x, ratio, color=style.INK, linewidth=style.LINE)
    for sign in (-1, 1):
        bound, rim = math.exp(sign * _EPSILON), math.exp(2 * sign * _EPSILON)
        plot.axhline(bound, color=style.GREY, linewidth=0.9, linestyle=":")
        plot.axhspan(min(bound, rim), max(bound, rim), color=style.ORANGE, alpha=0.1, linewidth=0)
    names = {-2: "$e^{-2ε}$", -1: "$e^{-ε}$", 0: "1", 1: "$e^{ε}$", 2: "$e^{2ε}$"}
    plot.set_yticks([math.exp(power * _EPSILON) for power in names], list(names.values()))
    plot.minorticks_off()
    plot.set_ylim(math.exp(-2 * _EPSILON), math.exp(2 * _EPSILON))


def privacy_loss() -> Figure:
    """The privacy loss of the Gaussian mechanism with mu = 1; its delta at epsilon 1 and its tail.

    delta = E[(1 - e^(epsilon - L))_+] (after Balle and Wang 2018, Theorem 5); P(L > epsilon) <= delta
    is sufficient for (epsilon, delta)-DP, not equivalent to it.
    """
    mu, epsilon = 1.0, 1.0
    loss = PrivacyLoss.of(GaussianEvent(1 / mu))
    tail, delta = loss.tail(epsilon), loss.delta(epsilon)
    figure = style.canvas(
        f"The true δ is {delta:.3f}, not the tail's {tail:.3f}: "
        "a loss above ε counts only for its excess",
        f"Gaussian mechanism with μ = sensitivity / standard deviation = {mu:g} at ε = {epsilon:g}. "
        "P(L > ε) ≤ δ is sufficient for (ε, δ)-DP, not equivalent to it: "
        "δ = E[max(0, 1 − exp(ε − L))].",
    )
    edges = np.linspace(mu**2 / 2 - 3.6 * mu, mu**2 / 2 + 3.6 * mu, 1441)
    middle, width = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    p, q = loss.histogram(edges)
    density, excess = p / width, (p - math.exp(epsilon) * q) / width
    beyond = middle > epsilon
    peak, after = float(density.max()), middle[beyond]
    plot = style.axes(figure, x="privacy loss L = ln (P(x) / Q(x)) with x drawn from P", y="density")
    plot.plot(middle, density, color=style.BLUE, linewidth=style.LINE)
    plot.fill_between(after, excess[beyond], density[beyond], color=style.BLUE, alpha=0.16, linewidth=0)
    plot.fill_between(after, 0, excess[beyond], color=style.ORANGE, alpha=0.75, linewidth=0)
    plot.axvline(epsilon, color=style.INK, linewidth=1, linestyle=":")
    plot.set_xlim(edges[0], edges[-1])
    plot.set_ylim(0, 1.12 * peak)
    style.label(plot, (epsilon, 1.08 * peak), f"ε = {epsilon:g}")
    style.label(plot, (-0.35, 0.75 * peak), "p(l), density of L", style.BLUE, align="right", by=(-6, 0))
    words = f"tail P(L > ε) = {tail:.3f}\nboth shaded parts together"
    style.pointer(plot, (1.25, 0.24), (2.2, 0.3), words, style.BLUE)
    words = f"δ = {delta:.3f}\nthe darker part: the area\nunder p(l) (1 − exp(ε − l))"
    style.pointer(plot, (1.9, 0.05), (2.4, 0.18), words, style.ORANGE)
    return figure


def attributes() -> Figure:
    """Standard deviation of Laplace and Gaussian noise on the sums of d attributes at once.

    One record with d attributes in [0, 1] moves the sums by d in l1 and by sqrt(d) in l2. Laplace noise
    has deviation sqrt(2) d / epsilon, Gaussian noise sqrt(d) sigma: classic (Dwork and Roth 2014,
    Theorem A.1) and exact (Balle and Wang 2018).
    """
    laplace, exact = math.sqrt(2) / _EPSILON, gaussian_sigma(_EPSILON, _DELTA)
    # The classic theorem asks for epsilon < 1; the float next to 1 serves, for it implies epsilon = 1.
    classic = gaussian_sigma_classic(math.nextafter(_EPSILON, 0.0), _DELTA)
    win = {sigma: _first_win(laplace, sigma) for sigma in (exact, classic)}
    figure = style.canvas(
        f"From {win[exact]} attributes on, Gaussian noise is smaller than Laplace noise at the same ε",
        "Sums of d attributes in [0, 1], all released: sensitivity d in l1, √d in l2. "
        f"ε = {_EPSILON:g}; δ = {style.scientific(_DELTA)} for Gaussian, 0 for Laplace. "
        "Classic: √(2 ln(1.25/δ)) / ε. Exact: the analytic calibration of Balle and Wang 2018.",
        margin=1.35,
    )
    plot = style.axes(figure, x="attributes d", y="standard deviation of the noise on each sum")
    plot.set_xscale("log")
    plot.set_yscale("log")
    d = np.geomspace(1, 1000, 100)
    for deviation, name, color, line, up in (
        (laplace * d, f"Laplace\n{laplace:.2f} d", style.ORANGE, "-", 0),
        (classic * np.sqrt(d), f"Gaussian, classic\n{classic:.2f} √d", style.BLUE, "--", 13),
        (exact * np.sqrt(d), f"Gaussian, exact\n{exact:.2f} √d", style.BLUE, "-", -11),
    ):
        plot.plot(d, deviation, color=color, linestyle=line, linewidth=style.LINE)
        style.label(plot, (d[-1], deviation[-1]), name, color, by=(8, up))
    for sigma, name, by, align in (
        (exact, "exact", (8, -16), "left"),
        (classic, "classic", (-8, 16), "right"),
    ):
        at = (win[sigma], sigma * math.sqrt(win[sigma]))
        plot.plot(*at, "o", color=style.INK, markersize=6)
        style.label(plot, at, f"{name}: smaller from d = {win[sigma]}", by=by, align=align)
    plot.set_xlim(d[0], d[-1])
    return figure


def _first_win(laplace: float, sigma: float) -> int:
    """The smallest d with sigma sqrt(d) < laplace d."""
    return math.floor((sigma / laplace) ** 2) + 1


def delta_meaning() -> Figure:
    """The chance that a mechanism which publishes each record with probability delta publishes any.

    Such a mechanism is (0, delta)-DP. Over n records the chance is 1 - (1 - delta)^n, at n = 1/delta
    nearly 1 - 1/e: not "about 1", as is often said.
    """
    deltas = (1e-4, 1e-5, 1e-6, 1e-8)
    colors = (style.ORANGE, style.AMBER, style.GREEN, style.BLUE)
    reached = _some_published(1 / deltas[0], deltas[0])
    figure = style.canvas(
        f"With δ = 1/n, somebody's record may be published with probability {reached:.2f}: "
        "keep δ far below 1/n",
        "A mechanism that publishes each of n records in full with probability δ, independently, is "
        "(0, δ)-DP. Curves: 1 − (1 − δ)ⁿ. Dots: n = 1/δ.",
    )
    plot = style.axes(figure, x="records n", y="probability that some record is published")
    plot.set_xscale("log")
    n = np.geomspace(100, 1e10, 400)
    plot.axhline(reached, color=style.GREY, linewidth=1, linestyle=":")
    style.label(plot, (n[0], reached), f"{reached:.2f} where n = 1/δ", style.GREY, by=(6, 9))
    for delta, color in zip(deltas, colors, strict=True):
        plot.plot(n, [_some_published(m, delta) for m in n], color=color, linewidth=style.LINE)
        at = (1 / delta, _some_published(1 / delta, delta))
        plot.plot(*at, "o", color=color, markersize=7)
        style.label(plot, at, f"δ = {style.scientific(delta)}", color, by=(8, -15))
    plot.set_xlim(n[0], n[-1])
    plot.set_ylim(0, 1.03)
    return figure


def _some_published(n: float, delta: float) -> float:
    """1 - (1 - delta)^n, without cancellation."""
    return -math.expm1(n * math.log1p(-delta))
