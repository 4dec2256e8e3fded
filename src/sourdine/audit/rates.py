"""Lower bounds on epsilon from the errors of one fixed test over many independent runs.

The test says "in" or "out" of each run; its threshold was chosen before, from other runs. With fpr the
rate of "in" without the record and fnr that of "out" with it, an (epsilon, delta)-DP mechanism has
(Kairouz, Oh, Viswanath 2015, Theorem 2.1)

    fpr + e^epsilon fnr >= 1 - delta   and   fnr + e^epsilon fpr >= 1 - delta,

and the same for the test that says the opposite: (fpr, fnr) lies in a region R(epsilon, delta).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import special

from sourdine import checks
from sourdine.audit.bound import GAUSSIAN, Bound, alpha_of, checked_delta, gaussian_epsilon
from sourdine.audit.one_run import largest
from sourdine.audit.regions import ends, proven_epsilon
from sourdine.errors import InputError

_BAYES = (
    "for one who starts from Jeffreys priors on both rates (Bayesian: nothing is promised beyond that)"
)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
_TAILS = np.geomspace(1e-14, 0.1, 14)
_EDGES = np.concatenate([[0.0], _TAILS, np.linspace(0.2, 0.8, 7), 1 - _TAILS, [1.0]])
_LARGEST = 600.0  # epsilons beyond have no e^epsilon in doubles


@dataclass(frozen=True)
class Rates:
    """How often the test said "in": of the runs with the record, and of those without it."""

    true_positives: int
    runs_in: int
    false_positives: int
    runs_out: int

    def __post_init__(self) -> None:
        for said, runs in (("true_positives", "runs_in"), ("false_positives", "runs_out")):
            count, of = getattr(self, said), getattr(self, runs)
            checks.whole(said, count, least=0)
            if count > checks.whole(runs, of):
                raise InputError(f"{said} is {count}, more than the {of} runs of {runs}; count again.")

    @property
    def false_negatives(self) -> int:
        """Runs with the record of which the test said "out"."""
        return self.runs_in - self.true_positives

    def errors(self, alpha: float) -> tuple[float, float]:
        """What fpr and fnr are at most: Clopper and Pearson's (1934) ends, at level alpha / 2 each.

        Guarantee: one of them is wrong with probability at most alpha.
        """
        fpr = ends(self.false_positives, 0, self.runs_out, alpha / 2)[0]
        fnr = ends(self.false_negatives, 0, self.runs_in, alpha / 2)[0]
        return float(fpr), float(fnr)


def rates_epsilon(rates: Rates, delta: float, confidence: float = 0.95) -> Bound:
    """max of 0, ln((1 - delta - fnr) / fpr) and ln((1 - delta - fpr) / fnr) at the ends of both rates.

    Jagielski, Ullman, Oprea 2020; Nasr et al. 2021.
    Guarantee: exceeds the true epsilon with probability at most 1 - confidence, for every mechanism.
    Edge cases: finite always, about ln(n / 3.7) for n runs of each kind without an error, at 95%.
    """
    fpr, fnr = rates.errors(alpha_of(confidence))
    epsilon = float(proven_epsilon(fpr, 1 - fnr, checked_delta(delta)))
    return _bound(rates, epsilon, delta, confidence, "many runs", None)


def gaussian_rates_epsilon(rates: Rates, delta: float, confidence: float = 0.95) -> Bound:
    """Epsilon of a Gaussian mechanism of mu = Phi^-1(1 - fpr) - Phi^-1(fnr), at the ends of both rates.

    Nasr et al. 2023. No test does better than fnr = Phi(Phi^-1(1 - fpr) - mu) against mu-Gaussian DP
    (Dong, Roth, Su 2022, section 2.2).
    Guarantee: exceeds the true epsilon of a Gaussian mechanism with probability at most 1 - confidence.
    """
    fpr, fnr = rates.errors(alpha_of(confidence))
    mu = -float(special.ndtri(fpr) + special.ndtri(fnr))
    epsilon = gaussian_epsilon(max(mu, 0.0), delta)
    return _bound(rates, epsilon, delta, confidence, "many runs, Gaussian", GAUSSIAN)


class Credible(NamedTuple):
    """Both ends of a credible interval on epsilon."""

    lower: float
    upper: float


def credible_interval(rates: Rates, delta: float, confidence: float = 0.95) -> Credible:
    """Where the posterior has epsilon with mass `confidence`, and half the rest on either side.

    Zanella-Béguelin et al. 2023: fpr ~ Beta(fp + 1/2, tn + 1/2) and fnr ~ Beta(fn + 1/2, tp + 1/2),
    independent; P[epsilon <= e] = P[(fpr, fnr) in R(e, delta)]. Narrower than Clopper and Pearson's.
    Guarantee: none of a frequency. With no error in 1,000 runs of each kind it starts at 6.9 where the
    proven bound is 5.6.
    """
    posterior = _Posterior(rates, checked_delta(delta))
    alpha = alpha_of(confidence)
    return Credible(posterior.quantile(alpha / 2), posterior.quantile(1 - alpha / 2))


def credible_epsilon(rates: Rates, delta: float, confidence: float = 0.95) -> Bound:
    """The epsilon that the posterior exceeds with mass `confidence`; no proof (credible_interval)."""
    epsilon = _Posterior(rates, checked_delta(delta)).quantile(alpha_of(confidence))
    return _bound(rates, epsilon, delta, confidence, "many runs, credible", _BAYES)


class _Posterior:
    """What Jeffreys priors and the counts say of the smallest epsilon at `delta`."""

    def __init__(self, rates: Rates, delta: float) -> None:
        self._delta = delta
        self._fpr = (rates.false_positives + 0.5, rates.runs_out - rates.false_positives + 0.5)
        self._fnr = (rates.false_negatives + 0.5, rates.true_positives + 0.5)

    def at_most(self, epsilon: float) -> float:
        """P[(fpr, fnr) in R(epsilon, delta)], by quadrature over the quantiles of fpr.

        For each fpr the region is an interval of fnr. Its ends have corners where fpr is
        (1 - delta) / (1 + e^epsilon), or one minus that, and at delta and 1 - delta; panels end there.
        """
        rest, steep = 1 - self._delta, math.exp(epsilon)
        corner = rest / (1 + steep)
        corners = [corner, 1 - corner, self._delta, rest]
        # Along the steep sides of the region, where fnr passes through its own quantiles.
        steps = special.betaincinv(*self._fnr, _EDGES)
        cuts = np.concatenate([corners, (rest - steps) / steep, 1 - (steps - self._delta) / steep])
        edges = np.unique(np.append(_EDGES, special.betainc(*self._fpr, np.clip(cuts, 0, 1))))
        half = np.diff(edges)[:, None] / 2
        fpr = special.betaincinv(*self._fpr, edges[:-1, None] + half * (1 + _NODES))
        low = np.maximum((rest - fpr) / steep, rest - steep * fpr)
        high = np.minimum(1 - (fpr - self._delta) / steep, self._delta + steep * (1 - fpr))
        below, above = (special.betainc(*self._fnr, np.clip(end, 0, 1)) for end in (low, high))
        return float(np.sum(half * _WEIGHTS * np.maximum(above - below, 0)))

    def quantile(self, mass: float) -> float:
        """The epsilon that is exceeded with mass 1 - `mass`; 600 where that one is larger still."""
        if self.at_most(0.0) >= mass:
            return 0.0
        return largest(lambda epsilon: self.at_most(epsilon) < mass, 0.0, _LARGEST)


def _bound(
    rates: Rates, epsilon: float, delta: float, confidence: float, method: str, conditional: str | None
) -> Bound:
    return Bound(
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        method=method,
        conditional=conditional,
        canaries=rates.runs_in + rates.runs_out,
        guesses=rates.runs_in + rates.runs_out,
        correct=rates.true_positives + rates.runs_out - rates.false_positives,
    )
