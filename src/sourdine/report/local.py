"""Figures of one yes-or-no question: each person hides the answer, or a curator hides the count."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sourdine.accounting.normal import Array
from sourdine.report import style

_COINS = 0.25  # the gamma of two fair coins
_GAMMAS = (0.0, 0.1, _COINS, 0.4, 0.49)
_SHADES = (style.GREY, style.BLUE, style.GREEN, style.AMBER, style.ORANGE)

# The lecture's table of smokers; it shows Alice, Bob, Clair and Zane, the others are made up.
_NAMES = "Alice Bob Clair David Emma Frank Grace Hugo Iris Jack Kate Leo Mona " + (
    "Noah Olga Paul Quinn Rosa Sam Tina Uma Victor Wendy Xenia Yann Zane"
)
_SMOKES = [0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1]


def randomized_response() -> Figure:
    """What one randomized answer tells about its person, and what a share estimated from n costs.

    The answer is the truth with probability 1/2 + gamma (Warner 1965), so that
    epsilon = ln((1/2 + gamma) / (1/2 - gamma)); a yes multiplies the odds of a prior by e^epsilon. The
    unbiased estimate (mean - 1/2 + gamma) / (2 gamma) of the share of yes among the n who were asked
    has standard error sqrt((1/4 - gamma^2) / n) / (2 gamma).
    """
    prior, aim = 0.1, 0.01
    figure = style.canvas(
        f"Two fair coins: a yes raises a suspicion of {prior:.0%} only "
        f"to\u00a0{_posterior(prior, _COINS):.0%}, but an error of {aim:g} in the share takes "
        f"{_persons(_COINS, aim):,} persons",
        "The answer is the truth X with probability 1/2 + γ, else 1 − X (Warner 1965): "
        "ε = ln((1/2 + γ) / (1/2 − γ)). Two fair coins are γ = 1/4, ε = ln 3. Right: the error of the "
        "unbiased estimate against the share among those asked, √((1/4 − γ²)/n) / (2γ); "
        "γ = 0 gives no estimate.",
        margin=0.5,
        headed=True,
    )
    title = "What a yes tells: the odds times exp(ε)"
    x, y = "P(X = 1) before the answer", "P(X = 1) after a yes"
    left = style.axes(figure, (1, 2), 1, title=title, x=x, y=y)
    title = f"What it costs: persons for an error of {aim:g}"
    right = style.axes(figure, (1, 2), 2, title=title, x="persons n", y="standard error of the share")
    right.set_xscale("log")
    right.set_yscale("log")
    before, persons = np.linspace(0, 0.5, 251), np.geomspace(100, 1e5, 2)
    left.axvline(prior, color=style.GREY, linewidth=1, linestyle=":")
    right.axhline(aim, color=style.GREY, linewidth=1, linestyle=":")
    for gamma, color, up in zip(_GAMMAS, _SHADES, (-3, 0, 0, -3, 3), strict=True):
        name = f"γ = {gamma:g}\nε = {_epsilon(gamma):.2g}"
        after = [_posterior(p, gamma) for p in before.tolist()]
        left.plot(before, after, color=color, linewidth=style.LINE)
        style.label(left, (before[-1], after[-1]), name, color, by=(6, up), size=style.SMALL)
        at = (prior, _posterior(prior, gamma))
        left.plot(*at, "o", color=color, markersize=5)
        if gamma >= _COINS:
            style.label(left, at, f"{at[1]:.0%}", color, by=(-4, 7), align="right", size=style.SMALL)
        if gamma > 0:
            error = [_error(gamma, n) for n in persons.tolist()]
            right.plot(persons, error, color=color, linewidth=style.LINE)
            style.label(right, (persons[-1], error[-1]), name, color, size=style.SMALL)
            enough = _persons(gamma, aim)
            right.plot(enough, aim, "o", color=color, markersize=5, clip_on=False)
            by, align = ((8, 9), "left") if enough < 200 else ((-4, -8), "right")
            style.label(
                right, (enough, aim), f"{enough:,}", color, by=by, align=align, size=style.SMALL
            )
    faint = _posterior(prior, 0.1)
    style.pointer(left, (prior, faint), (0.16, 0.05), f"{faint:.0%}", style.BLUE)
    left.set_xlim(before[0], before[-1])
    left.set_ylim(0, 1.01)
    right.set_xlim(persons[0], persons[-1])
    figure.subplots_adjust(wspace=0.46)
    return figure


def _epsilon(gamma: float) -> float:
    """ln((1/2 + gamma) / (1/2 - gamma))."""
    return 2 * math.atanh(2 * gamma)


def _posterior(prior: float, gamma: float) -> float:
    """P(X = 1 | yes) by Bayes."""
    true, false = (0.5 + gamma) * prior, (0.5 - gamma) * (1 - prior)
    return true / (true + false)


def _error(gamma: float, n: float) -> float:
    """Standard error of the unbiased estimate of a share from n randomized answers."""
    return math.sqrt((0.25 - gamma**2) / n) / (2 * gamma)


def _persons(gamma: float, error: float) -> int:
    """The fewest persons with which the standard error is at most `error`."""
    return math.ceil(round((_error(gamma, 1) / error) ** 2, 6))  # 7500.000000000001 persons are 7500


def local_central() -> Figure:
    """The error of a share with randomized answers, and with one noisy count, at equal epsilon.

    Local: randomized response (Warner 1965), sqrt(e^epsilon) / (e^epsilon - 1) / sqrt(n). Central: a
    count with discrete Laplace noise (Dwork et al. 2006; Ghosh, Roughgarden, Sundararajan 2009),
    divided by n: sqrt(2 e^epsilon) / (e^epsilon - 1) / n. The ratio is sqrt(n / 2) at every epsilon, so
    n^2 / 2 persons match n with a curator. Both under replace-one, which moves the count by at most 1.
    """
    few = 1000
    many, ratio = few**2 // 2, math.sqrt(few / 2)
    figure = style.canvas(
        "Without a trusted curator the error is √(n/2) times as large, at every ε: "
        f"it takes {many:,} persons to learn what {few:,} tell",
        "A share among n persons; neighbours differ in one person's answer. Local: randomized "
        "response, c/√n with c = √exp(ε)/(exp(ε)\u00a0−\u00a01). Central: the count with discrete "
        "Laplace noise, over n: √2 c/n. Continuous Laplace noise, √2/(ε n), is never better.",
        headed=True,
    )
    n = np.geomspace(100, 2e7, 2)
    plot: Axes | None = None
    for place, epsilon in enumerate((0.1, 1.0, 5.0), 1):
        y = "standard error of the share" if place == 1 else ""
        title = f"ε = {epsilon:g}"
        plot = style.axes(figure, (1, 3), place, title=title, x="persons n", y=y, like=plot)
        plot.set_xscale("log")
        plot.set_yscale("log")
        central = _deviation(epsilon)
        local = central / math.sqrt(2)
        plot.plot(n, local / np.sqrt(n), color=style.ORANGE, linewidth=style.LINE)
        plot.plot(n, central / n, color=style.BLUE, linewidth=style.LINE)
        ends = [(few, local / math.sqrt(few)), (few, central / few), (many, central / few)]
        plot.plot(*zip(*ends, strict=True), color=style.INK, linewidth=1, linestyle=":")
        for at, color in zip(ends, (style.ORANGE, style.BLUE, style.ORANGE), strict=True):
            plot.plot(*at, "o", color=color, markersize=6)
        middle = math.sqrt(ends[0][1] * ends[1][1]), math.sqrt(few * many)
        style.label(plot, (few, middle[0]), f"{ratio:.0f}×", by=(5, -3))
        style.label(plot, (middle[1], ends[1][1]), f"{many / few:.0f}×", by=(0, -9), align="center")
        style.label(plot, ends[1], f"{few:,}", style.BLUE, by=(1, -13), align="right")
        style.label(plot, ends[2], f"{many:,}", style.ORANGE, by=(0, 12))
        style.label(plot, (3e4, local / math.sqrt(3e4)), "local", style.ORANGE, by=(4, 12))
        style.label(plot, (3e4, central / 3e4), "central", style.BLUE, by=(-4, -12), align="right")
        plot.set_xlim(n[0], n[-1])
    figure.subplots_adjust(wspace=0.2)
    return figure


def _deviation(epsilon: float) -> float:
    """Of discrete Laplace noise, P(x) proportional to e^(-epsilon |x|): sqrt(2 e^eps) / (e^eps - 1)."""
    return math.sqrt(2 * math.exp(epsilon)) / math.expm1(epsilon)


def smokers() -> Figure:
    """How many of 26 persons smoke: the counts without each of them, and two neighbours with noise.

    Leaving out one person moves the count by at most 1, its sensitivity, so discrete Laplace noise with
    P(x) = tanh(epsilon / 2) e^(-epsilon |x|) gives epsilon-DP (Dwork et al. 2006): no released answer
    is more than e^epsilon times as likely with a person as without, nor the other way round.
    """
    names, exact, epsilons = _NAMES.split(), sum(_SMOKES), (0.5, 1.0, 2.0)
    counts, last = (exact, exact - _SMOKES[-1]), names[-1]
    answers = np.arange(18.0)
    beyond = 1 - float(_chances(answers, exact, epsilons[0]).sum())
    figure = style.canvas(
        "One person moves the count of smokers by at most 1, "
        "and the chance of any answer by at most a factor exp(ε)",
        f'"How many people in our dataset smoke?" {exact} of {len(names)}, and {counts[1]} in the '
        f"neighbour without {last}: sensitivity\u00a01. Boxes: 1 smokes, 0 does not. Noise: integers, "
        "P(x) proportional to exp(−ε |x|), scale 1/ε (Dwork et al. 2006). Beyond the axis: "
        f"{beyond:.0%} of the answers at ε = {epsilons[0]:g}, fewer at the others.",
        taller=1.2,
        headed=True,
    )
    rows = figure.add_gridspec(2, 3, height_ratios=(1, 2.8))
    title = f"The count without each person: at most 1 from the exact {exact}"
    top = style.axes(figure, title=title, y="count")
    top.set_subplotspec(rows[0, :])
    for place, smokes in enumerate(_SMOKES):
        color = style.ORANGE if names[place] == last else style.GREY
        top.plot(place, exact - smokes, "s", color=color, markersize=13)
        style.label(top, (place, exact - smokes), str(smokes), "white", by=(0, 0), align="center")
    top.set_xticks(range(len(names)), names, rotation=90)
    top.set_yticks([exact - 1, exact])
    top.set_xlim(-0.7, len(names) - 0.3)
    top.set_ylim(exact - 1.5, exact + 0.5)
    plot: Axes | None = None
    for place, epsilon in enumerate(epsilons):
        title = f"ε = {epsilon:g}, noise of scale {1 / epsilon:g}:\n"
        title += f"each pair of bars {math.exp(epsilon):.2f} to 1"
        y = "" if place else "probability"
        plot = style.axes(figure, (1, 3), place + 1, title=title, x="released answer", y=y, like=plot)
        plot.set_subplotspec(rows[1, place])
        for count, color, side in zip(counts, (style.BLUE, style.ORANGE), (1, -1), strict=True):
            chances = _chances(answers, count, epsilon)
            plot.bar(answers + 0.21 * side, chances, 0.42, color=color)
            words = f"{'with' if count == exact else 'without'}\n{last}: {count}"
            at, align = (count, float(chances.max())), "left" if side > 0 else "right"
            style.label(plot, at, words, color, by=(4 * side, 15), align=align, size=style.SMALL)
        plot.set_xticks(range(0, 18, 3))
        plot.set_yticks(np.arange(0, 0.9, 0.2))
        plot.set_ylim(0, 0.9)
    figure.subplots_adjust(wspace=0.2, hspace=0.7)
    return figure


def _chances(answers: Array, count: int, epsilon: float) -> Array:
    """Of each answer, if discrete Laplace noise is added to the count."""
    return np.asarray(math.tanh(epsilon / 2) * np.exp(-epsilon * np.abs(answers - count)))
