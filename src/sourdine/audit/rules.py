"""From scores and coins to guesses: how thresholds are chosen so that the bound stays true.

Canaries with the highest scores are guessed "in", those with the lowest "out". How many of each is a
choice, and a choice made by looking at coins is a test made many times: the best of many thresholds,
uncorrected, is false in more than half of all audits where one in twenty is promised. The rules here
pay for their choice: made in advance, on canaries that are then left out, or by dividing alpha.

Ties. Canaries of equal score are told apart by a shuffle that is independent of the coins, whatever the
order they come in: its keys are SHAKE-256 of all scores and coins together, fresh for each result and
the same when computed again. Keeping the order of the input would not do: where members come first,
equal scores would be guessed right.

Infinite scores are ordered like others. NaN is no score and is refused: which canaries have none may
not be decided here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from sourdine import checks
from sourdine.audit.bound import Bound, Counts, Method, alpha_of, checked_delta
from sourdine.audit.one_run import OneRun
from sourdine.audit.scores import Floats
from sourdine.errors import InputError

Coins = NDArray[np.bool_]
Pairs = tuple[tuple[int, int], ...]
_USUAL = ((0.03, 0.03), (0.1, 0.1), (0.4, 0.4), (0.02, 0.0))
_FINE = tuple((high, low) for high in np.geomspace(0.005, 0.5, 14) for low in (high, 0.0))


class Rule(Protocol):
    """A choice of thresholds; all that it returns is tested, with alpha divided evenly."""

    def guesses(self, scores: Floats, coins: Coins) -> tuple[Counts, ...]:
        """One count for each choice of thresholds."""


@dataclass(frozen=True)
class Fixed:
    """The k_in highest are "in", the k_out lowest "out"; set before anyone looks at coins.

    Guesses of "out" are as valid as those of "in". They help where low scores tell as much as high
    ones, as under Laplace and Gaussian noise; with small sampling rates high scores tell more.
    """

    k_in: int
    k_out: int = 0

    def __post_init__(self) -> None:
        checks.whole("k_in", self.k_in, least=0)
        checks.whole("k_out", self.k_out, least=0)

    def guesses(self, scores: Floats, coins: Coins) -> tuple[Counts, ...]:
        """One count."""
        return (_counts(_ranked(scores, coins), self.k_in, self.k_out),)


@dataclass(frozen=True)
class Bonferroni:
    """Each pair (k_in, k_out) of a grid set in advance, at a level divided by their number.

    Guarantee: by the union bound, the best of them is false no more often than a single one may be.
    Without a grid, `usual_grid` for as many canaries.
    """

    grid: Pairs | None = None

    def __post_init__(self) -> None:
        if self.grid is not None and not self.grid:
            raise InputError(
                "the grid of (k_in, k_out) is empty; give one pair or more, or none at all."
            )
        for k_in, k_out in self.grid or ():
            Fixed(k_in, k_out)

    def guesses(self, scores: Floats, coins: Coins) -> tuple[Counts, ...]:
        """One count for each pair."""
        ranked = _ranked(scores, coins)
        return tuple(_counts(ranked, *pair) for pair in self.grid or usual_grid(len(ranked)))


@dataclass(frozen=True)
class Split:
    """A share of the canaries, drawn at random, chooses the pair (k_in, k_out); the others are guessed.

    Guarantee: given the first part, the run is as private towards the canaries of the second, and what
    is done with their scores is post-processing; the m of the bound is the number of the second part.
    """

    share: float = 0.3

    def __post_init__(self) -> None:
        checks.probability("share", self.share)

    def guesses(self, scores: Floats, coins: Coins) -> tuple[Counts, ...]:
        """One count, of the second part."""
        if len(coins) < 2:
            raise InputError("one canary cannot be split in two parts; use more, or Fixed(1).")
        shuffled = np.argsort(_keys(scores, coins))
        cut = min(max(1, round(self.share * len(coins))), len(coins) - 1)
        first, second = (_ranked(scores[part], coins[part]) for part in np.split(shuffled, [cut]))
        chosen = max(_FINE, key=lambda pair: _promise(first, pair))
        return (_counts(second, *_pair(chosen, len(second))),)


def usual_grid(canaries: int) -> Pairs:
    """A few pairs (k_in, k_out): for Laplace and Gaussian scores, and where only high ones tell.

    Each pair costs the others strength: at 10,000 canaries and a delta of 1e-5, twenty pairs prove a
    fifth less of a Gaussian mechanism of epsilon 1 than these four (benchmarks/audit).
    """
    return tuple(dict.fromkeys(_pair(shares, canaries) for shares in _USUAL))


_RULE = Bonferroni()
_BOUNDS = (OneRun(),)


def lower_bound(
    scores: Any,
    coins: Any,
    *,
    delta: float,
    confidence: float = 0.95,
    rule: Rule = _RULE,
    bounds: Sequence[Method] = _BOUNDS,
) -> Bound:
    """The best lower bound on epsilon that these scores prove.

    `scores`: a number for each canary, high where it looks like a member; `coins`: true where it was
    one, each by a fair coin of its own. All canaries that had a coin belong here; none may be left out.

    Guarantee: false with probability at most 1 - confidence, by the union bound over what the rule
    returns and over `bounds`. If it comes from a conditional method it says so.
    """
    scores, coins = _checked(scores, coins)
    delta, alpha = checked_delta(delta), alpha_of(confidence)
    tried = [(method, counts) for counts in rule.guesses(scores, coins) for method in bounds]
    if not tried:
        raise InputError("no bound or no guess to try; OneRun() and Bonferroni() serve any mechanism.")
    best, (method, counts) = 0.0, tried[0]
    for other, others in tried:
        epsilon = other.epsilon(others, delta, alpha / len(tried), above=best)
        if epsilon > best:
            best, method, counts = epsilon, other, others
    return Bound(
        epsilon=best,
        delta=delta,
        confidence=confidence,
        method=method.name,
        conditional=method.conditional,
        canaries=counts.canaries,
        guesses=counts.guesses,
        correct=counts.correct,
    )


def _checked(scores: Any, coins: Any) -> tuple[Floats, Coins]:
    try:
        numbers = np.asarray(scores, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("scores must be numbers, one for each canary.") from None
    sides = np.asarray(coins)
    if numbers.ndim != 1 or numbers.shape != sides.shape or not len(numbers):
        raise InputError(
            f"there are {numbers.size} scores and {sides.size} coins; give one of each for each canary."
        )
    if sides.dtype != np.bool_:
        raise InputError("coins must be true or false: whether the canary was in.")
    if np.isnan(numbers).any():
        raise InputError(
            f"{np.isnan(numbers).sum()} of {len(numbers)} scores are NaN; give these canaries a score "
            "that does not depend on their coins."
        )
    return numbers, sides


def _keys(scores: Floats, coins: Coins) -> NDArray[np.uint64]:
    """A random number for each canary, independent of scores and coins if the hash is any good."""
    seen = hashlib.shake_256(
        np.ascontiguousarray(scores).tobytes() + np.ascontiguousarray(coins).tobytes()
    )
    return np.frombuffer(seen.digest(8 * len(scores)), dtype="<u8")


def _ranked(scores: Floats, coins: Coins) -> Coins:
    """Coins from the highest score to the lowest, ties shuffled."""
    ranked: Coins = coins[np.lexsort((_keys(scores, coins), -scores))]
    return ranked


def _counts(ranked: Coins, k_in: int, k_out: int) -> Counts:
    canaries = len(ranked)
    if k_in + k_out > canaries:
        raise InputError(
            f"{k_in} guesses of in and {k_out} of out are more than {canaries} canaries allow; "
            "each gets one at most."
        )
    right = np.count_nonzero(ranked[:k_in]) + k_out - np.count_nonzero(ranked[canaries - k_out :])
    return Counts(canaries, k_in + k_out, int(right))


def _pair(shares: tuple[float, float], canaries: int) -> tuple[int, int]:
    """Shares as counts, with one guess at least."""
    k_in, k_out = (int(share * canaries) for share in shares)
    return max(k_in, 1), min(k_out, canaries - max(k_in, 1))


def _promise(ranked: Coins, shares: tuple[float, float]) -> float:
    """The accuracy that a pair proves with the canaries at hand: Clopper and Pearson's lower end."""
    counts = _counts(ranked, *_pair(shares, len(ranked)))
    if not counts.correct:
        return 0.0
    return float(special.betaincinv(counts.correct, counts.guesses - counts.correct + 1, 0.02))
