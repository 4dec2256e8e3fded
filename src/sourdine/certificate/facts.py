"""What a ledger proves: the releases that count, the guarantee they add up to, how lots were drawn."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sourdine.accounting import curve
from sourdine.accounting.dominating import gaussian_mu
from sourdine.budget import Budget
from sourdine.errors import ContradictionError, InputError, NotAccountable
from sourdine.events import (
    Event,
    FixedSizeEvent,
    ParallelEvent,
    PoissonEvent,
    SelectionEvent,
    ShuffledEvent,
    TruncatedPoissonEvent,
    compose,
)
from sourdine.ledger import Entry, Ledger
from sourdine.ledger.record import RESERVE, SETTLE

DELTAS = tuple(float(f"1e-{power}") for power in range(3, 13))
SECURE, SEEDED = "secure", "seeded"
_SLACK = 1e-9  # a sum of doubles that just reaches the budget is not over it
_WORDS: dict[type[Event], frozenset[str]] = {
    PoissonEvent: frozenset({"poisson"}),
    TruncatedPoissonEvent: frozenset({"poisson", "truncated"}),
    FixedSizeEvent: frozenset({"fixed-size"}),
    ShuffledEvent: frozenset({"shuffled"}),
}


@dataclass(frozen=True)
class Access:
    """One use of the data: what it was, what it cost, and why that is all.

    cost: the event that was charged for it; NOTHING for what needs no charge, as the owner declares
    (the number of records under zero-out, columns named by hand); None for what was not accounted.
    """

    what: str
    cost: Event | None
    why: str = ""

    def __post_init__(self) -> None:
        if not self.what or not isinstance(self.cost, Event | None):
            raise InputError("an access says what was used, and its cost is an event or None.")
        if (self.cost is None or not self.cost.parts) and not self.why:
            raise InputError(f"{self.what!r} was not charged; say why, so that a reader can judge it.")
        if self.cost is not None and private(self.cost):
            raise InputError(
                f"the cost of {self.what!r} was computed from private data and must not be published; "
                "charge an event that does not depend on the data."
            )


AT_LOAD = Access(
    "the records passed the checks at load",
    None,
    "before the charge the owner may have been asked about records whose label was not declared, or "
    "that stand in public texts; that the run was made tells that it was allowed",
)
"""On every certificate, whether or not somebody was asked: a line that comes and goes would tell."""


def private(event: Event) -> bool:
    """Whether the cost of an event, or of one that it holds, is itself private."""
    inner = [part for part, _ in event.parts if part is not event]
    below = getattr(event, "event", None)
    inner += [below] if isinstance(below, Event) else []
    inner += event.events if isinstance(event, ParallelEvent) else ()
    return event.data_dependent or any(private(part) for part in inner)


def releases(entries: Iterable[Entry]) -> tuple[Event, ...]:
    """The events that count: charges, open plans in full, and what was settled of the others."""
    counted: dict[int, Event] = {}
    for entry in entries:
        if entry.kind == SETTLE and entry.refers is not None:
            counted.pop(entry.refers, None)
        counted[entry.id] = entry.event
    return tuple(event for event in counted.values() if event.parts)


def open_plans(entries: Sequence[Entry]) -> list[str]:
    """Plans that nobody has settled."""
    closed = {entry.refers for entry in entries}
    return [entry.label for entry in entries if entry.kind == RESERVE and entry.id not in closed]


def seeded(entries: Iterable[Entry]) -> list[str]:
    """What was drawn from a source that anyone can repeat."""
    return [entry.label for entry in entries if SEEDED in entry.source]


@dataclass(frozen=True)
class Guarantee:
    """A proven epsilon at the budget's delta, what is attained at least, and the curve around it.

    curve: (delta, lower, upper) at 1e-3 to 1e-12 and at the budget's delta, the largest delta first;
    where epsilon has no bound, because some release may fail with more than this delta, there is no
    point. mu: of exact mu-GDP, else None.
    """

    epsilon: float
    lower: float
    curve: tuple[tuple[float, float, float], ...]
    mu: float | None
    accountant: str

    @property
    def points(self) -> list[dict[str, float]]:
        """The curve as a certificate holds it."""
        names = ("delta", "epsilon_lower", "epsilon")
        return [dict(zip(names, point, strict=True)) for point in self.curve]


def guarantee(ledger: Ledger) -> Guarantee:
    """What the ledger's entries together give away at most.

    Guarantee: one plan alone was fixed before anything was seen, so its own curve holds (accounting/
    curves.py), and so does the filter's sum where that is smaller or no curve is known. Later charges
    may have been chosen after looking at earlier answers. The composed curve does not cover that, and
    neither does the sum that happened to be reached: a filter proves the budget it was made with
    (Feldman and Zrnic 2021, Theorem 3.1), so the budget is the claim. The lower end is that of a
    composition fixed in advance, which the adaptive one includes.
    """
    counted, budget = releases(ledger.history()), ledger.budget
    if not counted:
        raise InputError("nothing was ever charged to this ledger: there is no release to certify.")
    event = compose(counted)
    bounds = _bounds(event, budget.adjacency, budget.delta)
    lower, upper = next((low, high) for delta, low, high in bounds if delta == budget.delta)
    if len(counted) > 1 or not math.isfinite(upper):
        spent = ledger.spent().epsilon
        within = len(counted) > 1 and spent <= budget.epsilon * (1 + _SLACK)
        epsilon = budget.epsilon if within else spent
        lower = min(lower, epsilon)
        return Guarantee(epsilon, lower, ((budget.delta, lower, epsilon),), None, "sourdine filter")
    if upper > budget.epsilon:
        upper = min(upper, ledger.spent().epsilon)
    points = tuple(
        # What holds at a smaller delta holds at a larger one.
        (delta, min(low, upper), min(high, upper)) if delta >= budget.delta else (delta, low, high)
        for delta, low, high in bounds
        if math.isfinite(high)
    )
    mu = gaussian_mu(event, budget.adjacency)
    return Guarantee(upper, min(lower, upper), points, mu, "sourdine pld")


@functools.lru_cache(maxsize=256)
def _bounds(event: Event, adjacency: str, small: float) -> tuple[tuple[float, float, float], ...]:
    """(delta, lower, upper) by the event's curve; 0 to infinity where it has none."""
    deltas = sorted({*DELTAS, small}, reverse=True)
    try:
        found = curve(event, adjacency)
    except NotAccountable:  # known by its Rényi cost only
        return tuple((delta, 0.0, math.inf) for delta in deltas)
    return tuple((delta, *found.epsilon(delta)) for delta in deltas)


def check_within(found: Guarantee, budget: Budget) -> None:
    """A ledger never grants more than its budget; one that did is not to be trusted."""
    if found.epsilon > budget.epsilon * (1 + _SLACK):
        raise ContradictionError(
            f"the ledger's entries add up to epsilon={found.epsilon:.6g} at delta={budget.delta:g}, "
            f"over its budget of {budget.epsilon:g}: the ledger was tampered with, or this is a bug of "
            "sourdine. Nothing may be certified from it."
        )


def check_costs(costs: Sequence[Event], counted: Sequence[Event]) -> None:
    """The costs of all accesses are together exactly what the ledger counts."""
    if compose(costs) != compose(counted):
        raise ContradictionError(
            "the costs of the accesses do not add up to what the ledger has counted: some access is "
            "missing, or was charged differently. List every access with the event that was charged."
        )


def sampling(event: Event) -> str:
    """How lots are drawn according to an event, in the words that a certificate uses."""
    said = [_said(part, count) for part, count in _spread(event) if _scheme(part)]
    return "; ".join(said) or "no sampling: every release is charged in full"


def _spread(event: Event) -> list[tuple[Event, int]]:
    """All parts, also those that run on a part of the data only, or in each trial of a selection."""
    found: list[tuple[Event, int]] = []
    for part, count in event.parts:
        if isinstance(part, ParallelEvent | SelectionEvent):
            branches = part.events if isinstance(part, ParallelEvent) else (part.event,)
            inside = (item for branch in branches for item in _spread(branch))
            found += [(inner, number * count) for inner, number in inside]
        else:
            found.append((part, count))
    return found


def _said(part: Event, count: int) -> str:
    match part:
        case PoissonEvent():
            return f"Poisson lots, rate {part.rate:g}, {count} steps"
        case TruncatedPoissonEvent():
            return f"truncated Poisson lots, rate {part.rate:g}, at most {part.most}, {count} steps"
        case FixedSizeEvent():
            return f"fixed-size lots, {part.sample} of {part.records} records, {count} steps"
        case ShuffledEvent():
            return f"shuffled batches, {part.batches} of them, {count * part.epochs} epochs"
    return part.kind


def _scheme(part: Event) -> frozenset[str]:
    """The words that a text on this event must hold; none where every record takes part."""
    if isinstance(part, PoissonEvent) and part.rate == 1:
        return frozenset()
    return _WORDS.get(type(part), frozenset())


def check_sampling(assumed: str, executed: str, counted: Sequence[Event]) -> None:
    """Both texts name the scheme that the events account for, and no other rate or number of steps.

    What was executed may be fewer steps than were charged.
    """
    parts = [item for event in (*counted, compose(counted)) for item in _spread(event)]
    needed = frozenset().union(*(_scheme(part) for part, _ in parts))
    every = frozenset().union(*_WORDS.values())
    whole = any(isinstance(part, PoissonEvent) and part.rate == 1 for part, _ in parts)
    allowed = needed | _WORDS[PoissonEvent] if whole else needed
    for name, text in {"assumed": assumed, "executed": executed}.items():
        found = frozenset(word for word in every if word in text.lower())
        if not needed <= found <= allowed:
            scheme = " ".join(sorted(needed, reverse=True)) or "no sampling"
            raise ContradictionError(
                f"the sampling {name} is described as {text!r}, but the events account for {scheme}."
            )
        rates = [float(part.rate) for part, _ in parts if hasattr(part, "rate")]
        for stated in re.findall(r"\brate (?:of )?(\d*\.?\d+(?:e-?\d+)?)", text):
            if not any(math.isclose(float(stated), rate, rel_tol=1e-2) for rate in rates):
                raise ContradictionError(f"the sampling {name} says rate {stated}, the events do not.")
        steps = [count for part, count in parts if type(part) in _WORDS]
        for stated in re.findall(r"\b(\d+) steps", text):
            fits = int(stated) <= max(steps) if name == "executed" and steps else int(stated) in steps
            if steps and not fits:
                raise ContradictionError(f"the sampling {name} says {stated} steps, the events do not.")
