"""RMIA, the relative membership attack (Zarifzadeh, Liu, Shokri 2024).

A record x is compared with others z: how much likelier than usual does the target find x, against z?

    R(x) = p_target(x) / p(x),   score(x) = share of z with R(x) / R(z) >= gamma,

with p(x) how likely a model finds x on average: online the mean of shadows with and without x,
offline ((1 + a) p_out(x) + 1 - a) / 2 from shadows without it alone, as a model trained with x finds it
likelier by about a line in p_out, with a in [0, 1].

For fixed z and gamma the score grows with R(x): which z are taken changes how coarse it is, never the
order. So z may be all records that are under attack, members and others alike, and tells nothing of
who is which.
"""

from __future__ import annotations

import numpy as np

from sourdine import checks
from sourdine.attacks.lira import Inside
from sourdine.attacks.roc import Roc
from sourdine.attacks.target import Floats
from sourdine.errors import InputError

GRID = tuple(step / 10 for step in range(11))
_LEAST = 1e-30


def offline_usual(p_out: Floats, a: float) -> Floats:
    """p(x) from the mean probability of shadows without x."""
    if not 0 <= checks.finite("a", a) <= 1:
        raise InputError(f"a is {a}, but it must lie in 0 to 1; choose_a finds one.")
    found: Floats = ((1 + a) * np.asarray(p_out, np.float64) + (1 - a)) / 2
    return found


def online_usual(p_in: Floats, p_out: Floats) -> Floats:
    """p(x) from the mean probabilities of shadows with and without x."""
    found: Floats = (np.asarray(p_in, np.float64) + np.asarray(p_out, np.float64)) / 2
    return found


def ratio(target: Floats, usual: Floats) -> Floats:
    """R: how much likelier the target finds each record than models usually do."""
    found: Floats = np.asarray(target, np.float64) / np.maximum(np.asarray(usual, np.float64), _LEAST)
    return found


def score(ratios: Floats, population: Floats, gamma: float = 1.0) -> Floats:
    """The share of a population's ratios R(z) that R(x) reaches gamma times."""
    gamma = checks.positive("gamma", gamma)
    z = np.sort(np.asarray(population, np.float64))
    if not len(z):
        raise InputError("there is no record to compare with; give a population of at least one.")
    # R(x) / R(z) >= gamma as R(z) <= R(x) / gamma: one sorted search in place of all pairs.
    found: Floats = np.searchsorted(z, np.asarray(ratios, np.float64) / gamma, side="right") / len(z)
    return found


def mean_outside(probabilities: Floats, inside: Inside) -> Floats:
    """Mean over the shadows that were trained without each record."""
    return _mean(probabilities, ~inside)


def mean_inside(probabilities: Floats, inside: Inside) -> Floats:
    """Mean over the shadows that were trained with it."""
    return _mean(probabilities, inside)


def choose_a(probabilities: Floats, inside: Inside) -> float:
    """The `a` of GRID with the best AUC where one shadow plays the target and the others its shadows.

    Each shadow takes its turn, and AUCs are averaged. Nothing of the target enters: who was in a shadow
    was drawn without it. Of equals the smallest is taken; with one shadow that is 0.
    """
    if len(probabilities) < 4:  # one more than needed for a record to be outside of another
        return GRID[0]
    gains = np.zeros(len(GRID))
    for turn in range(len(probabilities)):
        rest = np.arange(len(probabilities)) != turn
        known = (~inside[rest]).any(axis=0)
        if not (known & inside[turn]).any() or not (known & ~inside[turn]).any():
            continue
        p_out = _mean(probabilities[rest][:, known], ~inside[rest][:, known])
        p_target, truth = probabilities[turn, known], inside[turn, known]
        for place, a in enumerate(GRID):
            found = ratio(p_target, offline_usual(p_out, a))
            gains[place] += Roc(found[truth], found[~truth]).auc
    return GRID[int(np.argmax(gains))]


def _mean(probabilities: Floats, used: Inside) -> Floats:
    count = used.sum(axis=0)
    if not count.all():
        raise InputError("a record was in all shadows or in none; put each record in half of them.")
    found: Floats = np.where(used, probabilities, 0.0).sum(axis=0) / count
    return found
