"""Laplace and Gaussian noise on numbers and vectors.

The answer is rounded to a grid, and integer noise is added in grid units by an exact sampler. Rounding
x to floor(x / g + 1/2) moves together with x: answers that are a whole number of grid steps apart at
most stay so. The grid is the sensitivity over a power of two, fine enough to be invisible beside the
noise, so rounding costs no privacy; the event is that of the discrete noise really drawn. What comes
out, a grid point as a float, is post-processing.

Guarantee: for neighbours whose exact answers differ as the sensitivity says, the law of the release is
dominated by `event`. The answer must have been computed without rounding errors of its own: a float
sum moves by more than its terms say (Casacuberta et al. 2022), so sum integers or Fractions.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import overload

import numpy as np
from numpy.typing import NDArray

from sourdine import checks
from sourdine.accounting import curve, gaussian_sigma, gaussian_sigma_classic
from sourdine.errors import InputError
from sourdine.events import (
    ApproximateEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
    ZcdpEvent,
)
from sourdine.mechanisms import exact
from sourdine.mechanisms.sensitivity import Ball, Moves, Sensitivity
from sourdine.rng import Source, secure

Number = int | float | Fraction
Vector = Sequence[Number] | NDArray[np.generic]
_FINE = 64  # grid steps in one deviation of the noise


class _Additive(ABC):
    """What both kinds of noise share: the grid, and the release on it."""

    sensitivity: float | Sensitivity

    @property
    @abstractmethod
    def grid(self) -> Fraction:
        """The distance between two possible answers."""

    @abstractmethod
    def noise(self, count: int, source: Source) -> list[int]:
        """So many independent draws, in grid steps."""

    @overload
    def release(self, value: Number, source: Source | None = None) -> float: ...

    @overload
    def release(self, value: Vector, source: Source | None = None) -> NDArray[np.float64]: ...

    def release(
        self, value: Number | Vector, source: Source | None = None
    ) -> float | NDArray[np.float64]:
        """The value with noise: a float, or an array of floats for a vector."""
        source = source or secure()
        if isinstance(value, int | float | Fraction | np.number):
            return float(self.grid * (_rounded(value, self.grid) + self.noise(1, source)[0]))
        if not isinstance(value, list | tuple | np.ndarray):
            raise InputError(f"noise is added to a number or a vector, not to {type(value).__name__}.")
        self._check_vector(len(value))
        noise = self.noise(len(value), source)
        steps = [_rounded(item, self.grid) + draw for item, draw in zip(value, noise, strict=True)]
        return np.array([float(self.grid * step) for step in steps])

    def releases(self, value: Number, count: int, source: Source | None = None) -> NDArray[np.float64]:
        """So many independent releases of one number: for audits, each costs what one costs."""
        start = _rounded(value, self.grid)
        noise = self.noise(count, source or secure())
        return np.array([float(self.grid * (start + draw)) for draw in noise])

    def _check_vector(self, size: int) -> None:
        if isinstance(self.sensitivity, int | float):
            raise InputError(
                "a vector was given, but the sensitivity is a plain number, which says how far one "
                "number moves; give Moves(each, coordinates) or Ball(radius, dimension)."
            )
        if isinstance(self.sensitivity, Ball) and self.sensitivity.dimension != size:
            raise InputError(
                f"a vector of {size} coordinates was given, but the sensitivity is stated for "
                f"{self.sensitivity.dimension}."
            )

    def _width(self, steps: int, whole: bool) -> float:
        """Noise within so many steps, as a distance; half a step more where the answer was rounded."""
        return float(self.grid * (steps if whole else Fraction(2 * steps + 1, 2)))


@dataclass(frozen=True)
class Laplace(_Additive):
    """Noise with P(x) proportional to e^(-|x| / scale), scale = l1 sensitivity / epsilon.

    Dwork, McSherry, Nissim, Smith 2006, Theorem 1: pure epsilon-DP. `whole` says that every answer is a
    whole number (counts), which makes the grid 1.
    """

    epsilon: float
    sensitivity: float | Sensitivity = 1.0
    adjacency: str = "zero-out"
    whole: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checks.release_epsilon(self.epsilon))
        object.__setattr__(self, "sensitivity", _plain(self.sensitivity))
        checks.adjacency(self.adjacency)
        _check_whole(self.whole, self._shape)

    @classmethod
    def of_scale(cls, scale: float, sensitivity: float | Moves = 1.0) -> Laplace:
        """The mechanism with this scale of noise in each coordinate."""
        l1 = sensitivity.l1 if isinstance(sensitivity, Moves) else float(sensitivity)
        return cls(l1 / checks.positive("scale", scale), sensitivity)

    @property
    def _shape(self) -> Sensitivity:
        return _shape(self.sensitivity)

    @property
    def _norm(self) -> float:
        return self._shape.l1 if isinstance(self._shape, Moves) else self._shape.radius

    @functools.cached_property
    def grid(self) -> Fraction:
        return _grid(self._shape, self._norm / self.epsilon, self.whole, power=1)

    @functools.cached_property
    def parameter(self) -> float:
        """Loss of one grid step: the noise has P(x) proportional to e^(-parameter |x|) in steps."""
        return self.epsilon / _steps(self._shape, self.grid, self.whole, power=1)

    @property
    def scale(self) -> float:
        """The scale of the noise in one coordinate."""
        return float(self.grid) / self.parameter

    @property
    def event(self) -> Event:
        if isinstance(self._shape, Ball):  # which shift of a given norm is worst is not known
            return ApproximateEvent(self.epsilon, 0.0, self.adjacency)
        steps = math.ceil(Fraction(self._shape.each) / self.grid)
        return self._shape.coordinates * DiscreteLaplaceEvent(self.parameter, steps, self.adjacency)

    def noise(self, count: int, source: Source) -> list[int]:
        return exact.laplace(math.nextafter(1 / self.parameter, math.inf), count, source)

    def half_width(self, confidence: float = 0.95) -> float:
        """How far the answer is from the truth at most, with this confidence.

        P(|X| > k) = 2 e^(-parameter (k + 1)) / (1 + e^-parameter).
        """
        outside = 1 - checks.probability("confidence", confidence)
        a = self.parameter
        steps = -math.log(outside * (1 + math.exp(-a)) / 2) / a - 1
        return self._width(max(0, math.ceil(steps)), self.whole)


@dataclass(frozen=True)
class Gaussian(_Additive):
    """Noise with P(x) proportional to e^(-x^2 / (2 sigma^2)) (Canonne, Kamath, Steinke 2020)."""

    sigma: float
    sensitivity: float | Sensitivity = 1.0
    adjacency: str = "zero-out"
    whole: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", checks.positive("sigma", self.sigma))
        object.__setattr__(self, "sensitivity", _plain(self.sensitivity))
        checks.adjacency(self.adjacency)
        _check_whole(self.whole, self._shape)

    @classmethod
    def calibrated(
        cls,
        epsilon: float,
        delta: float,
        sensitivity: float | Sensitivity = 1.0,
        adjacency: str = "zero-out",
        *,
        whole: bool = False,
    ) -> Gaussian:
        """The least noise that is (epsilon, delta)-DP, to a part in ten thousand.

        The analytic calibration (Balle and Wang 2018, Algorithm 1) starts it; the noise drawn is
        discrete, so the answer is checked on its own curve and widened where that asks for more.
        """
        shape = _shape(sensitivity)
        norm = shape.l2 if isinstance(shape, Moves) else shape.radius
        start = gaussian_sigma(epsilon, delta) * norm

        def fits(sigma: float) -> bool:
            event = cls(sigma, sensitivity, adjacency, whole).event
            return curve(event, adjacency).epsilon_upper(delta) <= epsilon

        low = high = start
        while not fits(high):
            low, high = high, high * 1.01
        for _ in range(7 if low < high else 0):
            middle = (low + high) / 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        return cls(high, sensitivity, adjacency, whole)

    @classmethod
    def classic(cls, epsilon: float, delta: float, sensitivity: float = 1.0) -> Gaussian:
        """sqrt(2 ln(1.25/delta)) Delta / epsilon, for comparison; refused from epsilon 1 on."""
        return cls(gaussian_sigma_classic(epsilon, delta) * sensitivity, sensitivity)

    @property
    def _shape(self) -> Sensitivity:
        return _shape(self.sensitivity)

    @functools.cached_property
    def grid(self) -> Fraction:
        return _grid(self._shape, self.sigma, self.whole, power=2)

    @property
    def _steps(self) -> float:
        return float(Fraction(self.sigma) / self.grid)

    @property
    def event(self) -> Event:
        if isinstance(self._shape, Ball):
            # Theorem 14 of Canonne, Kamath, Steinke bounds every order for vectors; no curve is known.
            moved = _steps(self._shape, self.grid, self.whole, power=2)
            return ZcdpEvent((moved / self._steps) ** 2 / 2 * (1 + 1e-12), self.adjacency)
        steps = math.ceil(Fraction(self._shape.each) / self.grid)
        return self._shape.coordinates * DiscreteGaussianEvent(self._steps, steps, self.adjacency)

    def noise(self, count: int, source: Source) -> list[int]:
        return exact.gaussian(self._steps, count, source)

    def half_width(self, confidence: float = 0.95) -> float:
        """How far the answer is from the truth at most, with this confidence."""
        outside = 1 - checks.probability("confidence", confidence)
        # Integers up to 12 deviations: what lies beyond is below 1e-30.
        x = np.arange(0, math.ceil(12 * self._steps) + 2, dtype=np.float64)
        weight = np.exp(-0.5 * (x / self._steps) ** 2)
        weight[0] /= 2  # two-sided, zero once
        beyond = 1 - np.cumsum(weight) / weight.sum()
        return self._width(int(np.argmax(beyond <= outside)), self.whole)


def _shape(sensitivity: float | Sensitivity) -> Sensitivity:
    return sensitivity if isinstance(sensitivity, Moves | Ball) else Moves(sensitivity)


def _plain(sensitivity: float | Sensitivity) -> float | Sensitivity:
    """A plain number is for scalars, whatever type it came in."""
    return sensitivity if isinstance(sensitivity, Moves | Ball) else Moves(sensitivity).each


def _check_whole(whole: bool, shape: Sensitivity) -> None:
    size = shape.each if isinstance(shape, Moves) else shape.radius
    if whole and size != int(size):
        raise InputError(f"whole answers move by whole numbers, but the sensitivity is {size:g}.")


def _grid(shape: Sensitivity, deviation: float, whole: bool, power: int) -> Fraction:
    """The sensitivity over a power of two, at most a 64th of the noise; 1 for whole answers."""
    if whole:
        return Fraction(1)
    if isinstance(shape, Moves):
        halvings = max(0, math.ceil(math.log2(_FINE * shape.each / deviation)))
        return Fraction(shape.each) / (1 << halvings)
    # Rounding adds up to one step a coordinate; kept below a thousandth of the radius.
    spread = math.pow(shape.dimension, 1 / power)
    fine = max(1024 * spread, _FINE * shape.radius / deviation)
    return Fraction(shape.radius) / (1 << math.ceil(math.log2(fine)))


def _steps(shape: Sensitivity, grid: Fraction, whole: bool, power: int) -> float:
    """The norm of the move in grid steps, rounding of the answer included."""
    if isinstance(shape, Moves):
        return float(Fraction(shape.each) / grid) * math.pow(shape.coordinates, 1 / power)
    rounding = 0.0 if whole else math.pow(shape.dimension, 1 / power)
    return float(Fraction(shape.radius) / grid) + rounding * (1 + 1e-12)


def _rounded(value: Number | np.generic, grid: Fraction) -> int:
    """floor(value / grid + 1/2), exactly."""
    number: Number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, float) and not math.isfinite(number):
        raise InputError("an answer that is no finite number cannot be released.")
    return math.floor(Fraction(number) / grid + Fraction(1, 2))
