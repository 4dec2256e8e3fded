"""Randomized response: each person answers at random, and only the crowd can be read (Warner 1965).

With probability `flip` the answer is drawn uniformly from all choices, else it is the truth. For two
choices this is the lecture's form: the truth with probability 1/2 + gamma, where flip = 1 - 2 gamma and
epsilon = ln((1/2 + gamma) / (1/2 - gamma)). Two fair coins (the first decides whether to tell the
truth, the second what to say otherwise) are gamma = 1/4, epsilon = ln 3.

Guarantee: one answer is epsilon-DP under replace-one with epsilon = ln(1 + k (1 - flip) / flip), even
against whoever collects the answers. Each person answers once: a second answer is a second event.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from scipy import special

from sourdine import checks
from sourdine.errors import InputError
from sourdine.events import ApproximateEvent, Event, NonPrivateEvent, RandomizedResponseEvent
from sourdine.rng import Source, secure


def least_flip(epsilon: float, choices: int, adjacency: str) -> float:
    """The least flip whose answer is epsilon-DP, for somebody who is replaced or becomes nothing."""
    if adjacency == "replace-one":
        return choices / (choices + math.expm1(epsilon))
    return min(1.0, max(math.exp(-epsilon), (choices - math.exp(epsilon)) / (choices - 1)))


def flip_event(flip: float, choices: int, adjacency: str) -> Event:
    """What one answer costs; under zero-out, somebody who is nothing answers uniformly.

    Against that an answer has likelihood ratio K - (K - 1) flip if it is the true one and flip if it is
    another, so it is ln max(K - (K - 1) flip, 1 / flip)-DP, rounded up.
    """
    if adjacency == "replace-one":
        return RandomizedResponseEvent(flip, choices)
    epsilon = math.log(max(choices - (choices - 1) * flip, 1 / flip))
    return ApproximateEvent(epsilon * (1 + 1e-12) + 1e-12, 0.0, adjacency)


@dataclass(frozen=True)
class Share:
    """The estimated share of one choice among those who answered, with its confidence interval."""

    value: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class RandomizedResponse:
    """One random answer out of `choices`; uniform with probability `flip`, else the truth."""

    flip: float
    choices: tuple[str, ...] = ("no", "yes")

    def __post_init__(self) -> None:
        object.__setattr__(self, "flip", checks.not_negative("flip", self.flip))
        if self.flip > 1:
            raise InputError(f"flip is {self.flip:g}, but it is a probability.")
        object.__setattr__(self, "choices", tuple(self.choices))
        if len(self.choices) < 2 or len(set(self.choices)) != len(self.choices):
            raise InputError("randomized response needs at least two different choices.")

    @classmethod
    def of_gamma(cls, gamma: float, choices: Sequence[str] = ("no", "yes")) -> RandomizedResponse:
        """The truth with probability 1/2 + gamma: 0 tells nothing, 1/2 is the truth itself."""
        if not 0 <= checks.not_negative("gamma", gamma) <= 0.5:
            raise InputError(
                f"gamma is {gamma:g}, but it lies between 0 (no information) and 1/2 (no privacy)."
            )
        if len(choices) != 2:
            raise InputError("gamma is defined for two choices; for more, give epsilon.")
        return cls(1 - 2 * gamma, tuple(choices))

    @classmethod
    def of_coins(cls, truth: float = 0.5, choices: Sequence[str] = ("no", "yes")) -> RandomizedResponse:
        """A first coin tells the truth with probability `truth`; else a fair second coin answers."""
        return cls(1 - checks.probability("truth", truth), tuple(choices))

    @classmethod
    def of_epsilon(cls, epsilon: float, choices: Sequence[str] = ("no", "yes")) -> RandomizedResponse:
        """The most truthful answers that are epsilon-DP."""
        k, epsilon = len(choices), checks.release_epsilon(epsilon)
        if epsilon > 25:
            raise InputError(
                f"epsilon is {epsilon:g}, but a randomized answer takes at most 25: more is the truth."
            )
        return cls(k / (k + math.expm1(epsilon)) * (1 + 1e-15), tuple(choices))

    @property
    def gamma(self) -> float:
        """How far the truth is favoured beyond one half, for two choices."""
        return (1 - self.flip) / 2

    @property
    def keep(self) -> float:
        """The probability of the true answer."""
        return 1 - self.flip + self._other

    @property
    def _other(self) -> float:
        return self.flip / len(self.choices)

    @property
    def epsilon(self) -> float:
        return math.log(self.keep / self._other) if self.flip else math.inf

    @property
    def event(self) -> Event:
        """What one person's answer costs; without any flip there is no privacy at all."""
        if self.flip == 0:
            return NonPrivateEvent()
        return RandomizedResponseEvent(self.flip, len(self.choices))

    def release(self, value: str, source: Source | None = None) -> str:
        """A random answer of a person whose true answer is `value`."""
        source = source or secure()
        if value not in self.choices:  # does not repeat the value: it is somebody's answer
            raise InputError(f"an answer is none of the choices {', '.join(self.choices)}.")
        if source.bernoulli(Fraction(self.flip)):
            return self.choices[source.below(len(self.choices))]
        return value

    def posterior(self, prior: float, answer: str, choice: str | None = None) -> float:
        """What is believed of a person after the answer: deniability, for two choices.

        P(truth = choice | answer) by Bayes' rule, where `prior` is P(truth = choice); `choice` is the
        answer itself if not given. Its odds are at most e^epsilon times the prior odds.
        """
        if len(self.choices) != 2:
            raise InputError("the posterior is offered for two choices.")
        choice = answer if choice is None else choice
        if answer not in self.choices or choice not in self.choices:
            raise InputError(f"answer and choice must be among {', '.join(self.choices)}.")
        if not 0 <= checks.not_negative("prior", prior) <= 1:
            raise InputError(f"prior is {prior:g}, but it is a probability.")
        if self.flip == 0:
            return float(answer == choice)
        match, other = (self.keep, self._other) if answer == choice else (self._other, self.keep)
        return prior * match / (prior * match + (1 - prior) * other)

    def estimate(self, answers: Iterable[str], confidence: float = 0.95) -> dict[str, Share]:
        """The share of each choice among those who answered: unbiased, with the noise's interval.

        p_i = (n_i / n - flip / k) / (1 - flip). Given the truth, n_i is a sum of independent coins with
        variance n (p_i keep (1 - keep) + (1 - p_i) o (1 - o)), o = flip / k, which for two choices does
        not depend on p_i: the standard error is sqrt((1/4 - gamma^2) / n) / 2 gamma. An estimate may
        leave [0, 1]; that is what keeps it unbiased.
        """
        if self.flip == 1:
            raise InputError(
                "with gamma 0 every answer is a fair coin and tells nothing: there is no estimate. "
                "Ask the survey with a larger gamma or epsilon."
            )
        z = float(special.ndtri((1 + checks.probability("confidence", confidence)) / 2))
        counts = Counter(answers)
        if not counts:
            raise InputError("nobody has answered yet: there is nothing to estimate.")
        if not counts.keys() <= set(self.choices):
            raise InputError(f"an answer is none of the choices {', '.join(self.choices)}.")
        n, other, keep = counts.total(), self._other, self.keep
        shares = {}
        for choice in self.choices:
            p = (counts[choice] / n - other) / (1 - self.flip)
            inside = min(1.0, max(0.0, p))
            variance = inside * keep * (1 - keep) + (1 - inside) * other * (1 - other)
            error = z * math.sqrt(variance / n) / (1 - self.flip)
            # Answers are whole: half a person either way, as a continuous law for counts needs.
            error += 0.5 / n / (1 - self.flip) if self.flip else 0.0
            shares[choice] = Share(p, p - error, p + error, confidence)
        return shares
