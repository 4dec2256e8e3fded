"""What a target's answer says of one record: scores that are high for members.

A model was trained to make the loss of its members small, so the simplest attack names the records
that it finds likely (Yeom et al. 2018). For a classifier the negative loss log p_y, the confidence p_y
and the logit phi are one another's increasing functions: thresholds on them are the same attack. They
differ once something is taken off or a Gaussian is fitted; then phi is the one whose distribution over
trainings is nearly normal (Carlini et al. 2022, section IV).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from sourdine import checks
from sourdine.attacks.target import Classifies, Floats, Record, TokenLogs
from sourdine.errors import InputError

LEAST = 1e-30
"""Stands for probability 0 inside a logarithm: a single answer must not make a mean infinite."""
SHARE = 0.2
"""The tokens that Min-K% looks at: the least likely fifth."""


def places(target: Classifies, records: Sequence[Record]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The column of each record's own label among the target's answers."""
    column = {label: place for place, label in enumerate(target.labels)}
    unknown = sum(record.label not in column for record in records)
    if unknown:
        raise InputError(
            f"{unknown} of {len(records)} records have no label that the target knows. It tells apart "
            f"{', '.join(map(repr, target.labels[:6]))}: name the column that holds these, or give the "
            "target's classes their names (--labels)."
        )
    return np.array([column[str(record.label)] for record in records], dtype=np.int64)


def true_probability(
    probabilities: Floats, places: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> Floats:
    """p_y, the probability of the true label."""
    found: Floats = probabilities[np.arange(len(places)), places]
    return found


def negative_loss(probabilities: Floats, places: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
    """log p_y."""
    found: Floats = np.log(np.maximum(true_probability(probabilities, places), LEAST))
    return found


def logit(probabilities: Floats, places: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Floats:
    """phi = log p_y - log sum of p over the other labels (Carlini et al. 2022, section IV C).

    The sum in place of 1 - p_y keeps its digits where p_y is close to 1.
    """
    others = probabilities.copy()
    others[np.arange(len(places)), places] = 0.0
    rest = np.log(np.maximum(others.sum(axis=1), LEAST))
    found: Floats = negative_loss(probabilities, places) - rest
    return found


def text_of(record: Record) -> str:
    """The text of a record for a language model, which reads one."""
    if len(record.texts) != 1:
        raise InputError("a language model reads one text a record; these records are pairs.")
    return record.texts[0]


def token_loss(logs: TokenLogs) -> float:
    """The mean log probability of a text's tokens.

    Here as below, a text of no token scores minus infinity: nothing speaks for it.
    """
    return float(logs.log.mean()) if len(logs.log) else -np.inf


def compressed(logs: TokenLogs, text: str) -> float:
    """The log probability of the text over its length when compressed by zlib, in bits.

    Takes out what any reader finds easy, such as repeated words (Carlini et al. 2021, section 5.2).
    """
    bits = 8 * len(zlib.compress(text.encode()))
    return float(logs.log.sum()) / bits if len(logs.log) else -np.inf


def least_likely(logs: TokenLogs, share: float = SHARE) -> float:
    """Min-K%: the mean log probability of the least likely tokens (Shi et al. 2024)."""
    return _lowest(logs.log, share)


def least_likely_standardised(logs: TokenLogs, share: float = SHARE) -> float:
    """Min-K%++: the same after (log p - mean) / deviation of each token (Zhang et al. 2025).

    Mean and deviation are those of log p of a token drawn from the model there; where the model is
    certain of its token, they say nothing, and a deviation of 1e-6 stands for zero.
    """
    return _lowest((logs.log - logs.mean) / np.maximum(logs.deviation, 1e-6), share)


def _lowest(values: Floats, share: float) -> float:
    """The mean of the lowest share of the values, of one value at least."""
    checks.probability("share", share)
    if not len(values):
        return -np.inf
    count = max(1, int(share * len(values)))
    return float(np.partition(values, count - 1)[:count].mean())
