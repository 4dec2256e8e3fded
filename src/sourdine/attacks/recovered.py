"""What a reconstruction is worth: how many private vectors were found, and whether they name anyone.

All cosines are taken after subtracting the public mean: vectors of one encoder point the same way, and
the mean alone would look like a good reconstruction of every one of them.

matched     the share of private vectors whose partner among the found ones, one partner each (Hungarian
            method, by cosine), reaches the threshold. The partners are chosen with the truth at hand:
            that measures how close the found vectors come, it is no attack.

identified  the share of private vectors that this attack names. For vector v_i a list is made of v_i
            and all distractors, vectors of other text from the same distribution. Who attacks holds the
            found vectors and the list, not which entry is v_i, scores each entry c by max_r cos(c, r)
            over the found vectors r, and names the entry with the highest score; a tie is a miss.
            (To ask only the partner of v_i would be unfair: it was chosen among n found vectors for
            being close to v_i, and names it many times as often as chance, even out of noise.)

Guarantee: if the found vectors say nothing of v_i, then v_i and distractors of the same distribution
are alike to this attack, and it names v_i with probability at most chance = 1 / (1 + distractors).
From a release that is mu-GDP for a change of v_i it does so with probability at most

    Phi(Phi^-1(chance) + mu)

(reconstruction robustness, Balle, Cherubin, Hayes 2022; Hayes, Mahloujifar, Balle 2023): to name one of
equally likely candidates is to test whether the release came from it or from another, and a test that
errs with probability `chance` on the one side is right with at most this on the other. It bounds what
is expected; a share that was measured on a few vectors scatters around it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from sourdine import checks
from sourdine.attacks.mixtures import matrix
from sourdine.attacks.target import Floats
from sourdine.errors import InputError

FEWEST = 900
"""Distractors below which being named is no feat: chance is then 1 in 901."""


@dataclass(frozen=True)
class Recovered:
    """matched, identified: shares of the private vectors. cosines: with its partner, of each.

    A private vector without a partner, as fewer were found than there are, has the cosine -1.
    """

    matched: float
    cosines: Floats
    identified: float
    chance: float

    def bound(self, mu: float) -> float:
        """The largest share that can be expected to be identified from a mu-GDP release."""
        mu = checks.not_negative("mu", mu)
        return float(stats.norm.cdf(stats.norm.ppf(self.chance) + mu))


def recovered(
    found: Floats,
    truth: Floats,
    *,
    public: Floats,
    distractors: Floats,
    threshold: float = 0.9,
    paired: bool = False,
) -> Recovered:
    """What the found vectors are worth against the private ones, `truth`.

    paired: found vector i is known to be of private vector i, as where each record was encoded by
    itself and in order. Then it is matched with that one, and it alone names an entry of the list.

    Edge cases: a private text that is also among the distractors cannot be identified. A found vector
    at the public mean has the cosine 0 with everything.
    """
    if not 0 < checks.finite("threshold", threshold) <= 1:
        raise InputError(
            f"threshold is {threshold}, but a cosine to reach lies above 0 and at most at 1."
        )
    mean = matrix("public", public).mean(axis=0)
    rows = [("found", found), ("truth", truth), ("distractors", distractors)]
    found, truth, distractors = (_directions(name, values, mean) for name, values in rows)
    check_counts(len(found), len(truth), len(distractors), paired=paired)
    close, others = found @ truth.T, found @ distractors.T
    cosines = np.full(len(truth), -1.0)
    if paired:
        cosines = np.diagonal(close).copy()
        named = cosines > others.max(axis=1)
    else:
        mine, its = optimize.linear_sum_assignment(-close)
        cosines[its] = close[mine, its]
        named = close.max(axis=0) > others.max()
    return Recovered(
        matched=float((cosines >= threshold).mean()),
        cosines=cosines,
        identified=float(named.mean()),
        chance=1 / (1 + len(distractors)),
    )


def check_counts(found: int, truth: int, distractors: int, *, paired: bool) -> None:
    """Whether so many vectors can be told apart at all; no vector is looked at."""
    if distractors < FEWEST:
        raise InputError(
            f"there are {distractors} distractors: to be picked out of so few would mean little. "
            f"Encode {FEWEST} or more other texts of the same kind."
        )
    if paired and found != truth:
        raise InputError(f"{found} vectors cannot be paired with {truth} private ones.")


def _directions(name: str, values: Floats, mean: Floats) -> Floats:
    """Rows of length one, seen from the public mean; a row at the mean stays 0."""
    values = matrix(name, values)
    if values.shape[1] != len(mean):
        raise InputError(
            f"{name} has {values.shape[1]} coordinates, public vectors have {len(mean)}; take all from "
            "the same encoder."
        )
    seen = values - mean
    unit: Floats = seen / np.maximum(np.linalg.norm(seen, axis=1, keepdims=True), 1e-300)
    return unit
