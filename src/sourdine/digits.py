"""Numbers as people read them. A bound is rounded to the safe side: what is printed must still hold."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context


def above(value: float, digits: int = 6) -> str:
    """So many significant digits, rounded up: for what is at most so much."""
    return _written(value, digits, ROUND_CEILING)


def below(value: float, digits: int = 6) -> str:
    """The same, rounded down: for what is at least so much."""
    return _written(value, digits, ROUND_FLOOR)


def nearest(value: float, digits: int = 6) -> str:
    """The same, rounded to the nearest: for what is no bound."""
    return _written(value, digits, ROUND_HALF_EVEN)


def _written(value: float, digits: int, rounding: str) -> str:
    """Of the shortest decimal that stands for the number: 0.1 is 0.1, though in binary a bit more."""
    if not math.isfinite(value):
        return str(float(value))
    number = Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))
    if value == 0 or 1e-4 <= abs(value) < 1e9:
        text = f"{number:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, _, exponent = f"{number.normalize():e}".partition("e")
    return f"{mantissa}e{int(exponent)}"
