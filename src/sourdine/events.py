"""What was released, as inert data that any accountant can read.

An event describes a mechanism completely, so that its privacy cost can be computed without knowing
the code that ran. Most events mirror one of dp-accounting's DpEvents (`dp_events.py` converts both
ways); the others are what that library lacks. Any DpEvent without a twin here travels unchanged in
a `ForeignEvent`.

The law of this file: a field never changes its meaning, a class is never renamed in the files, a
new field has a default that gives old files their old meaning. Files written today load for ever.

Noise is stated relative to what one contribution can change, and the accountant applies the
adjacency: under replace-one the distance doubles. An event with `adjacency` set was calibrated under
that adjacency already; it is never doubled, and other adjacencies are refused.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from sourdine import checks
from sourdine.errors import InputError

FORMAT = "sourdine.event"
VERSION = 1
KINDS: dict[str, type[Event]] = {}


@dataclass(frozen=True)
class Event:
    """A release of private information. Events add up: `a + b`, `1000 * a`."""

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "kind" in cls.__dict__:
            KINDS[cls.kind] = cls

    def __add__(self, other: Event) -> Event:
        return compose([self, other]) if isinstance(other, Event) else NotImplemented

    def __mul__(self, count: int) -> Event:
        return repeat([(self, checks.whole("the number of repetitions", count, least=0))])

    __rmul__ = __mul__

    @property
    def data_dependent(self) -> bool:
        """Whether the cost itself was computed from private data and must not be published."""
        return any(event.data_dependent for event, _ in self.parts if event is not self)

    @property
    def parts(self) -> tuple[tuple[Event, int], ...]:
        """The events that this one is composed of, each with its number of repetitions."""
        return ((self, 1),)

    def to_json(self) -> str:
        """The event as a versioned JSON document; `Event.from_json` gives an equal event back."""
        return json.dumps(
            {"format": FORMAT, "version": VERSION, "event": _plain(self)}, allow_nan=False
        )

    @staticmethod
    def from_json(text: str) -> Event:
        """Read an event from a document that `to_json` wrote, in this version or an older one."""
        from sourdine.event_files import read  # noqa: PLC0415 (it imports the kinds from here)

        return read(text)


@dataclass(frozen=True)
class GaussianEvent(Event):
    """Gaussian noise; `noise_multiplier` is its deviation over the l2 norm of one contribution."""

    kind: ClassVar[str] = "gaussian"
    noise_multiplier: float
    adjacency: str | None = None

    def __post_init__(self) -> None:
        _keep(self, "noise_multiplier", checks.positive)
        _check_adjacency(self.adjacency)


@dataclass(frozen=True)
class LaplaceEvent(Event):
    """Laplace noise; `noise_multiplier` is its scale over the l1 norm of one contribution."""

    kind: ClassVar[str] = "laplace"
    noise_multiplier: float
    adjacency: str | None = None

    def __post_init__(self) -> None:
        _keep(self, "noise_multiplier", checks.positive)
        _check_adjacency(self.adjacency)


@dataclass(frozen=True)
class DiscreteGaussianEvent(Event):
    """Integer noise, P(x) proportional to e^(-x^2 / (2 sigma^2)) (Canonne, Kamath, Steinke 2020).

    One contribution moves one coordinate by at most `sensitivity`, a whole number.
    """

    kind: ClassVar[str] = "discrete-gaussian"
    sigma: float
    sensitivity: int = 1
    adjacency: str | None = None

    def __post_init__(self) -> None:
        _keep(self, "sigma", checks.positive)
        _keep(self, "sensitivity", checks.whole)
        _check_adjacency(self.adjacency)


@dataclass(frozen=True)
class DiscreteLaplaceEvent(Event):
    """Integer noise, P(x) proportional to e^(-parameter |x|), one coordinate moved by `sensitivity`."""

    kind: ClassVar[str] = "discrete-laplace"
    parameter: float
    sensitivity: int = 1
    adjacency: str | None = None

    def __post_init__(self) -> None:
        _keep(self, "parameter", checks.positive)
        _keep(self, "sensitivity", checks.whole)
        _check_adjacency(self.adjacency)


@dataclass(frozen=True)
class RandomizedResponseEvent(Event):
    """Each record answers for itself: with probability `flip` uniformly over all `buckets`."""

    kind: ClassVar[str] = "randomized-response"
    flip: float
    buckets: int = 2

    def __post_init__(self) -> None:
        _keep(self, "flip", checks.positive)
        if self.flip > 1:
            raise InputError(f"flip is {self.flip}, but it is a probability in (0, 1].")
        _keep(self, "buckets", checks.whole)
        if self.buckets < 2:
            raise InputError("randomized response needs at least 2 buckets to choose from.")


@dataclass(frozen=True)
class ApproximateEvent(Event):
    """Any mechanism known only to be (epsilon, delta)-DP; delta 0 is a pure one, such as noisy max."""

    kind: ClassVar[str] = "approximate"
    epsilon: float
    delta: float
    adjacency: str

    def __post_init__(self) -> None:
        _keep(self, "epsilon", checks.positive)
        _keep(self, "delta", checks.not_negative)
        if self.delta != 0:
            checks.delta(self.delta)
        checks.adjacency(self.adjacency)


@dataclass(frozen=True)
class ExponentialEvent(Event):
    """The exponential mechanism: a choice with probability proportional to e^(epsilon u / 2 Delta).

    Gumbel noise before taking the maximum is the same mechanism. Its loss has range epsilon, which
    composes better than pure epsilon-DP alone (Durfee and Rogers 2019).
    """

    kind: ClassVar[str] = "exponential"
    epsilon: float
    adjacency: str

    def __post_init__(self) -> None:
        _keep(self, "epsilon", checks.positive)
        checks.adjacency(self.adjacency)


@dataclass(frozen=True)
class GdpEvent(Event):
    """A release that is mu-GDP: no easier to tell apart than N(0, 1) from N(mu, 1)."""

    kind: ClassVar[str] = "gdp"
    mu: float
    adjacency: str

    def __post_init__(self) -> None:
        _keep(self, "mu", checks.positive)
        checks.adjacency(self.adjacency)


@dataclass(frozen=True)
class ZcdpEvent(Event):
    """A release that is rho-zCDP: its Rényi divergence of every order a is at most a rho.

    Bun and Steinke 2016; a vector of discrete Gaussian noise with l2 sensitivity Delta is one with
    rho = Delta^2 / 2 sigma^2 (Canonne, Kamath, Steinke 2020, Theorem 14).
    """

    kind: ClassVar[str] = "zcdp"
    rho: float
    adjacency: str

    def __post_init__(self) -> None:
        _keep(self, "rho", checks.positive)
        checks.adjacency(self.adjacency)


@dataclass(frozen=True)
class PoissonEvent(Event):
    """Each record enters the lot with probability `rate`, independently; then `event` runs on it."""

    kind: ClassVar[str] = "poisson"
    rate: float
    event: Event

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", checks.rate(self.rate))
        _check_event(self.event)


@dataclass(frozen=True)
class TruncatedPoissonEvent(Event):
    """A Poisson lot of `rate` from `records` records, of which at most `most` are kept, at random.

    A lot that never outgrows the memory planned for it; then `event` runs on what was kept.
    """

    kind: ClassVar[str] = "truncated-poisson"
    rate: float
    records: int
    most: int
    event: Event

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", checks.rate(self.rate))
        _keep(self, "records", checks.whole)
        _keep(self, "most", checks.whole)
        _check_event(self.event)

    @property
    def untruncated(self) -> PoissonEvent:
        """The same lots without a limit."""
        return PoissonEvent(self.rate, self.event)


@dataclass(frozen=True)
class FixedSizeEvent(Event):
    """`sample` of `records` records are drawn without replacement; then `event` runs on them."""

    kind: ClassVar[str] = "fixed-size"
    records: int
    sample: int
    event: Event

    def __post_init__(self) -> None:
        _keep(self, "records", checks.whole)
        _keep(self, "sample", checks.whole)
        if self.sample > self.records:
            raise InputError(f"the sample of {self.sample} is larger than the {self.records} records.")
        _check_event(self.event)


@dataclass(frozen=True)
class ShuffledEvent(Event):
    """Epochs over shuffled data in `batches` batches, a noisy clipped sum released for each batch.

    Each record takes part once an epoch, in a batch that the shuffle decides.
    """

    kind: ClassVar[str] = "shuffled"
    noise_multiplier: float
    batches: int
    epochs: int = 1

    def __post_init__(self) -> None:
        _keep(self, "noise_multiplier", checks.positive)
        _keep(self, "batches", checks.whole)
        _keep(self, "epochs", checks.whole)


@dataclass(frozen=True)
class CorrelatedEvent(Event):
    """C X + Z: sums of contributions over `steps` steps, with Gaussian noise that is banded.

    Row t of X is the sum of step t, of contributions of norm at most 1 that may depend on all that was
    released before; C[t, s] = coefficients[t - s] on and below the diagonal, 0 past the last band; Z is
    independent normal noise of deviation `noise_multiplier`. X + C^-1 Z, which training uses, says the
    same. A record takes part in at most `participations` steps, any two at least `separation` apart,
    which nothing released decides. `own_schedule` says that its steps also stay the same when other
    records come or go, as they do not where places in a list are counted; add-remove needs it.
    """

    kind: ClassVar[str] = "correlated"
    noise_multiplier: float
    coefficients: tuple[float, ...]
    steps: int
    participations: int
    separation: int
    own_schedule: bool = False

    def __post_init__(self) -> None:
        _keep(self, "noise_multiplier", checks.positive)
        for name in ("steps", "participations", "separation"):
            _keep(self, name, checks.whole)
        if not (given := tuple(self.coefficients)):
            raise InputError("coefficients holds a number for each band; give at least one.")
        kept = [checks.positive("the first coefficient", given[0])]
        kept += [
            checks.finite("a coefficient", checks.not_negative("a coefficient", c)) for c in given[1:]
        ]
        object.__setattr__(self, "coefficients", tuple(kept))
        if self.separation < len(kept):
            raise InputError(
                f"a record may come back after {self.separation} steps, but {len(kept)} bands need "
                f"{len(kept)} or more: use at most {self.separation} bands."
            )
        if not isinstance(self.own_schedule, bool):
            raise InputError(f"own_schedule is {self.own_schedule!r}, but it must be true or false.")

    @property
    def sensitivity(self) -> float:
        """How far one record moves C X: max over its schedules of |sum of its columns of C|, l2.

        Its columns lie `separation` >= bands apart, so no row meets two of them and their squares add
        up. A column that the end cuts is no longer than those before it: the j-th of a record's steps
        is at (j - 1) separation or later, so the earliest schedule is the worst, and only its last
        column can be cut (Choquette-Choo et al. 2023; the whole proof is in sgd/correlated.py).
        """
        most = min(self.participations, -(-self.steps // self.separation))
        left = self.steps - (most - 1) * self.separation
        squares = [c * c for c in self.coefficients]
        return math.sqrt((most - 1) * math.fsum(squares) + math.fsum(squares[:left]))


@dataclass(frozen=True)
class PateEvent(Event):
    """The Rényi cost of PATE answers *on the votes at hand*: one-sided, and itself private.

    `rdp[i]` bounds the divergence of order `orders[i]`. It may guide the owner of the data; it is
    no guarantee to publish.
    """

    kind: ClassVar[str] = "pate-data-dependent"
    orders: tuple[float, ...]
    rdp: tuple[float, ...]
    adjacency: str

    def __post_init__(self) -> None:
        orders = tuple(checks.positive("order", order) for order in self.orders)
        object.__setattr__(self, "orders", orders)
        rdp = tuple(checks.not_negative("rdp", value) for value in self.rdp)
        object.__setattr__(self, "rdp", rdp)
        if len(orders) != len(rdp) or not orders:
            raise InputError("orders and rdp must be two lists of the same length, not empty.")
        if min(orders) <= 1:
            raise InputError("every Rényi order must be above 1.")
        checks.adjacency(self.adjacency)

    @property
    def data_dependent(self) -> bool:
        return True


@dataclass(frozen=True)
class SelectionEvent(Event):
    """The best of K independent trials, each of which is `event` on the same data; only it is released.

    "Best" is by a score that is part of what a trial puts out, so `event` pays for training *and*
    scoring. K has a truncated negative binomial law and stays secret: P(K = k) is proportional to
    (1 - gamma)^k prod_{0 < l < k} (l + eta) / (l + 1), for k = 1, 2, ... (eta 1: geometric, eta 0:
    logarithmic; Papernot and Steinke 2022). Where settings differ, every trial draws its own at random
    from the same list, and `event` covers each of them.
    """

    kind: ClassVar[str] = "selection"
    event: Event
    eta: float
    gamma: float

    def __post_init__(self) -> None:
        _check_event(self.event)
        eta, gamma = trials_law(self.eta, self.gamma)
        object.__setattr__(self, "eta", eta)
        object.__setattr__(self, "gamma", gamma)

    @property
    def data_dependent(self) -> bool:
        return self.event.data_dependent

    @property
    def expected(self) -> float:
        """E[K]: how many trials are run on average."""
        return expected_trials(self.eta, self.gamma)


def trials_law(eta: float, gamma: float) -> tuple[float, float]:
    """The checked parameters of a truncated negative binomial law: eta > -1, 0 < gamma < 1."""
    eta, gamma = checks.finite("eta", eta), checks.probability("gamma", gamma)
    if not -1 < eta <= 1000:
        raise InputError(
            f"eta is {eta:g}, but it must lie above -1 and at most at 1000; 0 or 1 is usual."
        )
    if gamma < 1e-12:
        raise InputError(f"gamma is {gamma:g}, but at least 1e-12 can be accounted for.")
    return eta, gamma


def expected_trials(eta: float, gamma: float) -> float:
    """E[K] = (1 - gamma) eta / (gamma (1 - gamma^eta)); (1 - gamma) / (gamma ln(1/gamma)) at eta 0.

    Both are (1 - gamma) / (gamma s) times x / (1 - e^-x) with s = ln(1/gamma) and x = eta s, which
    loses no digits anywhere: not at eta near 0, nor at gamma near 1, where it comes to 1.
    """
    eta, gamma = trials_law(eta, gamma)
    s = -math.log(gamma)
    x = eta * s
    return max(1.0, (1 - gamma) / (gamma * s) * (x / -math.expm1(-x) if x else 1.0))


@dataclass(frozen=True)
class ParallelEvent(Event):
    """Events on disjoint parts of the data: each unit takes part in at most one of them.

    Which one is settled before anything is released, and by the unit alone (a hash of the record or
    person, or a coin of its own), so that no unit moves another. Later parts may use what earlier ones
    have released: a model trained on one part is scored on another. The order says nothing.
    """

    kind: ClassVar[str] = "parallel"
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.events, tuple | list) or not self.events:
            raise InputError("a parallel event holds an event for each part; give at least one.")
        for event in self.events:
            _check_event(event)
        object.__setattr__(self, "events", tuple(sorted(self.events, key=_canonical)))

    @property
    def data_dependent(self) -> bool:
        return any(event.data_dependent for event in self.events)


@dataclass(frozen=True)
class NonPrivateEvent(Event):
    """A release without any protection: its epsilon is infinite."""

    kind: ClassVar[str] = "non-private"


@dataclass(frozen=True)
class ForeignEvent(Event):
    """A DpEvent of dp-accounting that has no twin here, as canonical JSON; see `dp_events.py`."""

    kind: ClassVar[str] = "dp-accounting"
    text: str


@dataclass(frozen=True)
class ComposedEvent(Event):
    """Several events on the same data, each with its number of repetitions, in a canonical order."""

    kind: ClassVar[str] = "composed"
    items: tuple[tuple[Event, int], ...]

    def __post_init__(self) -> None:
        items = []
        for event, count in self.items:
            _check_event(event)
            items.append((event, checks.whole("the number of repetitions", count)))
        object.__setattr__(self, "items", tuple(items))

    @property
    def parts(self) -> tuple[tuple[Event, int], ...]:
        return self.items


def compose(events: Iterable[Event]) -> Event:
    """All events together. The order does not matter: composition commutes."""
    return repeat([(event, 1) for event in events])


def parallel(events: Iterable[Event]) -> Event:
    """Events on disjoint parts of the data; parts that release nothing are left out."""
    kept = tuple(event for event in events if event.parts)
    return ParallelEvent(kept) if len(kept) > 1 else compose(kept)


def repeat(counted: list[tuple[Event, int]]) -> Event:
    """Each event so many times, equal ones counted together, in a canonical order."""
    counts: dict[Event, int] = {}
    for event, count in counted:
        for part, inner in event.parts:
            counts[part] = counts.get(part, 0) + inner * count
    items = [(event, count) for event, count in counts.items() if count]
    if len(items) == 1 and items[0][1] == 1:
        return items[0][0]
    return ComposedEvent(tuple(sorted(items, key=lambda item: _canonical(item[0]))))


@functools.lru_cache(maxsize=4096)
def _canonical(event: Event) -> str:
    return json.dumps(_plain(event), sort_keys=True)


def _plain(event: Event) -> dict[str, Any]:
    if isinstance(event, ComposedEvent):
        return {
            "kind": event.kind,
            "items": [{"count": count, "event": _plain(item)} for item, count in event.items],
        }
    if isinstance(event, ParallelEvent):
        return {"kind": event.kind, "events": [_plain(part) for part in event.events]}
    plain: dict[str, Any] = {"kind": event.kind}
    for field in fields(event):
        value = getattr(event, field.name)
        plain[field.name] = _plain(value) if isinstance(value, Event) else value
    return plain


def _keep(event: Event, name: str, check: Callable[[str, Any], float]) -> None:
    """Store the checked value, so that 1, 1.0 and numpy's 1.0 make the same event."""
    object.__setattr__(event, name, check(name, getattr(event, name)))


def _check_event(event: object) -> None:
    if not isinstance(event, Event) or not event.parts:
        raise InputError(f"{event!r} is no release; build one, for instance GaussianEvent(1.0).")


def _check_adjacency(adjacency: str | None) -> None:
    if adjacency is not None:
        checks.adjacency(adjacency)


NOTHING = ComposedEvent(())
"""No release at all; `NOTHING + event == event`."""
