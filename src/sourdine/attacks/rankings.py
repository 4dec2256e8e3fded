"""Which of many samples look memorised: the rankings of Carlini et al. 2021, section 5.2.

Each is a small object with a name and one method; scores are high for what looks memorised. A sample
that the target finds likely is common or memorised; each ranking but the first sets the target's
surprise against another measure of how common a text is.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sourdine.attacks.scores import token_loss
from sourdine.attacks.target import Floats, Predicts, TokenLogs

_LEAST = 1e-9
"""Nats that stand for no surprise at all, so that ratios stay finite."""


class Ranking(Protocol):
    """Tells how memorised each text looks."""

    @property
    def name(self) -> str:
        """What a table calls it."""

    def scores(self, target: Predicts, texts: Sequence[str], logs: Sequence[TokenLogs]) -> Floats:
        """One number for each text; logs are the target's of the same texts. -inf: nothing to see."""


@dataclass(frozen=True)
class Perplexity:
    """Mean log probability of a token: high where the target is not surprised."""

    name: str = "perplexity"

    def scores(self, target: Predicts, texts: Sequence[str], logs: Sequence[TokenLogs]) -> Floats:
        """The mean log probability of each text."""
        return np.array([token_loss(one) for one in logs])


@dataclass(frozen=True)
class Against:
    """Surprise of a reference model over that of the target, of the whole text.

    Sums and not means are compared, so that the two models may cut text into different tokens.
    """

    reference: Predicts
    name: str = "against a reference"

    def scores(self, target: Predicts, texts: Sequence[str], logs: Sequence[TokenLogs]) -> Floats:
        """How many times more surprised the reference is."""
        return _ratio(_surprise(self.reference.token_logs(texts)), logs)


@dataclass(frozen=True)
class Zlib:
    """Length of the compressed text over the target's surprise: repetition alone does not count."""

    name: str = "zlib"

    def scores(self, target: Predicts, texts: Sequence[str], logs: Sequence[TokenLogs]) -> Floats:
        """Bits of the compressed text for each bit of surprise."""
        bits = np.array([8.0 * len(zlib.compress(text.encode())) for text in texts])
        return _ratio(bits * np.log(2), logs)


@dataclass(frozen=True)
class LowerCase:
    """Surprise at the text in small letters over that at the text: high where capitals were learnt."""

    name: str = "lower case"

    def scores(self, target: Predicts, texts: Sequence[str], logs: Sequence[TokenLogs]) -> Floats:
        """How many times more surprised the target is without capitals."""
        return _ratio(_surprise(target.token_logs([text.lower() for text in texts])), logs)


@dataclass(frozen=True)
class Window:
    """The best mean log probability of `width` tokens in a row: memorised text amid other text."""

    width: int = 50
    name: str = "sliding window"

    def scores(self, target: Predicts, texts: Sequence[str], logs: Sequence[TokenLogs]) -> Floats:
        """The mean of the best window; of all tokens where there are fewer."""
        return np.array([self._best(one.log) for one in logs])

    def _best(self, log: Floats) -> float:
        if not len(log):
            return float("-inf")
        width = min(self.width, len(log))
        sums = np.concatenate(
            [[0.0], np.cumsum(np.maximum(log, -1e6))]
        )  # an impossible token is finite
        return float((sums[width:] - sums[:-width]).max() / width)


def rankings(reference: Predicts | None = None) -> tuple[Ranking, ...]:
    """All of them; against a reference only where there is one."""
    against = () if reference is None else (Against(reference),)
    return (Perplexity(), *against, Zlib(), LowerCase(), Window())


def _surprise(logs: Sequence[TokenLogs]) -> Floats:
    return np.array([-float(one.log.sum()) for one in logs])


def _ratio(other: Floats, logs: Sequence[TokenLogs]) -> Floats:
    """Another measure over the target's surprise; -inf for texts without a token."""
    ratio = other / np.maximum(_surprise(logs), _LEAST)
    empty = np.array([len(one.log) == 0 for one in logs], dtype=bool)
    # inf / inf: impossible to both, so nothing is known.
    return np.where(empty | np.isnan(ratio), -np.inf, ratio)
