"""Where a falling bound on delta crosses a given delta, from the safe side."""

from __future__ import annotations

import math
from collections.abc import Callable

Bound = Callable[[float], float]
FARTHEST = 1e15


def smallest_below(upper: Bound, delta: float, guess: float = 1.0, last: float = FARTHEST) -> float:
    """An epsilon with upper(epsilon) <= delta, as small as the search finds; inf if there is none."""
    if upper(0.0) <= delta:
        return 0.0
    if upper(last) > delta:
        return math.inf
    root = _crossing(upper, delta, min(guess, last), last)
    step = 1e-13 * max(1.0, root)
    root += step  # rounding of epsilon itself
    while upper(root) > delta:
        root, step = root + step, 2 * step
    return root


def largest_above(lower: Bound, delta: float, guess: float = 1.0, last: float = FARTHEST) -> float:
    """An epsilon with lower(epsilon) > delta, as large as the search finds; zero if there is none.

    Strictly above: where the curve is flat at delta, any epsilon has lower(epsilon) = delta.
    """
    if lower(last) > delta:
        return last
    root = _crossing(lower, delta, min(guess, last), last)
    step = 1e-13 * max(1.0, root)
    root = max(0.0, root - step)
    while root > 0 and lower(root) <= delta:
        root, step = max(0.0, root - step), 2 * step
    return root


def _crossing(bound: Bound, delta: float, guess: float, last: float) -> float:
    """Where ln bound = ln delta: by secants from a good guess, else by bisection."""
    here, there = guess, guess * (1 - 1e-3)
    miss, before = (_log_ratio(bound(point), delta) for point in (here, there))
    for _ in range(20):
        if not (math.isfinite(miss) and math.isfinite(before) and (miss - before) * (here - there) < 0):
            break
        moved = min(max(0.0, here - miss * (here - there) / (miss - before)), last)
        if abs(moved - here) <= 1e-14 * max(1.0, moved) or miss == 0:
            return moved
        here, there, before = moved, here, miss
        miss = _log_ratio(bound(here), delta)
    # A lower bound may give up far below the window it was planned for, so start from the guess.
    low, high = guess if bound(guess) > delta else 0.0, min(last, max(1.0, 2 * guess))
    while high < last and bound(high) > delta:
        low, high = high, min(last, 2 * high)
    while high - low > 1e-13 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if bound(middle) > delta else (low, middle)
    return high


def _log_ratio(value: float, delta: float) -> float:
    """ln(value / delta); infinite where a bound says nothing."""
    return math.log(value / delta) if 0 < value < 1 else math.inf
