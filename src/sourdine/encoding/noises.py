"""Noise for vectors, and what it costs: Gaussian, and Laplace done right in three ways.

A release is Lambda Z + N: row j mixes records with coefficients Lambda_ji, drawn without a look at
them. When record i moves by z' - z, row j moves by Lambda_ji (z' - z). So all rows together move by

    |Lambda_.i|_2 |z' - z|_2       in the l2 norm,       |Lambda_.i|_1 |z' - z|_1       in the l1 norm,

whatever the number of rows: the columns of Lambda are the composition, and no theorem is needed. Where
each record is released once by itself, both column norms are 1.

Gaussian: deviation sigma in every number is mu-GDP with mu = (column norm) Delta_2 / sigma (Dong, Roth,
Su 2022); mu for (epsilon, delta) is exact (Balle and Wang 2018).

Laplace, all pure epsilon-DP:
- `IidLaplace`: scale b = (column norm) Delta_1 / epsilon in every number. A vector that is clipped in
  the l2 norm moves by Delta_1 = 2 C sqrt(d), not by 2 C.
- `RadialLaplace`: density of a row proportional to exp(-epsilon' |x|_2 / Delta_2), of radius
  Gamma(d, Delta_2 / epsilon') in a uniform direction (Chaudhuri, Monteleoni, Sarwate 2011). Row j costs
  record i Lambda_ji epsilon', together epsilon with epsilon' = epsilon / (column norm in l1).
- `L1Laplace`: as the first, for features clipped in the l1 norm: Delta_1 = 2 C.

Guarantee: the event is that of exact noise of these laws. What is drawn is Gaussian noise of
sgd/noise.py, and Laplace noise from 53 random bits a value in double precision; both are rounded to a
grid of at most a 1024th of their scale, so that last digits do not show what they hide. Gaussian
tails end at 9.66 deviations, Laplace tails at 37 scales. That the proofs for exact noise carry over is
argued in sgd/noise.py, not proven.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch

from sourdine.accounting import least_noise
from sourdine.budget import Budget
from sourdine.encoding.vectors import Floats, Shape
from sourdine.events import ApproximateEvent, Event, GaussianEvent
from sourdine.rng import Source
from sourdine.sgd.noise import add_noise_

_GRID_BITS = 10


@dataclass(frozen=True)
class Columns:
    """The largest norms of a column of Lambda."""

    two: float = 1.0
    one: float = 1.0


ONCE = Columns()
"""Every record in one row of its own."""


class Noise(ABC):
    """A law of noise. `clips` is the norm in which features are clipped for it."""

    name: str
    clips = 2

    @abstractmethod
    def scale(
        self, budget: Budget, shape: Shape, columns: Columns = ONCE, beside: Event | None = None
    ) -> float:
        """The least scale of the noise for which the release, and what else is charged, fits."""

    @abstractmethod
    def event(self, scale: float, shape: Shape, adjacency: str, columns: Columns = ONCE) -> Event:
        """What noise of this scale costs."""

    @abstractmethod
    def variance(self, scale: float, shape: Shape) -> float:
        """Of one number of a row."""

    @abstractmethod
    def add(self, rows: Floats, scale: float, source: Source) -> Floats:
        """The rows with fresh noise in each, rounded to the grid."""


@dataclass(frozen=True)
class Gaussian(Noise):
    """Normal noise; the scale is its deviation."""

    name = "gaussian"

    def scale(
        self, budget: Budget, shape: Shape, columns: Columns = ONCE, beside: Event | None = None
    ) -> float:
        def plan(multiplier: float) -> Event:
            own = GaussianEvent(multiplier, budget.adjacency)
            return own if beside is None else own + beside

        # A little more than the least, so that a ledger which adds up more finely takes it too.
        multiplier = least_noise(budget, plan) * (1 + 1e-4)
        return multiplier * columns.two * shape.moved(budget.adjacency)

    def event(self, scale: float, shape: Shape, adjacency: str, columns: Columns = ONCE) -> Event:
        return GaussianEvent(scale / (columns.two * shape.moved(adjacency)), adjacency)

    def variance(self, scale: float, shape: Shape) -> float:
        return scale**2

    def add(self, rows: Floats, scale: float, source: Source) -> Floats:
        noisy = torch.from_numpy(rows).float()
        add_noise_([noisy], scale, source)
        return noisy.double().numpy()


class _Pure(Noise):
    """What is epsilon-DP, for an epsilon that is inversely proportional to the scale."""

    @abstractmethod
    def _at_one(self, shape: Shape, adjacency: str, columns: Columns) -> float:
        """The scale for epsilon 1."""

    def scale(
        self, budget: Budget, shape: Shape, columns: Columns = ONCE, beside: Event | None = None
    ) -> float:
        def plan(wide: float) -> Event:
            own = ApproximateEvent(1 / wide, 0.0, budget.adjacency)
            return own if beside is None else own + beside

        wide = 1 / budget.epsilon if beside is None else least_noise(budget, plan)
        return wide * (1 + 1e-9) * self._at_one(shape, budget.adjacency, columns)

    def event(self, scale: float, shape: Shape, adjacency: str, columns: Columns = ONCE) -> Event:
        return ApproximateEvent(self._at_one(shape, adjacency, columns) / scale, 0.0, adjacency)


@dataclass(frozen=True)
class IidLaplace(_Pure):
    """Laplace noise in every number of l2-clipped features: 2 C sqrt(d) / epsilon."""

    name = "laplace"

    def _at_one(self, shape: Shape, adjacency: str, columns: Columns) -> float:
        return columns.one * shape.moved(adjacency, norm=1)

    def variance(self, scale: float, shape: Shape) -> float:
        return 2 * scale**2

    def add(self, rows: Floats, scale: float, source: Source) -> Floats:
        size = exponentials(rows.size, source).reshape(rows.shape)
        signs = np.unpackbits(
            np.frombuffer(source.bytes(-(-rows.size // 8)), np.uint8), count=rows.size
        )
        return _rounded(rows + scale * size * (2.0 * signs.reshape(rows.shape) - 1), scale)


@dataclass(frozen=True)
class L1Laplace(IidLaplace):
    """The same for features clipped in the l1 norm: 2 C / epsilon."""

    name = "laplace, l1 clip"
    clips = 1


@dataclass(frozen=True)
class RadialLaplace(_Pure):
    """Noise of density proportional to exp(-|x|_2 / scale), for each row by itself."""

    name = "laplace, radial"

    def _at_one(self, shape: Shape, adjacency: str, columns: Columns) -> float:
        return columns.one * shape.moved(adjacency)

    def variance(self, scale: float, shape: Shape) -> float:
        return scale**2 * (shape.width + 1)  # E r^2 / d, for r of Gamma(d, scale)

    def add(self, rows: Floats, scale: float, source: Source) -> Floats:
        count, width = rows.shape
        radius = scale * exponentials(count * width, source).reshape(rows.shape).sum(1)
        direction = normals(count * width, source).reshape(rows.shape)
        sizes = np.maximum(np.linalg.norm(direction, axis=1), np.finfo(float).tiny)
        return _rounded(rows + (radius / sizes)[:, None] * direction, scale)


def exponentials(count: int, source: Source) -> Floats:
    """Standard exponentials: -ln u for u in (0, 1) from 53 bits."""
    bits = np.frombuffer(source.bytes(8 * count), dtype="<u8") >> np.uint64(11)
    return np.asarray(-np.log((bits.astype(np.float64) + 0.5) * 2.0**-53))


def normals(count: int, source: Source) -> Floats:
    """Standard normals in double precision, not rounded to a grid: what is made of them is, at the end.

    The direction of a vector whose numbers lie on a grid would be zero in some of them, and show those
    of the record as they are.
    """
    bits = np.frombuffer(source.bytes(8 * count), dtype="<u8") >> np.uint64(11)
    angles = 2 * math.pi * (bits.astype(np.float64) + 0.5) * 2.0**-53
    return np.asarray(np.sqrt(2 * exponentials(count, source)) * np.cos(angles))


def _rounded(noisy: Floats, scale: float) -> Floats:
    """To multiples of a power of two that is at most a 1024th of the scale."""
    grid = 2.0 ** (math.floor(math.log2(scale)) - _GRID_BITS)
    return np.asarray(np.round(noisy / grid) * grid)


NOISES: dict[str, type[Noise]] = {
    kind.name: kind for kind in (Gaussian, IidLaplace, L1Laplace, RadialLaplace)
}
