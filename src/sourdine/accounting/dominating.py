"""From an event and an adjacency to the dominating pairs that account for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sourdine.accounting import atoms, pairs
from sourdine.accounting.pairs import Normal, Pair, Reversed, Sampled, Spliced, Swapped
from sourdine.errors import NotAccountable
from sourdine.events import (
    ApproximateEvent,
    CorrelatedEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
    ExponentialEvent,
    FixedSizeEvent,
    GaussianEvent,
    GdpEvent,
    LaplaceEvent,
    PoissonEvent,
    RandomizedResponseEvent,
    ShuffledEvent,
    TruncatedPoissonEvent,
    ZcdpEvent,
)

_LARGEST_SIGMA = 1e5


@dataclass(frozen=True)
class Worst:
    """The pairs of one event: record present on the left (`forward`) and on the right (`backward`).

    `attained` is a pair that neighbouring data really produces, in the same two directions; it
    differs from the dominating one where the upper bound is not known to be tight, and is None
    where nothing is known to be attained.
    """

    forward: Pair
    backward: Pair
    attained: tuple[Pair, Pair] | None

    @classmethod
    def both_ways(cls, pair: Pair) -> Worst:
        """For a mechanism whose two directions are alike."""
        return cls(pair, pair, (pair, pair))


def worst(event: Event, adjacency: str) -> Worst:
    """The dominating pairs of one uncomposed event, or NotAccountable with the reason."""
    match event:
        case GaussianEvent():
            return Worst.both_ways(Normal(distance(event, adjacency) / event.noise_multiplier))
        case LaplaceEvent():
            epsilon = distance(event, adjacency) / event.noise_multiplier
            return Worst.both_ways(pairs.laplace(epsilon))
        case DiscreteGaussianEvent():
            if event.sigma > _LARGEST_SIGMA:
                raise NotAccountable(
                    f"a discrete Gaussian of sigma {event.sigma:g} has too many atoms to add up; "
                    f"measure in coarser units, so that sigma is at most {_LARGEST_SIGMA:g}."
                )
            moved = event.sensitivity * distance(event, adjacency)
            return Worst.both_ways(atoms.discrete_gaussian(event.sigma, moved))
        case DiscreteLaplaceEvent():
            moved = event.sensitivity * distance(event, adjacency)
            return Worst.both_ways(atoms.discrete_laplace(event.parameter, moved))
        case RandomizedResponseEvent():
            if adjacency != "replace-one":
                raise NotAccountable(
                    f"randomized response has no meaning under {adjacency}: a record that is absent "
                    "gives no answer, which anyone can see. Ask for adjacency replace-one."
                )
            return Worst.both_ways(atoms.randomized_response(event.flip, event.buckets))
        case ApproximateEvent():
            distance(event, adjacency)
            return Worst.both_ways(atoms.approximate(event.epsilon, event.delta))
        case ZcdpEvent():
            raise NotAccountable(
                "a release known only to be rho-zCDP has no dominating pair and composes with Gaussian "
                "noise and its like only; use the Rényi accountant (method rdp)."
            )
        case ExponentialEvent():
            distance(event, adjacency)
            pair = pairs.bounded_range(event.epsilon)
            # Attained by two candidates whose scores move apart by the full range.
            seen = atoms.approximate(event.epsilon / 2, 0.0)
            return Worst(pair, pair, (seen, seen))
        case GdpEvent():
            distance(event, adjacency)
            return Worst.both_ways(Normal(event.mu))
        case PoissonEvent():
            return _poisson(event, adjacency)
        case FixedSizeEvent():
            return _fixed_size(event, adjacency)
        case ShuffledEvent():
            return _shuffled(event, adjacency)
        case CorrelatedEvent():
            return Worst.both_ways(Normal(correlated_mu(event, adjacency)))
        case _:
            raise NotAccountable(
                f"no dominating pair is known for an event of kind {event.kind!r}; "
                "try the Rényi accountant (method rdp)."
            )


def distance(event: Event, adjacency: str) -> int:
    """How many contributions apart the outputs of neighbours are: 1, or 2 under replace-one."""
    stated = getattr(event, "adjacency", None)
    if stated is None:
        return 2 if adjacency == "replace-one" else 1
    # Removing a record also covers zeroing it out; the reverse would need n to be private.
    if stated == adjacency or (stated == "add-remove" and adjacency == "zero-out"):
        return 1
    raise NotAccountable(
        f"an event of kind {event.kind!r} was calibrated under {stated} and gives no bound under "
        f"{adjacency}; account for it under {stated}, or calibrate the mechanism again."
    )


def _poisson(event: PoissonEvent, adjacency: str) -> Worst:
    if event.rate == 1:
        return worst(event.event, adjacency)
    _check_sampled(event.event)
    if adjacency == "replace-one":
        inner = event.event
        if not isinstance(inner, GaussianEvent) or inner.adjacency is not None:
            raise NotAccountable(
                "Poisson sampling under replace-one is proven here for one release with Gaussian noise "
                "only; ask for adjacency zero-out or add-remove."
            )
        return Worst.both_ways(Swapped(1 / inner.noise_multiplier, event.rate))
    mu = gaussian_mu(event.event, adjacency)
    base = Worst.both_ways(Normal(mu)) if mu else worst(event.event, adjacency)
    return _sampled(base, event.rate)


def _check_sampled(event: Event) -> None:
    """Sampling theorems compare a lot with the record to the same lot without it."""
    for part, _ in event.parts:
        if isinstance(part, PoissonEvent | TruncatedPoissonEvent | FixedSizeEvent | ShuffledEvent):
            raise NotAccountable("sampling from a sample has no proven bound here; sample once.")
        if isinstance(part, CorrelatedEvent):
            raise NotAccountable(
                "noise that is correlated over many steps has no proven bound here under sampling; "
                "account for it alone, on records in a fixed order."
            )
        black_box = isinstance(part, ApproximateEvent | ExponentialEvent | GdpEvent)
        if black_box and getattr(part, "adjacency", None) == "zero-out":
            raise NotAccountable(
                f"an event of kind {part.kind!r} that holds under zero-out may show how large the "
                "lot is, so sampling need not amplify it; state it under add-remove."
            )


def _sampled(base: Worst, rate: float) -> Worst:
    def both(forward: Pair, backward: Pair) -> tuple[Pair, Pair]:
        return Sampled(forward, rate), Reversed(Sampled(Reversed(backward), rate))

    forward, backward = both(base.forward, base.backward)
    attained = both(*base.attained) if base.attained else None
    return Worst(forward, backward, attained)


def _fixed_size(event: FixedSizeEvent, adjacency: str) -> Worst:
    """Zhu, Dong, Wang 2022 under replace-one; zero-out is a special case of replacing a record.

    Under zero-out the neighbour of a lot without the record is a lot in which *another* record took
    its place, so the distance is that of replacement. What is attained there is the case where all
    other contributions are zero.
    """
    if adjacency == "add-remove":
        raise NotAccountable(
            "fixed-size lots make the number of records public, so add-remove says nothing about "
            "them; ask for adjacency zero-out or replace-one."
        )
    if event.sample == event.records:
        return worst(event.event, adjacency)
    _check_sampled(event.event)
    rate = event.sample / event.records
    base = worst(event.event, "replace-one")
    pair = Spliced(base.forward, rate)
    if adjacency == "replace-one":
        # Attained direction by direction: all other records are like the one that takes the place.
        return Worst(pair, pair, _sampled(base, rate).attained)
    return Worst(pair, pair, _sampled(worst(event.event, "zero-out"), rate).attained)


def _shuffled(event: ShuffledEvent, adjacency: str) -> Worst:
    """No amplification: once an epoch a record is seen, and the batch it was in may be known.

    Batches hold disjoint records, so an epoch is one Gaussian mechanism. Under add-remove a record
    more shifts all batches behind it, and the shuffle itself depends on the private n.
    """
    if adjacency == "add-remove":
        raise NotAccountable(
            "shuffled batches change all at once when a record is added; no bound is known under "
            "add-remove. Ask for adjacency zero-out or replace-one."
        )
    pair = Normal(shuffled_mu(event, adjacency))
    return Worst(pair, pair, None)


def shuffled_mu(event: ShuffledEvent, adjacency: str) -> float:
    """mu of the Gaussian mechanism that dominates shuffled batches."""
    distance = 2 if adjacency == "replace-one" else 1
    return distance * math.sqrt(event.epochs) / event.noise_multiplier


def correlated_mu(event: CorrelatedEvent, adjacency: str) -> float:
    """mu of correlated noise: exactly one Gaussian mechanism, however the contributions are chosen."""
    if adjacency == "add-remove" and not event.own_schedule:
        raise NotAccountable(
            "one record more or less moves the places of others, and with them their steps; ask for "
            "adjacency zero-out or replace-one, or give each record steps of its own (own_schedule)."
        )
    return distance(event, adjacency) * event.sensitivity / event.noise_multiplier


def gaussian_mu(event: Event, adjacency: str) -> float | None:
    """mu if the whole event is exactly a Gaussian mechanism, else None; mu's add in squares."""
    squares = 0.0
    for part, count in event.parts:
        match part:
            case GaussianEvent():
                mu = distance(part, adjacency) / part.noise_multiplier
            case GdpEvent():
                mu = distance(part, adjacency) * part.mu
            case CorrelatedEvent():
                mu = correlated_mu(part, adjacency)
            case PoissonEvent(rate=1.0, event=GaussianEvent() as whole):
                mu = distance(whole, adjacency) / whole.noise_multiplier
            case _:
                return None
        squares += count * mu**2
    return math.sqrt(squares) or None


def zcdp_rho(event: Event, adjacency: str) -> float | None:
    """rho if every part is Gaussian or stated in zCDP, else None; rhos add up."""
    rho = 0.0
    for part, count in event.parts:
        if isinstance(part, ZcdpEvent):
            distance(part, adjacency)
            rho += count * part.rho
        else:
            mu = gaussian_mu(part, adjacency)
            if mu is None:
                return None
            rho += count * mu**2 / 2
    return rho
