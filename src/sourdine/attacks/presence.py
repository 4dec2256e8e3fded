"""Is this text among the mixtures? A test of candidates, where noise hides the vectors themselves.

Encodings y_j = sum_i lambda_ji v_i + N_j are looked at in the direction of a candidate c:

    s_j = (y_j - mean)' S^-1 (c - mean),    S the covariance of the encodings.

If c is one of the v_i, the few encodings that have it lie far out on one side, and s is skewed to the
right. If it is not, s is a sum of many small things and of symmetric noise, and has no skew beyond
sqrt(6 / T) of chance. The score is the skewness. No vector is recovered, and none has to be: thousands
of encodings in which a record has a part of a quarter each are enough to tell that it is there, long
after every single one of them drowns in its noise.

Without masks: those have to be taken off before (attacks/mixtures.py).
"""

from __future__ import annotations

import numpy as np

from sourdine.attacks.mixtures import matrix
from sourdine.attacks.target import Floats
from sourdine.errors import InputError


def presence(encodings: Floats, candidates: Floats) -> Floats:
    """A score for each candidate, higher where it is likelier to be in the mixtures."""
    rows, asked = matrix("encodings", encodings), matrix("candidates", candidates)
    if rows.shape[1] != asked.shape[1]:
        raise InputError(
            f"candidates have {asked.shape[1]} coordinates, encodings {rows.shape[1]}; take both from "
            "the same encoder and map."
        )
    if len(rows) <= rows.shape[1]:
        raise InputError(
            f"{len(rows)} encodings are too few to know how {rows.shape[1]} coordinates go together; "
            "take more of them than there are coordinates."
        )
    seen = rows - rows.mean(axis=0)
    spread = seen.T @ seen / len(seen)
    # A little of the mean variance, so that directions without any do not decide.
    spread += 1e-6 * np.trace(spread) / len(spread) * np.eye(len(spread))
    along = seen @ np.linalg.solve(spread, (asked - rows.mean(axis=0)).T)
    along /= np.maximum(along.std(axis=0), 1e-300)
    score: Floats = (along**3).mean(axis=0)
    return score


def identified(encodings: Floats, truth: Floats, distractors: Floats) -> float:
    """The share of private vectors whose score is above that of all distractors."""
    scores = presence(encodings, np.concatenate([truth, distractors]))
    return float((scores[: len(truth)] > scores[len(truth) :].max()).mean())
