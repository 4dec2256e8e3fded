"""The best of a random number of private trials: tuning that pays for itself.

Guarantee: if every trial is independent of the others and costs the same event, then what `release`
returns costs `RandomTrials.event(trial)` (accounting/selection.py has the proof), however many trials
were run. It holds for someone who sees what is returned and nothing else:

- K and all other trials stay secret. Whoever can watch how long the work takes, what it costs or what
  it logs learns K, or nearly. K alone tells nothing of the data; K *and* the best trial do: to someone
  who knows that K was k, what holds is the sum of k trials. Where that matters, hand the result over at
  a time that was fixed before.
- A trial must return, whatever the data: an error that only some data cause is a release of its own. A
  trial that fails returns the score -inf. A score that is no number counts as -inf.
- Trials draw their own randomness, each anew; two trials on the same seed are one trial.
- If the work stops half way and nothing was seen of it, nothing was released; begin again with a new K.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import TypeVar

from sourdine import checks
from sourdine.errors import InputError
from sourdine.events import Event, SelectionEvent, expected_trials, trials_law
from sourdine.rng import Source, secure

T = TypeVar("T")

_BITS = 256  # of the uniform number that K is read from
_DIGITS = 100
_NOTHING = Decimal("1e-80")
_MOST = 1e6  # trials on average; nobody runs more
_LEAST_GAMMA = 1e-12


@dataclass(frozen=True)
class RandomTrials:
    """K trials, K from the truncated negative binomial law of eta and gamma; see SelectionEvent."""

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        eta, gamma = trials_law(self.eta, self.gamma)
        object.__setattr__(self, "eta", eta)
        object.__setattr__(self, "gamma", gamma)
        if self.expected > _MOST:
            raise InputError(
                f"{self.expected:.3g} trials on average are more than anyone runs; raise gamma."
            )

    @property
    def expected(self) -> float:
        """How many trials are run on average."""
        return expected_trials(self.eta, self.gamma)

    def event(self, trial: Event) -> SelectionEvent:
        """What the best trial costs, where one trial costs this much, its scoring included."""
        return SelectionEvent(trial, self.eta, self.gamma)

    def most(self, confidence: float = 0.95) -> int:
        """How many trials are not exceeded with this probability."""
        return self._at(Decimal(checks.probability("confidence", confidence)))

    def number(self, source: Source | None = None) -> int:
        """K, which must stay secret.

        By inversion of 256 uniform bits in 100-digit arithmetic: the law is off by less than 1e-60 in
        total variation, which adds less than 1e-60 (1 + e^epsilon) to delta.
        """
        drawn = (source or secure()).below(1 << _BITS)
        with localcontext(prec=_DIGITS):
            return self._at(Decimal(drawn) / (1 << _BITS))

    def release(self, trial: Callable[[int], tuple[T, float]], source: Source | None = None) -> T:
        """The outcome of the best of K trials, the first of those with the same score.

        trial: from the number of the trial, which is for its own log only, to its outcome and score.
        source: what K is drawn from; the trials have sources of their own.
        """
        best, highest = _scored(trial, 0)
        for number in range(1, self.number(source)):
            outcome, score = _scored(trial, number)
            if score > highest:
                best, highest = outcome, score
        return best

    def _at(self, uniform: Decimal) -> int:
        """The least k with P(K <= k) > uniform."""
        with localcontext(prec=_DIGITS):
            eta, rest = Decimal(self.eta), 1 - Decimal(self.gamma)
            k, mass = 1, self._first()
            total = mass
            while total <= uniform:
                growth = rest * (k + eta) / (k + 1)
                if mass * growth < (1 - growth) * _NOTHING:  # all that may follow is next to nothing
                    break
                k, mass = k + 1, mass * growth
                total += mass
            return k

    def _first(self) -> Decimal:
        """P(K = 1) = (1 - gamma) eta / (gamma^-eta - 1), or its limit at eta 0."""
        with localcontext(prec=_DIGITS) as context:
            eta, gamma = Decimal(self.eta), Decimal(self.gamma)
            x = -eta * gamma.ln()
            if not x:
                return (1 - gamma) / -gamma.ln()
            context.prec += max(0, -x.adjusted())  # e^x - 1 loses as many digits as x is small
            return (1 - gamma) * eta / (x.exp() - 1)


def choose(expected: float, eta: float) -> float:
    """The gamma with which `expected` trials are run on average, for this eta."""
    low, high = math.log(_LEAST_GAMMA), math.log1p(-1e-15)
    most, least = (expected_trials(eta, math.exp(end)) for end in (low, high))
    if not least < checks.positive("expected", expected) < most:
        raise InputError(
            f"{expected:g} trials on average cannot be had with eta {eta:g}; ask for a number above 1 "
            f"and below {most:.3g}."
        )
    for _ in range(200):
        middle = (low + high) / 2
        more = expected_trials(eta, math.exp(middle)) > expected
        low, high = (middle, high) if more else (low, middle)
    return math.exp(high)


def _scored(trial: Callable[[int], tuple[T, float]], number: int) -> tuple[T, float]:
    outcome, score = trial(number)
    score = float(score)
    return outcome, -math.inf if math.isnan(score) else score
