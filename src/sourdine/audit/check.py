"""Whether a mechanism keeps its promise: an attack along the whole trade-off curve.

Statement. For outputs of two neighbours with distributions P0 and P1, and any region S of outputs, a
mechanism with privacy curve delta(epsilon) has, for every epsilon >= 0,

    P1(S) <= e^epsilon P0(S) + delta(epsilon),   1 - P0(S) <= e^epsilon (1 - P1(S)) + delta(epsilon):

the definition of differential privacy, for S and for its complement with the neighbours exchanged.
Together they bound tpr = P1(S) by 1 - f(fpr), fpr = P0(S), with f the trade-off function (Dong, Roth,
Su 2022, Proposition 2.5). An (epsilon, delta) corner alone would need 1e7 to 1e9 draws to notice a
tenth less noise; the curve needs 1e4 to 3e5.

Method. Independent draws of each neighbour are cut in three. The first quarter learns scores
(scores.py), the second chooses two regions {score >= t}: the one that promises the clearest violation
of the claim, and the one that promises the largest epsilon. The other half tests these two.

Proof. Given the first half, S is fixed and the m draws of the second half are independent of it, so
the number of them in S is binomial. Clopper and Pearson's (1934) ends at level false_alarm / 4 give
fpr <= u and tpr >= l for both regions with probability at least 1 - false_alarm, by the union bound
over four ends and the tower rule over the first half. Both inequalities above loosen as fpr grows and
tpr falls; so in that event l <= e^epsilon u + delta(epsilon) and 1 - u <= e^epsilon (1 - l) +
delta(epsilon) for every epsilon at once, if the claim is true, whichever epsilon is looked at and
whenever it was chosen. Only the *upper*, proven end of delta is used: an accusation contradicts what
was promised. For the same reason epsilon >= ln((l - delta) / u) and epsilon >= ln((1 - u - delta) /
(1 - l)) for every delta, in the same event. Hence all that a Finding says is true at once with
probability at least 1 - false_alarm.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sourdine import checks
from sourdine.accounting import PrivacyCurve, curve
from sourdine.audit.regions import Allowed, choose, ends, proven_epsilon
from sourdine.audit.scores import Floats, learn
from sourdine.digits import below
from sourdine.errors import CheckError, InputError
from sourdine.events import ApproximateEvent, Event

_ACCURACY = 1e-4  # of a claimed curve; sampling errors are far larger
_LEAST = 8  # two draws of each neighbour to learn from
_MOST = 10**9  # draws that anyone might make


@dataclass(frozen=True)
class Finding:
    """What an attack found. All of it is true at once with probability `confidence` or more."""

    kept: bool
    """Whether no violation was proven; it is no proof that the claim is right."""
    epsilon: float
    """No claim of less than this epsilon at `delta` can be true; zero if nothing was proven."""
    delta: float
    fpr: float
    """Share of the first neighbour's draws in the region, and the end that it is at most."""
    fpr_upper: float
    tpr: float
    """Share of the second neighbour's draws in the region, and the end that it is at least."""
    tpr_lower: float
    allowed: float
    """The largest tpr that the claim allows where fpr is fpr_upper; broken if tpr_lower is above it."""
    draws: int
    confidence: float

    def __str__(self) -> str:
        proven = below(self.epsilon, 4)  # a lower bound is never rounded up
        verdict = "No violation of the claim was proven" if self.kept else "The claim is broken"
        return (
            f"{verdict}: in {self.draws} draws of each neighbour, a test with a false-positive rate of "
            f"at most {self.fpr_upper:.4g} has a true-positive rate of at least {self.tpr_lower:.4g}; "
            f"the claim allows {self.allowed:.4g}. Epsilon is at least {proven} at "
            f"delta={self.delta:g}, all with a false alarm of at most {1 - self.confidence:.2g}."
        )

    def raise_if_broken(self) -> None:
        """Raise CheckError where a violation was proven."""
        if not self.kept:
            raise CheckError(
                f"{self} Do not use the mechanism under this claim; look for too little noise."
            )


def check_mechanism(
    mechanism: Any,
    neighbours: tuple[Any, Any],
    claim: Event | PrivacyCurve | tuple[float, float] | None = None,
    *,
    adjacency: str = "zero-out",
    delta: float | None = None,
    draws: int = 100_000,
    false_alarm: float = 1e-6,
    score: Callable[[Sequence[Any]], Any] | None = None,
    many: Callable[[Any, int], Sequence[Any]] | None = None,
) -> Finding:
    """Attack a mechanism on two neighbouring inputs and compare with what it claims.

    `mechanism` is a function from data to one output, or an object with `event` and `release(value)`.
    `claim` is an event, a curve or (epsilon, delta), by default `mechanism.event`; an event is
    accounted for under `adjacency`, the relation of the two inputs. `NonPrivateEvent()` claims nothing,
    to measure only. `delta` is where epsilon is bounded: by default the delta of an (epsilon, delta)
    claim, else 0. `draws` outputs are drawn for each neighbour, at once where `many(data, count)`, or
    the mechanism's own `releases` for single numbers, can.
    `score(outputs)` gives each output by itself a number, high where the second neighbour is likelier,
    such as the log likelihood ratio; without it a score is learned.

    Guarantee: a mechanism that keeps its claim on these neighbours, with independent draws, is accused
    with probability at most `false_alarm`, and `epsilon` exceeds its true value only in the same event.
    A finding speaks of these two inputs only; take those that the mechanism tells apart best.

    Edge cases: NaN, None, text and other hashable outputs are categories; a mechanism without noise
    gets a finite epsilon of about ln(draws / 30). Raises InputError for draws so few that even that
    mechanism would pass, and NotAccountable where the event has no proof under the adjacency.
    """
    draws = checks.whole("draws", draws, least=_LEAST)
    level = _probability(false_alarm) / 4
    _check_pair(neighbours)
    claim = _claimed(mechanism, claim, adjacency)
    if delta is None:
        delta = claim.delta if isinstance(claim, ApproximateEvent) else 0.0
    if checks.not_negative("delta", delta) >= 1:
        raise InputError(f"delta is {delta}, but epsilon can only be bounded at a delta in [0, 1).")
    corner = claim.epsilon if isinstance(claim, ApproximateEvent) else math.inf
    promised = curve(claim, adjacency, accuracy=_ACCURACY) if isinstance(claim, Event) else claim
    quarter, half, tested = draws // 4, draws // 2, draws - draws // 2
    allowed = Allowed(promised, tested, corner)
    if promised.infinite < 1 and not _catches(allowed, draws, level):
        raise _too_few(promised, corner, draws, level)

    drawn = [_draw(mechanism, data, draws, many) for data in neighbours]
    scores = learn(drawn, quarter) if score is None else [[_scored(score, side) for side in drawn]]
    seen = [[side[quarter:half] for side in pair] for pair in scores]
    found = []
    for which, least in choose(seen, allowed, delta, tested, level):
        k0, k1 = (int(np.sum(side[half:] >= least)) for side in scores[which])
        upper, lower = (float(end) for end in ends(k0, k1, tested, level))
        found.append((k0 / tested, upper, k1 / tested, lower, allowed.at(upper)))
    fpr, upper, tpr, lower, most = next((row for row in found if row[3] > row[4]), found[0])
    return Finding(
        kept=lower <= most,
        epsilon=max(float(proven_epsilon(row[1], row[3], delta)) for row in found),
        delta=float(delta),
        fpr=fpr,
        fpr_upper=upper,
        tpr=tpr,
        tpr_lower=lower,
        allowed=most,
        draws=draws,
        confidence=1 - false_alarm,
    )


def _probability(false_alarm: float) -> float:
    number = checks.positive("false_alarm", false_alarm)
    if number >= 1:
        raise InputError(f"false_alarm is {number:g}, but it is a probability below 1; 1e-6 is usual.")
    return number


def _check_pair(neighbours: object) -> None:
    if not isinstance(neighbours, tuple | list) or len(neighbours) != 2:
        raise InputError("neighbours must be a pair: the two inputs that differ in one contribution.")


def _claimed(mechanism: Any, claim: Any, adjacency: str) -> Event | PrivacyCurve:
    if claim is None:
        claim = getattr(mechanism, "event", None)
    if isinstance(claim, tuple) and len(claim) == 2:
        return ApproximateEvent(*claim, adjacency=adjacency)
    if not isinstance(claim, Event | PrivacyCurve):
        raise InputError(
            f"{claim!r} is no claim to check; give an event, a curve or (epsilon, delta), "
            "or a mechanism that has an event."
        )
    return claim


def _catches(allowed: Allowed, draws: int, level: float) -> bool:
    """Whether a mechanism without any noise would be caught: a check that cannot fail is none."""
    tested = draws - draws // 2
    upper, lower = ends(0, tested, tested, level)
    return bool(lower > allowed.roughly(np.atleast_1d(upper))[0])


def _too_few(promised: PrivacyCurve, corner: float, draws: int, level: float) -> InputError:
    allowed = Allowed(promised, _MOST, corner)
    least = bisect.bisect_left(
        range(_MOST), True, lo=_LEAST, key=lambda count: _catches(allowed, count, level)
    )
    advice = f"use at least {least}" if least < _MOST else "more than anyone draws would be needed"
    return InputError(
        f"with {draws} draws even a mechanism without any noise would pass for one that keeps "
        f"this claim; {advice}."
    )


def _draw(
    mechanism: Any, data: Any, draws: int, many: Callable[[Any, int], Sequence[Any]] | None
) -> Sequence[Any]:
    if many is None and np.ndim(data) == 0:
        many = getattr(mechanism, "releases", None)
    if many is None:
        release = getattr(mechanism, "release", mechanism)
        if not callable(release):
            raise InputError(f"{mechanism!r} is no mechanism; give a function of the data, or many=.")
        return [release(data) for _ in range(draws)]
    outputs = many(data, draws)
    if len(outputs) != draws:
        raise InputError(f"many gave {len(outputs)} outputs where {draws} were asked for.")
    return outputs


def _scored(score: Callable[[Sequence[Any]], Any], outputs: Sequence[Any]) -> Floats:
    values = np.asarray(score(outputs), dtype=np.float64)
    if values.shape != (len(outputs),) or np.isnan(values).any():
        raise InputError("score must give one number for each output, and no NaN.")
    return values
