"""How well scores tell members from others: the ROC curve, and what of it the data can carry.

Region. At a false-positive rate f the attack names {score > t}, with t the (floor(f n) + 1)-th largest
score of the n others: at most f n of them lie above it, and no region {score >= s} with so few of them
catches more members. t depends on the others alone, and a block of equal scores is named as a whole or
not at all.

Guarantee: given the others, the number of m independent members in the region is binomial; Clopper and
Pearson's (1934) interval holds the true-positive rate of that region with probability `confidence` or
more, at each f by itself. That its false-positive rate is f is an estimate from n others: below 10
expected ones (n f < 10) it is not worth a number, and none is given.

AUC = P(member > other) + P(equal) / 2. Its variance is at most AUC (1 - AUC) / min(m, n) (van Dantzig
1951): it is a mean over all ways to pair the smaller side with distinct others, each of them a mean of
min(m, n) independent numbers in [0, 1], and a mean of equally distributed numbers varies no more than
one of them. Wilson's (1927) interval with min(m, n) draws therefore uses a variance that no
distribution exceeds; only the normal law is approximate. It stays honest where members and others are
wholly apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import special, stats

from sourdine import checks
from sourdine.attacks.target import Floats
from sourdine.audit.regions import ends
from sourdine.errors import InputError

RATES = (0.1, 0.01, 0.001)
FEWEST = 10
"""Others that must be expected above a threshold before a rate there means anything."""


@dataclass(frozen=True)
class Rate:
    """The true-positive rate at a false-positive rate, with its interval; or the reason why not."""

    fpr: float
    tpr: float | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None

    def __str__(self) -> str:
        if self.tpr is None:
            return f"TPR at FPR {self.fpr:g}: not given, as {self.reason}."
        return f"TPR at FPR {self.fpr:g}: {self.tpr:.3f} ({self.low:.3f} to {self.high:.3f})."


@dataclass(frozen=True, eq=False)
class Roc:
    """Scores of members and of others, high for members. NaN is refused; infinity is a score.

    confidence: of every interval.
    """

    members: Floats
    others: Floats
    confidence: float = 0.95

    def __post_init__(self) -> None:
        for name in ("members", "others"):
            scores = np.array(getattr(self, name), dtype=np.float64)
            if scores.ndim != 1 or not len(scores):
                raise InputError(
                    f"there are no scores of {name}; an attack needs members and others to compare."
                )
            if np.isnan(scores).any():
                raise InputError(f"a score of {name} is not a number; give each record a score.")
            scores.sort()
            scores.flags.writeable = False
            object.__setattr__(self, name, scores)
        checks.probability("confidence", self.confidence)

    def __repr__(self) -> str:
        # The generated one would print scores of records.
        return f"<Roc: AUC {self.auc:.3f}, {len(self.members)} members, {len(self.others)} others>"

    @cached_property
    def auc(self) -> float:
        """The probability that a member scores higher than another record, ties counted half."""
        below = np.searchsorted(self.others, self.members, side="left")
        upto = np.searchsorted(self.others, self.members, side="right")
        return float((below + upto).sum() / (2 * len(self.members) * len(self.others)))

    def auc_interval(self, confidence: float | None = None) -> tuple[float, float]:
        """Where the AUC of all such records lies, as told above."""
        level = self.confidence if confidence is None else checks.probability("confidence", confidence)
        return wilson(self.auc, min(len(self.members), len(self.others)), 1 - level)

    @cached_property
    def steps(self) -> tuple[Floats, Floats]:
        """The curve: false- and true-positive rates of all regions {score >= s}, from none to all.

        One point for each different score: a line between two of them is a block of ties.
        """
        at = np.unique(np.concatenate([self.members, self.others]))[::-1]
        fpr = _share_from(self.others, at)
        tpr = _share_from(self.members, at)
        return np.concatenate([[0.0], fpr]), np.concatenate([[0.0], tpr])

    def band(self, fpr: Sequence[float] | Floats) -> tuple[Floats, Floats, Floats]:
        """The true-positive rate at each of these rates, with both ends of its interval.

        Each interval holds by itself, not all at once.
        """
        n, m = len(self.others), len(self.members)
        allowed = np.minimum(_allowed(np.asarray(fpr, dtype=np.float64), n), n)
        padded = np.concatenate([[-np.inf], self.others])
        caught = m - np.searchsorted(self.members, padded[n - allowed.astype(np.int64)], side="right")
        caught = np.where(allowed >= n, m, caught)
        high, low = ends(caught, caught, m, (1 - self.confidence) / 2)
        return caught / m, low, high

    def at(self, fpr: float) -> Rate:
        """The true-positive rate at a false-positive rate, if there are others enough to tell."""
        fpr, n = checks.probability("fpr", fpr), len(self.others)
        if n * fpr * (1 + 1e-12) < FEWEST:
            least = math.ceil(FEWEST / fpr * (1 - 1e-12))
            reason = f"{n} others put {n * fpr:g} above such a threshold; {least:,} or more are needed"
            return Rate(fpr, None, reason=reason)
        tpr, low, high = (float(end[0]) for end in self.band([fpr]))
        return Rate(fpr, tpr, low, high)

    def beats_chance(self, false_alarm: float) -> bool:
        """Whether members score higher, in general or a few of them far out.

        By the AUC, and at each rate of RATES that there are others enough for: an attack that is sure
        of few members moves the AUC by little. Guarantee: true with probability at most `false_alarm`
        where scores of members and others have one law, by the union bound over these tests at equal
        levels; that of the AUC up to its normal law. At a rate, t is the (k + 1)-th largest of n
        scores, and the chance to lie above it at most Beta(k + 1, n - k): Clopper and Pearson's upper
        end for k of n bounds it.
        """
        level = checks.probability("false_alarm", false_alarm) / (1 + len(RATES))
        if self.auc_interval(1 - 2 * level)[0] > 0.5:
            return True
        n, m = len(self.others), len(self.members)
        for rate in map(self.at, RATES):
            if rate.tpr is not None:
                upper = ends(_allowed(rate.fpr, n), 0, n, level / 2)[0]
                if ends(0, round(rate.tpr * m), m, level / 2)[1] > upper:
                    return True
        return False

    @cached_property
    def advantage(self) -> float:
        """The largest tpr - fpr (Yeom et al. 2018), at the threshold that suits these scores best.

        Chosen after looking, so above zero by chance too: about 1 / sqrt(records) where nothing leaks.
        """
        fpr, tpr = self.steps
        return float(np.max(tpr - fpr))

    @property
    def balanced_accuracy(self) -> float:
        """The best share of right answers where half are members: (1 + advantage) / 2."""
        return (1 + self.advantage) / 2

    def to_json(self) -> dict[str, Any]:
        """Rates alone: no score of any record."""
        low, high = self.auc_interval()
        return {
            "auc": self.auc,
            "auc_low": low,
            "auc_high": high,
            "confidence": self.confidence,
            "advantage": self.advantage,
            "balanced_accuracy": self.balanced_accuracy,
            "rates": [
                {name: getattr(rate, name) for name in ("fpr", "tpr", "low", "high", "reason")}
                for rate in map(self.at, RATES)
            ],
        }


def wilson(share: float, count: int, alpha: float) -> tuple[float, float]:
    """All p with |share - p| <= z sqrt(p (1 - p) / count), z = Phi^-1(1 - alpha / 2)."""
    square = float(special.ndtri(alpha / 2)) ** 2
    centre = share + square / (2 * count)
    half = math.sqrt(square * (share * (1 - share) / count + square / (4 * count**2)))
    total = 1 + square / count
    return max(0.0, (centre - half) / total), min(1.0, (centre + half) / total)


def density(scores: Floats, grid: Floats) -> Floats:
    """A smooth density of finite scores, for a picture: a kernel of Silverman's width."""
    finite = scores[np.isfinite(scores)]
    spread = float(np.std(finite)) if len(finite) else 0.0
    if spread <= 1e-12 * max(1.0, float(np.max(np.abs(finite), initial=0.0))):
        return np.zeros_like(grid)
    found: Floats = stats.gaussian_kde(finite, "silverman")(grid)
    return found


def _allowed(fpr: Any, others: int) -> Any:
    """How many others a rate allows: a tenth of ten is one, though 0.1 * 10 may come out below it."""
    return np.floor(fpr * others * (1 + 1e-12))


def _share_from(scores: Floats, at: Floats) -> Floats:
    """The share of sorted scores at or above each value."""
    found: Floats = 1 - np.searchsorted(scores, at, side="left") / len(scores)
    return found
