"""`sourdine account`: what a plan costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sourdine import checks
from sourdine.cli.options import Config, Json, Records, print_json, read_text
from sourdine.digits import above, below
from sourdine.errors import EventFileError, InputError, NotAccountable
from sourdine.events import (
    Event,
    FixedSizeEvent,
    GaussianEvent,
    LaplaceEvent,
    PoissonEvent,
    ShuffledEvent,
)

if TYPE_CHECKING:
    from sourdine.accounting import Promise

Bound = tuple[float, float]


def account(
    noise_multiplier: Annotated[
        float | None, typer.Option("--noise-multiplier", help="Gaussian deviation over the clip.")
    ] = None,
    laplace_scale: Annotated[
        float | None, typer.Option("--laplace-scale", help="Laplace scale over the l1 sensitivity.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", help="Sampling probability of one record; 1 if not given.")
    ] = None,
    steps: Annotated[
        float | None, typer.Option("--steps", help="Number of releases; 1 if not given.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option("--delta", help="Failure probability, below 1/n; 1e-6 if not given.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Ask for delta at this epsilon instead.")
    ] = None,
    adjacency: Annotated[
        str | None,
        typer.Option(
            "--adjacency",
            help="add-remove (default for Poisson lots), zero-out (for the others) or replace-one.",
        ),
    ] = None,
    sampling: Annotated[
        str | None, typer.Option("--sampling", help="poisson (default), fixed-size or shuffled lots.")
    ] = None,
    method: Annotated[
        str, typer.Option("--method", help="pld, rdp, moments, gdp, basic or advanced.")
    ] = "pld",
    accuracy: Annotated[
        float, typer.Option("--accuracy", help="How narrow the interval of pld should be.")
    ] = 1e-6,
    records: Records = None,
    event: Annotated[
        Path | None, typer.Option("--event", help="Account for an event file instead of a plan.")
    ] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write the event to this file.")] = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """What a private training plan or release costs, as a proven interval.

    Example: `sourdine account --noise-multiplier 1 --rate 0.01 --steps 1000 --delta 1e-5`
    """
    if epsilon is not None and delta is not None:
        raise InputError("give --delta to ask for epsilon, or --epsilon to ask for delta, not both.")
    if adjacency is None:  # fixed-size and shuffled lots make n public, which add-remove hides
        adjacency = "add-remove" if sampling in (None, "poisson") else "zero-out"
    checks.adjacency(adjacency)
    checks.one_of("method", method, tuple(_METHODS))
    known = None if records is None else checks.whole("records", records)
    delta = checks.delta(1e-6 if delta is None else delta, known)
    plan = (noise_multiplier, laplace_scale, rate, steps, sampling)
    if event is None:
        found, about = _planned(*plan, known)
    elif any(value is not None for value in plan):
        raise InputError(
            "an event file is the whole plan: give no noise, rate, steps or sampling with it."
        )
    else:
        found, about = _read(event), {}
    result: dict[str, object] = {"adjacency": adjacency, "method": method, **about}
    if epsilon is None:
        lower, upper = _METHODS[method](found, adjacency, delta, accuracy)
        result |= {"epsilon": upper, "epsilon_lower": lower, "delta": delta}
    else:
        lower, upper = _delta(found, adjacency, method, checks.not_negative("epsilon", epsilon))
        result |= {"epsilon": epsilon, "delta": upper, "delta_lower": lower}
    result["data_dependent"] = found.data_dependent
    if save is not None:
        _save(found, save)
    print_json(result) if json else _say(result, lower, upper, epsilon is None)


def _planned(
    noise: float | None,
    scale: float | None,
    rate: float | None,
    steps: float | None,
    sampling: str | None,
    records: int | None,
) -> tuple[Event, dict[str, object]]:
    """The event of a plan, and what to say about it."""
    if (noise is None) == (scale is None):
        raise InputError("give exactly one of --noise-multiplier (Gaussian) and --laplace-scale.")
    rate = checks.rate(1.0 if rate is None else rate)
    count = checks.whole("steps", 1 if steps is None else steps)
    release: Event = GaussianEvent(noise) if noise is not None else LaplaceEvent(scale or 0.0)
    sampling = checks.one_of("sampling", sampling or "poisson", ("poisson", "fixed-size", "shuffled"))
    about: dict[str, object] = {"sampling": sampling, "rate": rate, "steps": count}
    about |= {"noise_multiplier": noise} if noise is not None else {"laplace_scale": scale}
    if sampling == "poisson":
        return (PoissonEvent(rate, release) if rate < 1 else release) * count, about
    if sampling == "fixed-size":
        if records is None:
            raise InputError("fixed-size lots need --records, the public number of records.")
        sample = min(records, math.ceil(rate * records * (1 - 1e-12)))  # never fewer than the rate says
        return FixedSizeEvent(records, sample, release) * count, about | {"sample": sample}
    if noise is None:
        raise InputError("shuffled batches are accounted for with Gaussian noise only.")
    # A loader may drop the last batch that is not full, so an epoch has at least below(1/rate) batches.
    batches = max(1, math.floor(1 / rate * (1 + 1e-12)))
    epochs = -(-count // batches)
    return ShuffledEvent(noise, batches, epochs), about | {"batches": batches, "epochs": epochs}


def _read(path: Path) -> Event:
    text = read_text(path)
    try:
        return Event.from_json(text)
    except InputError as error:
        raise EventFileError(f"{path}: {error}") from None


def _save(event: Event, path: Path) -> None:
    try:
        path.write_text(event.to_json() + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"the event cannot be written to {path}: {error.strerror}.") from None


def _pld(event: Event, adjacency: str, delta: float, accuracy: float) -> Bound:
    from sourdine.accounting import curve  # noqa: PLC0415

    return curve(event, adjacency, accuracy=accuracy).epsilon(delta)


def _rdp(event: Event, adjacency: str, delta: float, accuracy: float) -> Bound:
    from sourdine.accounting import renyi  # noqa: PLC0415

    return 0.0, renyi(event, adjacency).epsilon(delta)


def _moments(event: Event, adjacency: str, delta: float, accuracy: float) -> Bound:
    from sourdine.accounting import moments_epsilon  # noqa: PLC0415

    return 0.0, moments_epsilon(event, delta, adjacency)


def _gdp(event: Event, adjacency: str, delta: float, accuracy: float) -> Bound:
    from sourdine.accounting import curve  # noqa: PLC0415
    from sourdine.accounting.dominating import gaussian_mu  # noqa: PLC0415

    if gaussian_mu(event, adjacency) is None:
        raise NotAccountable(
            "mu-GDP is exact for Gaussian noise without sampling; anything else it meets in the limit "
            "only, where it can lie below the truth, so it is no bound. Use method pld."
        )
    return curve(event, adjacency).epsilon(delta)


def _basic(event: Event, adjacency: str, delta: float, accuracy: float) -> Bound:
    each, count = _step(event, adjacency, delta)
    return 0.0, count * each.epsilon


def _advanced(event: Event, adjacency: str, delta: float, accuracy: float) -> Bound:
    """Half of delta is slack. Better than basic for small steps only, so the smaller of both counts."""
    from sourdine.accounting import advanced_tanh  # noqa: PLC0415

    each, count = _step(event, adjacency, delta / 2)
    found = advanced_tanh(each, count, delta / 2).epsilon
    return 0.0, min(found, _basic(event, adjacency, delta, accuracy)[1])


def _step(event: Event, adjacency: str, delta: float) -> tuple[Promise, int]:
    """What one of several equal steps promises at its share of delta, exactly."""
    from sourdine.accounting import Promise, curve  # noqa: PLC0415

    if len(event.parts) != 1:
        raise NotAccountable("basic and advanced composition are offered for equal steps; use pld.")
    step, count = event.parts[0]
    return Promise(curve(step, adjacency).epsilon_upper(delta / count), delta / count), count


_METHODS: dict[str, Callable[[Event, str, float, float], Bound]] = {
    "pld": _pld,
    "rdp": _rdp,
    "moments": _moments,
    "gdp": _gdp,
    "basic": _basic,
    "advanced": _advanced,
}


def _delta(event: Event, adjacency: str, method: str, epsilon: float) -> Bound:
    from sourdine.accounting import curve, renyi  # noqa: PLC0415

    if method == "pld":
        return curve(event, adjacency).delta(epsilon)
    if method == "rdp":
        return 0.0, renyi(event, adjacency).delta(epsilon)
    raise InputError("delta at a given epsilon is offered by the methods pld and rdp.")


def _say(result: dict[str, object], lower: float, upper: float, asked_epsilon: bool) -> None:
    name, given = ("epsilon", "delta") if asked_epsilon else ("delta", "epsilon")
    how = f"{result['adjacency']}, {result['method']}"
    if "epochs" in result:
        how += f", epochs: {result['epochs']}, shuffled batches in each: {result['batches']}"
    if "sample" in result:
        how += f", lots of {result['sample']}"
    if math.isinf(upper):
        print(f"{name} is infinite at {given} = {result[given]}: no protection is proven  ({how})")
        return
    print(f"{name} <= {above(upper)} at {given} = {result[given]}  ({how})")
    if result["method"] != "pld":
        print("an upper bound; this method does not say how far it is from the truth")
    elif upper > 0:
        print(f"between {below(lower)} and {above(upper)}; the upper end is the guarantee")
    if result["data_dependent"]:
        print("data-dependent: this number is itself private and must not be published")
