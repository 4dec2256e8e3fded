"""`sourdine account`: what a plan costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sourdine import checks
from sourdine.cli.options import Config, Delta, Json, Records, ceiling, floor, print_json
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
    rate: Annotated[float, typer.Option("--rate", help="Sampling probability of one record.")] = 1.0,
    steps: Annotated[float, typer.Option("--steps", help="Number of releases.")] = 1,
    delta: Delta = 1e-6,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Ask for delta at this epsilon instead.")
    ] = None,
    adjacency: Annotated[
        str | None,
        typer.Option("--adjacency", help="add-remove (Poisson's default), zero-out or replace-one."),
    ] = None,
    sampling: Annotated[
        str, typer.Option("--sampling", help="poisson, fixed-size or shuffled lots.")
    ] = "poisson",
    method: Annotated[
        str, typer.Option("--method", help="pld, rdp, moments, gdp, basic or advanced.")
    ] = "pld",
    records: Records = None,
    event_file: Annotated[
        Path | None, typer.Option("--event", help="Account for an event file instead of a plan.")
    ] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Write the event to this file.")] = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """What a private training plan or release costs, as a proven interval.

    Example: `sourdine account --noise-multiplier 1 --rate 0.01 --steps 1000 --delta 1e-5`
    """
    if adjacency is None:  # fixed-size and shuffled lots make n public, which add-remove hides
        adjacency = "add-remove" if sampling == "poisson" else "zero-out"
    checks.adjacency(adjacency)
    delta = checks.delta(delta, None if records is None else checks.whole("records", records))
    if event_file is None:
        event = _planned(noise_multiplier, laplace_scale, rate, steps, sampling, records)
    elif noise_multiplier is not None or laplace_scale is not None:
        raise InputError("give either an event file or a noise level, not both.")
    else:
        event = _read(event_file)
    if save is not None:
        save.write_text(event.to_json() + "\n", encoding="utf-8")
    result: dict[str, object] = {"adjacency": adjacency, "method": method, "sampling": sampling}
    if epsilon is None:
        lower, upper = _method(method)(event, adjacency, delta)
        result |= {"epsilon": upper, "epsilon_lower": lower, "delta": delta}
    else:
        lower, upper = _delta(event, adjacency, method, checks.not_negative("epsilon", epsilon))
        result |= {"epsilon": epsilon, "delta": upper, "delta_lower": lower}
    if event_file is None:
        result |= {"rate": rate, "steps": int(steps)}
    result["data_dependent"] = event.data_dependent
    print_json(result) if json else _say(result, lower, upper, epsilon is None)


def _planned(
    noise: float | None,
    scale: float | None,
    rate: float,
    steps: float,
    sampling: str,
    records: int | None,
) -> Event:
    if (noise is None) == (scale is None):
        raise InputError("give exactly one of --noise-multiplier (Gaussian) and --laplace-scale.")
    rate, count = checks.rate(rate), checks.whole("steps", steps)
    release: Event = GaussianEvent(noise) if noise is not None else LaplaceEvent(scale or 0.0)
    match checks.one_of("sampling", sampling, ("poisson", "fixed-size", "shuffled")):
        case "poisson":
            return (PoissonEvent(rate, release) if rate < 1 else release) * count
        case "fixed-size":
            if records is None:
                raise InputError("fixed-size lots need --records, the public number of records.")
            return FixedSizeEvent(records, max(1, round(rate * records)), release) * count
        case _:
            if noise is None:
                raise InputError("shuffled batches are accounted for with Gaussian noise only.")
            batches = max(1, round(1 / rate))
            return ShuffledEvent(noise, batches, -(-count // batches))


def _read(path: Path) -> Event:
    try:
        return Event.from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"the event file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise EventFileError(f"{path} is no text file, so no event file.") from None
    except EventFileError as error:
        raise EventFileError(f"{path}: {error}") from None


def _method(name: str) -> Callable[[Event, str, float], Bound]:
    return _METHODS[checks.one_of("method", name, tuple(_METHODS))]


def _pld(event: Event, adjacency: str, delta: float) -> Bound:
    from sourdine.accounting import curve  # noqa: PLC0415

    return curve(event, adjacency).epsilon(delta)


def _rdp(event: Event, adjacency: str, delta: float) -> Bound:
    from sourdine.accounting import renyi  # noqa: PLC0415

    return 0.0, renyi(event, adjacency).epsilon(delta)


def _moments(event: Event, adjacency: str, delta: float) -> Bound:
    from sourdine.accounting import moments_epsilon  # noqa: PLC0415

    return 0.0, moments_epsilon(event, delta, adjacency)


def _gdp(event: Event, adjacency: str, delta: float) -> Bound:
    from sourdine.accounting import curve  # noqa: PLC0415
    from sourdine.accounting.dominating import gaussian_mu  # noqa: PLC0415

    if gaussian_mu(event, adjacency) is None:
        raise NotAccountable(
            "mu-GDP is exact for unsampled Gaussian noise only; with sampling it is a limit theorem "
            "that can lie below the truth, so it is no bound. Use method pld."
        )
    return curve(event, adjacency).epsilon(delta)


def _basic(event: Event, adjacency: str, delta: float) -> Bound:
    from sourdine.accounting import basic  # noqa: PLC0415

    each, count = _step(event, adjacency, delta)
    return 0.0, basic([each] * count).epsilon


def _advanced(event: Event, adjacency: str, delta: float) -> Bound:
    """Half of delta is slack. Better than basic for small steps only, so the smaller of both counts."""
    from sourdine.accounting import advanced_tanh  # noqa: PLC0415

    each, count = _step(event, adjacency, delta / 2)
    found = advanced_tanh(each, count, delta / 2).epsilon
    return 0.0, min(found, _basic(event, adjacency, delta)[1])


def _step(event: Event, adjacency: str, delta: float) -> tuple[Promise, int]:
    """What one of several equal steps promises at its share of delta, exactly."""
    from sourdine.accounting import Promise, curve  # noqa: PLC0415

    if len(event.parts) != 1:
        raise NotAccountable("basic and advanced composition are offered for equal steps; use pld.")
    step, count = event.parts[0]
    return Promise(curve(step, adjacency).epsilon_upper(delta / count), delta / count), count


_METHODS: dict[str, Callable[[Event, str, float], Bound]] = {
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
    sign = "=" if upper - lower <= 1e-9 * max(upper, 1e-12) else "<="
    shown = "infinite: this gives no protection" if math.isinf(upper) else ceiling(upper)
    how = f"{result['adjacency']}, {result['method']}"
    print(f"{name} {sign} {shown} at {given} = {result[given]:g}  ({how})")
    if lower > 0 and sign == "<=":
        print(f"between {floor(lower)} and {ceiling(upper)}; the upper end is the guarantee")
    elif lower == 0 and upper > 0:
        print("an upper bound; this method does not say how far it is from the truth")
    if result["data_dependent"]:
        print("data-dependent: this number is itself private and must not be published")
