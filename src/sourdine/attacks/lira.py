"""LiRA, the likelihood ratio attack (Carlini et al. 2022): is a record's score that of a member?

The same record is scored by shadow models, half of which were trained with it. Its scores phi
(scores.py) with and without it are taken for normal, each record with its own means,

    online:   log N(phi; mean_in, s_in^2) - log N(phi; mean_out, s_out^2),
    offline:  z = (phi - mean_out) / s_out,

where offline needs no model that was trained with the record: Lambda = Phi(z) is the paper's one-sided
form. z has the same order and does not round to 1 where it matters most, in the tail.

Below 64 shadows a variance of one record's few scores is mostly noise: then all records share one, the
mean square distance of their scores from their own mean. (The authors' code takes the deviation of all
scores at once, which counts how records differ among themselves, and for `out` that of the members; and
scores two-sided offline, so that records that the target fits badly are named as well.)
Deviations divide by the number of scores, not by one less.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from sourdine.attacks.target import Floats
from sourdine.errors import InputError

Inside = np.ndarray[Any, np.dtype[np.bool_]]
FEW = 64
"""Shadows below which all records share one variance."""
_LEAST = 1e-9
"""Stands for a deviation of zero, as where all shadows say the same."""


def online(observed: Floats, shadows: Floats, inside: Inside) -> Floats:
    """Log likelihood ratio of each record. Rows of `shadows` and `inside` are shadow models.

    Raises InputError where a record was in all shadows or in none.
    """
    observed, shadows, inside = _checked(observed, shadows, inside)
    member = stats.norm.logpdf(observed, *_normal(shadows, inside, "with"))
    found: Floats = member - stats.norm.logpdf(observed, *_normal(shadows, ~inside, "without"))
    return found


def offline(observed: Floats, shadows: Floats, inside: Inside) -> Floats:
    """How many deviations the score lies above those of shadows without the record."""
    observed, shadows, inside = _checked(observed, shadows, inside)
    mean, deviation = _normal(shadows, ~inside, "without")
    found: Floats = (observed - mean) / deviation
    return found


def _normal(shadows: Floats, used: Inside, word: str) -> tuple[Floats, Floats]:
    """Mean and deviation of each record's used scores; one deviation for all where shadows are few."""
    count = used.sum(axis=0)
    if not count.all():
        raise InputError(
            f"{int((count == 0).sum())} records have no shadow that was trained {word} them; train "
            "more shadows, each record in half of them."
        )
    mean = np.where(used, shadows, 0.0).sum(axis=0) / count
    squares = np.where(used, (shadows - mean) ** 2, 0.0).sum(axis=0)
    variance = squares / count
    if len(shadows) < FEW:
        variance = np.full_like(variance, squares.sum() / count.sum())
    return mean, np.maximum(np.sqrt(variance), _LEAST)


def _checked(observed: Any, shadows: Any, inside: Any) -> tuple[Floats, Floats, Inside]:
    observed, shadows = np.asarray(observed, np.float64), np.asarray(shadows, np.float64)
    inside = np.asarray(inside, np.bool_)
    if shadows.ndim != 2 or inside.shape != shadows.shape or observed.shape != shadows.shape[1:]:
        raise InputError(
            f"shapes do not fit: {observed.shape} scores of the target, {shadows.shape} of shadows, "
            f"{inside.shape} marks of who was inside; give one column for each record."
        )
    if not (np.isfinite(observed).all() and np.isfinite(shadows).all()):
        raise InputError("a score is not finite, and no normal law fits that; leave its record out.")
    return observed, shadows, inside
