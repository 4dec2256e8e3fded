"""The law of the total privacy loss, by one exponentially tilted Fourier transform.

With p the lattice law of one step and t >= 0 the tilt, p_t(l) = p(l) e^(t l) / M(t). The tilted
law of the sum is centred where delta is made, so an absolute error of 1e-16 there is a relative
error of delta, however small delta is; dividing by e^(t l) afterwards gives the true law.

Three errors are bounded, none is hoped away:
- *wrapping*: a transform of n points adds up what is n points apart. Mass outside the window is
  bounded by Chernoff's inequality, evaluated on the very masses that are transformed.
- *rounding*: every output of a fast transform is a sum of products that pass log2(n) butterflies. A
  butterfly costs a factor of relative error u, a product sqrt(5) u and a sum u (Brent, Percival,
  Zimmermann 2007; Higham 2002, section 24.1), so 5 u with some room, and each coefficient of a law
  of mass one is off by at most `_BUTTERFLY * (log2(n) + 2)`.
  A coefficient phi raised to the power T is then off by T |phi|^(T-1) times that, which is summed
  over all coefficients and turned into a bound on any weighted sum by Cauchy-Schwarz.
- *input*: cell masses and tilt factors are off by a known relative error. All terms are positive, so
  the composed masses are off by at most T times as much (`relative`). Losses are off by `ROUNDING` a
  step, which moves epsilon (`shift`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import fft

from sourdine.accounting.lattice import Lattice
from sourdine.accounting.normal import Array, ComplexArray
from sourdine.accounting.pairs import ROUNDING

_UNIT = float(np.finfo(np.float64).eps) / 2
_BUTTERFLY = 5 * _UNIT
_LOST = 1e-14  # relative rounding of the composed infinite mass
_LARGEST = 300.0  # larger exponents overflow when they are squared
_DEAD = -100.0  # coefficients below e^-100 are left out; their size still enters the error


@dataclass(frozen=True)
class Window:
    """Where to look: `size` points from the loss `start` on, with the tilts for the bounds."""

    h: float
    start: float
    size: int
    tilt: float
    up: float
    down: float


@dataclass(frozen=True)
class Total:
    """The composed loss: masses of the tilted law on the window, and how far they may be off."""

    losses: Array
    tilted: Array
    tilt: float
    log_scale: float
    infinite: float
    over: float
    under: float
    open_below: bool
    beyond: float
    spread: float
    relative: float
    shift: float

    @cached_property
    def _centre(self) -> float:
        return float(self.losses[int(np.argmax(self.tilted))])

    @cached_property
    def _log_factor(self) -> float:
        return self.log_scale - self.tilt * self._centre

    @cached_property
    def _floor(self) -> float:
        """Nothing is claimed below: there the factors that undo the tilt would overflow."""
        return self._centre - _LARGEST / (self.tilt + 1)

    @cached_property
    def _decay(self) -> Array:
        return np.exp(np.minimum(-self.tilt * (self.losses - self._centre), _LARGEST))

    @cached_property
    def _under_p(self) -> Array:
        return self.tilted * self._decay

    @cached_property
    def _decay_q(self) -> Array:
        return np.exp(np.minimum(-(self.tilt + 1) * (self.losses - self._centre), _LARGEST))

    @cached_property
    def _under_q(self) -> Array:
        return self.tilted * self._decay_q

    def lower(self, epsilon: float) -> float:
        """A number that H_epsilon of the composed lattice pair is not below."""
        if not self._floor <= epsilon <= self._centre + _LARGEST or self._log_factor > _LARGEST:
            return 0.0
        value, slack, heaviest, scale = self._hockey(epsilon + self.shift)
        wrapped = heaviest * (self.over + self.under)
        bound = self.infinite * (1 - _LOST) + scale * ((1 - self.relative) * value - slack - wrapped)
        # Masses below 1e-140 may only stand for far tails (atoms.py), which are not attained.
        return float(bound) if bound > 1e-140 else 0.0

    def upper(self, epsilon: float) -> float:
        """A number that H_epsilon of the composed lattice pair is not above."""
        epsilon -= self.shift
        unseen = epsilon < self.losses[0] and self.open_below  # losses below the window
        if unseen or epsilon < self._floor or self._log_factor > _LARGEST:
            return 1.0
        value, slack, _, scale = self._hockey(epsilon)
        total = scale * ((1 + np.expm1(self.relative)) * value + slack)
        return float(min(1.0, self.infinite * (1 + _LOST) + total + self.beyond))

    def _hockey(self, epsilon: float) -> tuple[float, float, float, float]:
        """sum over l > epsilon of p(l) (1 - e^(epsilon - l)), and what bounds its error."""
        start = int(np.searchsorted(self.losses, epsilon, side="right"))
        rise = float(np.exp(min(epsilon - self._centre, _LARGEST)))
        tail = float(self._under_q[start:].sum()) * rise
        value = max(0.0, float(self._under_p[start:].sum()) - tail)
        weights = self._decay[start:] - rise * self._decay_q[start:]
        # Squares below 1e-300 underflow, so the norm is never taken for smaller than 1e-150.
        slack = float(np.sqrt(np.square(weights).sum()) + 1e-150) * self.spread
        adding = 4 * _UNIT * (np.log2(len(self.losses)) + 60)  # rounding of the two sums themselves
        slack += adding * (value + 2 * tail)
        heaviest = float(weights.max(initial=0.0))
        scale = float(np.exp(min(self._log_factor, _LARGEST)))
        return value, slack, heaviest, scale


@dataclass(frozen=True)
class _Step:
    """One part of the composition, tilted and transformed."""

    weight: Array
    losses: Array
    count: int
    size: Array
    error: float


def total(parts: Sequence[tuple[Lattice, int]], window: Window) -> Total:
    """Compose the lattice laws, each taken `count` times."""
    h, n, tilt = window.h, window.size, window.tilt
    steps: list[_Step] = []
    phis = []
    log_scale = origin = log_finite = relative = 0.0
    first = reach = 0
    for lattice, count in parts:
        losses = lattice.losses(h)
        exponent = tilt * losses
        law = np.maximum(lattice.p, 1e-300 * (lattice.p.sum() == 0))  # all mass may be at infinity
        peak = float(exponent[law > 0].max())
        weight = law * np.exp(np.minimum(exponent - peak, 0.0))
        mass = float(weight.sum())
        weight /= mass
        log_scale += count * (peak + float(np.log(mass)))
        folded = np.zeros(-(-len(weight) // n) * n)
        folded[: len(weight)] = weight
        phi = fft.rfft(folded.reshape(-1, n).sum(axis=0))
        error = _BUTTERFLY * (np.log2(n) + 2)
        size = np.log(np.abs(phi) + error)
        steps.append(_Step(weight, losses, count, size, error))
        relative += count * (ROUNDING + 4 * _UNIT * (float(np.abs(exponent).max()) + 16))
        phis.append(phi)
        origin += count * lattice.origin
        first += count * lattice.first
        reach += count * (len(weight) - 1)
        log_finite += count * (float(np.log1p(-lattice.infinite)) if lattice.infinite < 1 else -np.inf)
    law, spread = _power(steps, phis, n)
    # The point with index k (mod n) in the sum lies at origin + h * (first + k).
    offset = int(np.ceil((window.start - origin) / h)) - first
    law = np.maximum(np.roll(law, -(offset % n)), 0.0)
    base = origin + h * (first + offset)
    count = sum(step.count for step in steps)
    shift = 2 * ROUNDING * count + 8 * _UNIT * (abs(origin) + h * abs(first) + abs(base))
    grid: Array = base + h * np.arange(n, dtype=np.float64)
    end = float(grid[-1])
    over = 0.0 if offset + n > reach else _chernoff(steps, window.up, end + h)
    under = 0.0 if offset <= 0 else _chernoff(steps, -window.down, base - h)
    open_below = offset > 0
    beyond = float(np.exp(min(0.0, log_scale - tilt * end))) * over
    infinite = -float(np.expm1(log_finite))
    return Total(
        grid, law, tilt, log_scale, infinite, over, under, open_below, beyond, spread, relative, shift
    )


def _power(steps: Sequence[_Step], phis: list[ComplexArray], n: int) -> tuple[Array, float]:
    """The product of the transforms' powers, transformed back, with a bound on its l2 error."""
    log_size = np.zeros(n // 2 + 1)
    for step in steps:
        log_size += step.count * step.size
    alive = np.flatnonzero(log_size > _DEAD)
    log_phi = np.zeros(len(alive), dtype=np.complex128)
    with np.errstate(divide="ignore", invalid="ignore"):  # where phi is 0, so is e^(count ln phi)
        for step, phi in zip(steps, phis, strict=True):
            log_phi += step.count * np.log(phi[alive])
    powered = np.zeros(n // 2 + 1, dtype=np.complex128)
    powered[alive] = np.exp(log_phi)
    # e^z is off by |z's error|: the angle's rounding, and |ln phi| e^(-|ln phi|) at the most.
    count = sum(step.count for step in steps)
    arithmetic = 8 * _UNIT * count + _BUTTERFLY * (np.log2(n) + 2)
    spread = arithmetic * _signal_norm(np.abs(powered), n) + float(np.exp(_DEAD))
    for step in steps:
        exponent = log_size - step.size
        live = exponent > _DEAD
        bound = np.full(len(exponent), np.exp(_DEAD))
        bound[live] = np.exp(exponent[live])
        spread += step.count * step.error * _signal_norm(bound, n)
    return fft.irfft(powered, n), spread


def _chernoff(steps: Sequence[_Step], order: float, edge: float) -> float:
    """Bound on the probability that the sum passes the edge, upwards or (order < 0) downwards."""
    best = 1.0
    held = []
    for step in steps:  # what has no weight has no part in a moment
        first, last = np.flatnonzero(step.weight)[[0, -1]]
        held.append((step.weight[first : last + 1], step.losses[first : last + 1], step.count))
    for factor in 0.25 ** np.arange(14):
        exponent = -factor * order * edge
        for weight, losses, count in held:
            power = factor * order * losses
            peak = max(float(power[0]), float(power[-1]))  # losses rise
            moment = float((weight * np.exp(np.minimum(power - peak, 0.0))).sum())
            exponent += count * (peak + float(np.log(moment)))
        best = min(best, float(np.exp(min(0.0, exponent))))
        if best < 1e-9:
            break
    return best


def _signal_norm(half: Array, n: int) -> float:
    """l2 norm over the points of a real signal, from half of its spectrum."""
    squares = half**2
    return float(np.sqrt((2 * squares.sum() - squares[0] - squares[-1]) / n))
