"""What a certificate means for one person, computed anew from its events.

Guarantee: every number here is an upper bound on what an attack can do, given that the certificate's
events describe what was run. It is computed from pairs (epsilon, delta) that each hold, so leaving
some out loosens a number and never breaks it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sourdine import checks
from sourdine.accounting import PrivacyCurve, Promise, curve, group
from sourdine.errors import InputError, NotAccountable
from sourdine.events import (
    Event,
    ParallelEvent,
    PoissonEvent,
    TruncatedPoissonEvent,
    repeat,
)
from sourdine.report.reading import looks, number, section, text
from sourdine.report.words import event_of

_ACCURACY = 1e-4  # of recomputed epsilons; coarser than the certificate's, and a page renders in time
_PAIRS = 18
STEPS, QUESTIONS = "steps of training", "questions asked"
_MOMENTS = 10
_SLACK = 0.01  # a claim so much above the events' own cost was not computed from them alone


@dataclass(frozen=True)
class Guarantee:
    """What is promised: the part of a certificate without which there is nothing to report."""

    epsilon: float
    delta: float
    unit: str
    adjacency: str
    budget: float | None

    @property
    def person(self) -> str:
        """What one unit is called in a sentence."""
        return "person" if self.unit == "user" else "record"


@dataclass(frozen=True)
class Level:
    """A step of the scale in words."""

    name: str
    upto: float
    words: str


LEVELS = (
    Level("strong", 1.0, "up to 1"),
    Level("solid", 3.0, "up to 3"),
    Level("moderate", 10.0, "up to 10"),
    Level("weak", math.inf, "above 10"),
)


@dataclass(frozen=True)
class Tradeoff:
    """How many members any test can find, from pairs (epsilon, delta) that hold.

    A test with false-positive rate a has a true-positive rate of at most
    min(delta + e^epsilon a, 1 - e^-epsilon (1 - delta - a)) for every pair (Wasserman and Zhou 2010;
    Dong, Roth, Su 2022, Proposition 2.5).
    """

    pairs: tuple[tuple[float, float], ...]

    def found(self, alarms: float, rows: int = 1) -> float:
        """The largest share of members found, at this share of false alarms.

        For a group of `rows` records the bound is applied so many times in a row (Dong, Roth, Su 2022,
        Theorem 2.14).
        """
        most = alarms
        for _ in range(rows):
            most = min([1.0, *(min(_steep(e, d, most), _flat(e, d, most)) for e, d in self.pairs)])
        return most

    @property
    def guess(self) -> float:
        """How often the best guess about one unit is right, where in and out are equally likely.

        Half of 1 + TV, where the total variation distance TV is at most
        (e^epsilon - 1 + 2 delta) / (e^epsilon + 1) for every pair.
        """
        return min([1.0, *((1 + d * math.exp(-e)) / (1 + math.exp(-e)) for e, d in self.pairs)])


def _steep(epsilon: float, delta: float, alarms: float) -> float:
    return delta + math.exp(min(epsilon, 700.0)) * alarms


def _flat(epsilon: float, delta: float, alarms: float) -> float:
    return 1 - math.exp(-epsilon) * (1 - delta - alarms)


@dataclass(frozen=True)
class Findings:
    """All that is computed for a report.

    agrees: whether the claim is what the events cost; None where that could not be computed, and False
    only where the events are proven to cost more.
    path: epsilon of a unit that is trained on after so many steps, what all units meet counted from the
    start; or after so many questions to teachers. over: which of both, in words.
    costs: the epsilon of each access alone, None where it has none.
    """

    guarantee: Guarantee
    level: Level
    tradeoff: Tradeoff
    agrees: bool | None
    path: tuple[tuple[int, float], ...]
    over: str
    costs: tuple[float | None, ...]

    def group(self, rows: int) -> Promise:
        """What holds for several records of one person together."""
        return group(Promise(self.guarantee.epsilon, self.guarantee.delta), rows)


def find(certificate: Mapping[str, Any]) -> Findings:
    """Read a certificate and compute what its promise means.

    Raises InputError where it has no readable guarantee, and EventFileError for damaged events.
    """
    promised = guarantee(certificate)
    event = event_of(certificate.get("events"))
    spent = None if event is None else _curve(event, promised.adjacency)
    agrees, pairs = _compared(promised, spent, filtered=_filtered(certificate))
    path: tuple[tuple[int, float], ...] = ()
    over = STEPS
    if event is not None and agrees:
        path = _path(event, promised)
        questions = section(certificate, "training").get("questions")
        if not path and isinstance(questions, int) and questions > 1:
            path, over = _asked(event, questions, promised), QUESTIONS
    costs = tuple(_cost(access, promised) for access in looks(certificate))
    return Findings(promised, level(promised, certificate), Tradeoff(pairs), agrees, path, over, costs)


def guarantee(certificate: Mapping[str, Any]) -> Guarantee:
    """The promise of a certificate."""
    stated = certificate.get("guarantee")
    if not isinstance(stated, Mapping):
        raise InputError(
            "the certificate has no guarantee: it was cut short or is something else; take the "
            "certificate.json of a finished run."
        )
    epsilon = stated.get("epsilon", "nothing")
    if epsilon != math.inf:
        epsilon = checks.not_negative("epsilon in the certificate", epsilon)
    unit = checks.one_of("unit in the certificate", stated.get("unit", "nothing"), checks.UNITS)
    limit = section(stated, "budget").get("epsilon")
    return Guarantee(
        epsilon,
        checks.delta(stated.get("delta", "nothing")),
        unit,
        checks.adjacency(stated.get("adjacency", "nothing")),
        float(limit) if number(limit) else None,
    )


def level(promised: Guarantee, certificate: Mapping[str, Any]) -> Level:
    """Where the promise stands on the scale; weak where delta would allow to publish a record."""
    if delta_too_large(promised, certificate):
        return LEVELS[-1]
    return next(step for step in LEVELS if promised.epsilon <= step.upto)


def delta_too_large(promised: Guarantee, certificate: Mapping[str, Any]) -> bool:
    """Whether delta is 1/n or more, where n is stated."""
    name = "users" if promised.unit == "user" else "records"
    stated = section(certificate, "data").get(name)
    return isinstance(stated, int) and promised.delta * stated >= 1


def _filtered(certificate: Mapping[str, Any]) -> bool:
    """Whether the claim was proven by a filter, for releases that were no plan fixed in advance."""
    return "filter" in text(section(certificate, "by"), "accountant")


def _compared(
    promised: Guarantee, spent: PrivacyCurve | None, *, filtered: bool
) -> tuple[bool | None, tuple[tuple[float, float], ...]]:
    """Whether claim and events agree, and the pairs that hold.

    Where later releases may have been chosen after looking at earlier ones, the curve of the events
    proves nothing, and only the claim itself holds. So too where the claim lies well above that curve.
    """
    claim = (promised.epsilon, promised.delta)
    if not math.isfinite(promised.epsilon):
        return None, ()
    if spent is None:
        return None, (claim,)
    cost = spent.epsilon(promised.delta)
    if cost.lower > promised.epsilon * (1 + 1e-9):
        return False, ()
    if filtered or promised.epsilon > cost.upper * (1 + _SLACK) + _ACCURACY:
        return None, (claim,)
    # Closer together near 0, which rules most of the trade-off curve.
    grid = [promised.epsilon * (i / (_PAIRS - 1)) ** 1.5 for i in range(_PAIRS)]
    return True, (claim, *((epsilon, spent.delta(epsilon).upper) for epsilon in grid))


def _path(event: Event, promised: Guarantee) -> tuple[tuple[int, float], ...]:
    """Epsilon after parts of the longest series of sampled steps."""
    training = max(_series(event), key=lambda item: item[1], default=(event, 0))
    steps = training[1]
    if steps < 2:
        return ()
    # Closer together at the start, where epsilon grows fastest.
    moments = sorted({round(steps * (i / _MOMENTS) ** 2) for i in range(_MOMENTS)})
    found = []
    for moment in moments:
        spent = _curve(_after(event, training, moment), promised.adjacency)
        if spent is not None:
            found.append((moment, min(promised.epsilon, spent.epsilon_upper(promised.delta))))
    return (*found, (steps, promised.epsilon))


def _asked(event: Event, questions: int, promised: Guarantee) -> tuple[tuple[int, float], ...]:
    """Epsilon after parts of a plan of questions, of which answers come evenly."""
    found = []
    for moment in sorted({round(questions * (i / _MOMENTS) ** 2) for i in range(_MOMENTS)} - {0}):
        parts = [(part, -(-count * moment // questions)) for part, count in event.parts]
        spent = _curve(repeat(parts), promised.adjacency)
        if spent is not None:
            found.append((moment, min(promised.epsilon, spent.epsilon_upper(promised.delta))))
    return ((0, 0.0), *found, (questions, promised.epsilon))


def _series(event: Event) -> list[tuple[Event, int]]:
    """Each series of sampled steps, also of those that run on a part of the data."""
    found: list[tuple[Event, int]] = []
    for part, count in event.parts:
        if isinstance(part, PoissonEvent | TruncatedPoissonEvent):
            found.append((part, count))
        elif isinstance(part, ParallelEvent) and count == 1:
            found += [item for branch in part.events for item in _series(branch)]
    return found


def _after(event: Event, training: tuple[Event, int], steps: int) -> Event:
    """The event with so many steps of one series."""
    items = []
    for part, count in event.parts:
        if (part, count) == training:
            items.append((part, steps))
        elif isinstance(part, ParallelEvent) and training in _series(part):
            # The units of the other parts never meet these steps.
            items += [
                item
                for branch in part.events
                if training in _series(branch)
                for item in _after(branch, training, steps).parts
            ]
        else:
            items.append((part, count))
    return repeat(items)


def _cost(access: Mapping[str, Any], promised: Guarantee) -> float | None:
    event = event_of(access.get("cost"))
    spent = None if event is None else _curve(event, promised.adjacency)
    return None if spent is None else spent.epsilon_upper(promised.delta)


def _curve(event: Event, adjacency: str) -> PrivacyCurve | None:
    try:
        return curve(event, adjacency, accuracy=_ACCURACY)
    except NotAccountable:
        return None
