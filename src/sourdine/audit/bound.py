"""What an audit proves: a number that epsilon is not below, and under which conditions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sourdine import checks
from sourdine.accounting import curve
from sourdine.digits import below
from sourdine.errors import InputError
from sourdine.events import GaussianEvent

GAUSSIAN = "if the mechanism is Gaussian"


@dataclass(frozen=True)
class Counts:
    """How many canaries there were, on how many of them a guess was made, how many guesses were right.

    The number of guesses is fixed before anyone looks at scores or coins.
    """

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        for name in ("canaries", "guesses", "correct"):
            checks.whole(name, getattr(self, name), least=0)
        if not self.correct <= self.guesses <= self.canaries:
            raise InputError(
                f"{self.correct} correct of {self.guesses} guesses on {self.canaries} canaries cannot "
                "be: each canary gets one guess at most, and each guess is right at most once."
            )


@dataclass(frozen=True)
class Bound:
    """A lower bound on epsilon at `delta`, true with probability `confidence` or more.

    It speaks of the relation "with the canary or without it" (zero-out and add-remove).
    """

    epsilon: float
    delta: float
    confidence: float
    method: str
    conditional: str | None
    """What must hold beside the protocol of the audit; None where nothing need."""
    canaries: int
    """Coins that were thrown; over many runs, the runs."""
    guesses: int
    correct: int

    @property
    def printed(self) -> str:
        """Epsilon with four digits: a lower bound is never rounded up."""
        return below(self.epsilon, 4)

    def __str__(self) -> str:
        condition = f", {self.conditional}" if self.conditional else ""
        return (
            f"Epsilon is at least {self.printed} at delta={self.delta:g} with confidence "
            f"{self.confidence:g}{condition} ({self.method}: {self.correct} of {self.guesses} guesses "
            f"right, {self.canaries} canaries)."
        )


class Method(Protocol):
    """A way from counts to a lower bound, wrong with probability `alpha` at most."""

    @property
    def name(self) -> str:
        """As a result shows it."""

    @property
    def conditional(self) -> str | None:
        """What must hold beside the protocol of the audit; None where nothing need."""

    def epsilon(self, counts: Counts, delta: float, alpha: float, above: float = 0.0) -> float:
        """The largest epsilon that is refuted; `above` where that is not larger."""


def alpha_of(confidence: float) -> float:
    """The probability of a false bound that `confidence` leaves."""
    return 1 - checks.probability("confidence", confidence)


def checked_delta(delta: float) -> float:
    """A delta in [0, 1): zero for pure privacy."""
    number = checks.not_negative("delta", delta)
    if number >= 1:
        raise InputError(f"delta is {delta}, but epsilon can only be bounded at a delta in [0, 1).")
    return number


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon at `delta` of a Gaussian mechanism of distance mu over deviation 1, rounded downwards."""
    if checked_delta(delta) == 0:
        raise InputError(
            "delta is 0, where every Gaussian mechanism has an infinite epsilon; "
            "bound it at a delta above 0, that of the claim."
        )
    return curve(GaussianEvent(1 / mu)).epsilon(delta).lower if mu > 1e-9 else 0.0
