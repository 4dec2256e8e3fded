"""Answers, and the confidence intervals of their noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy import optimize


@dataclass(frozen=True)
class Answer:
    """A released number, and where the exact answer on this table lies with the stated confidence.

    The interval is about the noise alone: it says nothing of rows that were never in the table.
    Clipping to the declared bounds belongs to the question.
    """

    value: float
    low: float
    high: float
    confidence: float
    label: str

    def __str__(self) -> str:
        digits = _digits(self.low, self.high)
        value, low, high = (f"{x:.{digits}f}" for x in (self.value, self.low, self.high))
        return f"{self.label}: {value} ({low} to {high} with {self.confidence:.0%} confidence)"


def _digits(low: float, high: float) -> int:
    """So many decimals that the interval has two significant digits of its width."""
    width = high - low
    return 0 if width == 0 or not math.isfinite(width) else max(0, 1 - math.floor(math.log10(width)))


def ratio_interval(
    total: float, count: float, widths: tuple[float, float], steps: tuple[float, float], outside: float
) -> tuple[float, float]:
    """Where S/N in [-1, 1] lies, given S + X and N + Y with Laplace noise of scales `widths`.

    At the true c = S/N the statistic (S + X) - c (N + Y) = X - cY is free of S and N (Fieller 1954), so
    { c : |S + X - c (N + Y)| <= q(c) } covers c with probability 1 - outside, where q(c) is the
    quantile of |X - cY|. Noise lives on grids of the sizes `steps`, allowed for by half a step each.
    """

    def excess(c: float) -> float:
        slack = (steps[0] + abs(c) * steps[1]) / 2
        return abs(total - c * count) - _quantile(widths[0], abs(c) * widths[1], outside) - slack

    start = 0.0 if count <= 0 else min(1.0, max(-1.0, total / count))
    if count <= 0 or excess(start) > 0:
        return -1.0, 1.0  # the noise hides even the number of rows
    return _crossing(excess, start, -1.0), _crossing(excess, start, 1.0)


def _quantile(a: float, b: float, outside: float) -> float:
    """q with P(|X - Y| > q) = outside for independent Laplace noise of scales a and b.

    P(|X - Y| > q) = (a^2 e^(-q/a) - b^2 e^(-q/b)) / (a^2 - b^2).
    """
    a, b = max(a, b), min(a, b)
    b = min(b, a * (1 - 1e-4))  # equal scales would divide by zero

    def beyond(q: float) -> float:
        small = b * b * math.exp(-q / b) if b > 0 else 0.0
        return (a * a * math.exp(-q / a) - small) / (a * a - b * b)

    # A sum of two is beyond q no rarer than one of scale a, and rarely beyond a few of them more.
    return float(optimize.brentq(lambda q: beyond(q) - outside, 0.0, a * (5 - math.log(outside))))


def _crossing(excess: Callable[[float], float], inside: float, end: float) -> float:
    """Where `excess` turns positive between a point inside and an end; the end if it never does."""
    if excess(end) <= 0:
        return end
    found = float(optimize.brentq(excess, inside, end))
    return found + math.copysign(1e-9, end - inside)  # outwards by more than the search is off
