"""A data-dependent Rényi cost, released with noise: Gaussian noise of smooth sensitivity.

At ONE order a, fixed in advance, the cost f of votes (`analysis.at_most`) and its smooth sensitivity S
(`smooth.changes_at_most`) are released as

    U = f + S (sigma Z + z sigma),      Z standard normal.

Guarantee 1 (what the release costs). Neighbours have |f - f'| <= min(S, S') and S'/S in
[e^-beta, e^beta]. U is N(f + z sigma S, sigma^2 S^2), so the means differ by at most
min(S, S') + z sigma |S - S'|. For two normal laws (Gil, Alajaji, Linder 2013), with r = S'/S,

    D_a = ln r + ln(r^2 / V) / (2 (a - 1)) + a m^2 / (2 sigma^2 V),   V = a r^2 + 1 - a > 0,

where m <= min(1, r) + z sigma |1 - r|. It is largest at r = e^-beta, which is `exact_cost`:
- The first two terms have the derivative 1 - 1/V in ln r, so they grow away from r = 1 on both sides.
- For r < 1, m^2 / V grows as r falls: V <= r^2 and m >= r, so (ln m^2)' <= 2 / r < 2 a r / V = (ln V)'.
- r = e^-t gives no less than r = e^t: V(e^t) - e^(2t) V(e^-t) = (2 a - 1)(e^(2t) - 1) >= 0, which is
  all that the first two terms need, and the last one too, as m(e^t) = e^t m(e^-t).
Either of two neighbours may have the larger S, so both directions are covered: this is a Rényi cost of
the ordinary kind, whatever the votes are, and it must be charged (`event`).

**Theorem 23 of Papernot et al. 2018 says less, and is wrong in part of its range.** It claims
a e^(2 beta) / sigma^2 + (beta a - ln(1 - 2 a beta) / 2) / (a - 1) for all a < 1/(2 beta). But the last
term of D_a is a e^(-2 beta) / (2 sigma^2 V) with V of about 1 - 2 a beta, which its first term covers
only up to a beta of about 1/4. At its rule of thumb beta = 0.4 / a, for a = 14 and sigma = 6.028, it
claims 0.501 where D_a is 0.845 (by quadrature, in the tests). `published_cost` keeps it for comparison;
nothing is charged by it.

Guarantee 2 (what is learnt). U < f with probability Phi(-z), `failure`; else the votes at hand cost at
most U at order a towards each neighbour, and `epsilon` adds the release and converts. That is a number
for these votes, one-sided (see `analysis`) and wrong with probability Phi(-z). It is no (epsilon,
delta)-DP and not for a certificate. For f of `analysis.realised` guarantee 1 holds as well, with the
changes that belong to it; guarantee 2 does not, as that f bounds no divergence.

Order, beta, sigma, z and ceiling must be fixed without a look at the votes. Tuned on them they give
away what the noise was to hide, and nothing above holds.

The draw: Z is an integer of the discrete Gaussian law in 2^50ths (mechanisms/exact.py), all arithmetic
from f, S and Z on is in fractions, and the result is rounded up to a public grid of at least
ceiling sigma / 2^24. As S <= ceiling, a cell of it holds 2^25 values or more, so its probability is
that of the continuous law, rounded, but for 2^-24 relative, out to thousands of deviations. Rounding is
post-processing, and 1e-6 in `cost` pays for the difference at orders from 1.5 on. f and S are doubles:
S is raised by 1e-9 of the ceiling, which outweighs their errors and keeps S'/S within e^beta.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from sourdine import checks
from sourdine.accounting import rdp
from sourdine.accounting.rdp import Renyi
from sourdine.errors import InputError, NotAccountable
from sourdine.events import ApproximateEvent
from sourdine.mechanisms import exact
from sourdine.rng import Source, secure

_FINE = 2**50
_CELLS = 2**24
_DRAWING = 1e-6
_SLACK = Fraction(1, 10**9)
_LEAST_ORDER = 1.5


@dataclass(frozen=True, kw_only=True)
class Sanitised:
    """The release of a cost at `order`; every number here is public and chosen without the votes.

    `ceiling` is the data-independent cost at the order (all checks, all answers that were allowed): no
    cost and no sensitivity of votes lies above it, and what comes out is cut to it.
    """

    order: float
    beta: float
    sigma: float
    ceiling: float
    z: float = 3.0

    def __post_init__(self) -> None:
        for name in ("order", "beta", "sigma", "ceiling"):
            object.__setattr__(self, name, checks.positive(name, getattr(self, name)))
        object.__setattr__(self, "z", checks.not_negative("z", self.z))
        if self.order < _LEAST_ORDER:
            raise InputError(f"the Rényi order is {self.order:g}, but it must be 1.5 or more.")
        exact_cost(self.order, self.beta, self.sigma, self.z)

    @property
    def cost(self) -> float:
        """What the release itself costs at the order, whatever the votes are."""
        return exact_cost(self.order, self.beta, self.sigma, self.z) + _DRAWING

    def costs(self, orders: Sequence[float] = rdp.ORDERS) -> Renyi:
        """The same at all of these orders at which it is finite."""
        most = -1 / math.expm1(-2 * self.beta)
        kept = tuple(order for order in orders if _LEAST_ORDER <= order < most)
        found = (exact_cost(order, self.beta, self.sigma, self.z) + _DRAWING for order in kept)
        return Renyi(kept, tuple(found))

    def event(self, delta: float, adjacency: str = "add-remove") -> ApproximateEvent:
        """The release for a ledger: at this delta, the least epsilon over all orders.

        Votes of add-remove and zero-out neighbours differ by one moved vote; a record that is replaced
        may move two.
        """
        if checks.adjacency(adjacency) == "replace-one":
            raise NotAccountable(
                "a record that is replaced may move two votes, which the smooth sensitivity does not "
                "cover; use adjacency add-remove or zero-out."
            )
        return ApproximateEvent(self.costs().epsilon(delta), checks.delta(delta), adjacency)

    @property
    def failure(self) -> float:
        """The probability that the value released lies below the cost: Phi(-z)."""
        return math.erfc(self.z / math.sqrt(2)) / 2

    @property
    def grid(self) -> Fraction:
        """What values are rounded up to: a power of two, so that it tells nothing of S."""
        return Fraction(2) ** math.ceil(math.log2(self.ceiling * self.sigma)) / _CELLS

    def release(self, value: float, smooth: float, source: Source | None = None) -> float:
        """U for a cost at the order and its smooth sensitivity at beta; to be charged before."""
        for name, number in (("cost", value), ("smooth sensitivity", smooth)):
            if not 0 <= number <= self.ceiling * (1 + 1e-9):  # cannot happen: so it tells nothing
                raise InputError(
                    f"the {name} is not between 0 and the ceiling of {self.ceiling:g}; give the "
                    "data-independent cost of all checks and answers at this order as ceiling."
                )
        draw = exact.gaussian(float(_FINE), 1, source or secure())[0]
        noise = Fraction(self.sigma) * (Fraction(draw, _FINE) + Fraction(self.z))
        size = Fraction(smooth) + _SLACK * Fraction(self.ceiling)
        raised = Fraction(value) + size * noise
        # Cutting is post-processing: no cost lies below 0 or above the ceiling.
        upper = min(math.ceil(raised / self.grid) * self.grid, Fraction(self.ceiling))
        return float(max(upper, Fraction(0)))

    def epsilon(self, upper: float, delta: float) -> float:
        """U + cost + ln(1 - 1/a) - (ln delta + ln a) / (a - 1) (Canonne, Kamath, Steinke 2020).

        For these votes only, towards each neighbour only, and wrong with probability `failure`.
        """
        return max(0.0, rdp.improved(self.order, upper + self.cost, checks.delta(delta)))

    def epsilon_classic(self, upper: float, delta: float) -> float:
        """U + cost + ln(1/delta) / (a - 1), as in the paper; no less, with the same caveats."""
        return max(0.0, rdp.classic(self.order, upper + self.cost, checks.delta(delta)))


def exact_cost(order: float, beta: float, sigma: float, z: float = 0.0) -> float:
    """The largest D_a of releases of neighbours: at S' = e^-beta S (see the top)."""
    lost = -math.expm1(-2 * beta)
    if order * lost >= 1:
        raise NotAccountable(
            f"at order {order:g} a beta of {beta:g} has no finite cost: a (1 - e^(-2 beta)) must be "
            f"below 1. Use a beta below {-math.log1p(-1 / order) / 2:.3g}; {0.2 / order:.2g} is usual."
        )
    log_v = math.log1p(-order * lost)
    moved = math.exp(-beta) - z * sigma * math.expm1(-beta)
    spread = (-2 * order * beta - log_v) / (2 * (order - 1))
    return max(0.0, spread) + order * moved**2 / (2 * sigma**2) * math.exp(-log_v)


def published_cost(order: float, beta: float, sigma: float) -> float:
    """Theorem 23 of Papernot et al. 2018, for z = 0: no bound for a beta above 1/4 or so."""
    if not 1 < order < 1 / (2 * beta):
        raise InputError(f"Theorem 23 is stated for orders above 1 and below {1 / (2 * beta):g}.")
    spread = beta * order - math.log1p(-2 * order * beta) / 2
    return order * math.exp(2 * beta) / sigma**2 + spread / (order - 1)
