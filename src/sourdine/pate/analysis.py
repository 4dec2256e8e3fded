"""What the answers to given votes cost: the data-dependent Rényi analysis of PATE, for the owner only.

Where teachers agree, noise hardly ever changes the answer, so the answer tells less about any one of
them than the worst case does. For votes n of K teachers on m classes let q bound P(answer != j*):

    GNMax:  q = min(sum over j != j* of Phi(-(n_j* - n_j) / (sqrt(2) sigma)), 1 - 1/m)
            (Papernot et al. 2018, Proposition 7; exact for two classes)
    LNMax:  q = min(sum over j != j* of (2 + g_j) e^(-g_j) / 4, 1 - 1/m), g_j = (n_j* - n_j) / scale
            (Papernot et al. 2017, Lemma 4)

`rdp_gnmax` and `rdp_threshold` are Theorem 6 of 2018 with the orders of Proposition 10, `rdp_lnmax` is
Theorem 3 of 2017. One record lies with one teacher, so neighbours differ by one moved vote.

**No guarantee, never on a certificate.** For three reasons:
- It is per-instance: a bound for the votes at hand. Other votes would cost something else.
- It is one-sided: D_a(M(D) || M(D')) alone is bounded, for the D at hand and each neighbour D'. The
  reverse may be larger: votes (95, 5) with sigma 10 at order 5 are bounded by 1.32e-9, and the
  divergence from (94, 6) back to them is 2.14e-9.
- It is computed from the votes, so the number is itself private; `sanitise` is the way to release one.
What may be published is the data-independent cost: a / sigma^2 an answer of GNMax, a / (2 sigma1^2) a
threshold check, at the number of queries and of answers that was allowed beforehand.

Three sums over queries, all for the owner:
- `at_most`: the checks of all queries and the dearest answers, as many as are allowed. For questions
  fixed beforehand, costs along no dialogue exceed it, so it bounds D_a(M(D) || M(D')) of the whole.
- `realised`: the checks of all queries and the answers that were given; the figure of the papers'
  tables. Which queries are answered is chance, and the sum along the dialogue that came out is not the
  divergence of the mechanism, which weighs all dialogues.
- `expected`: the same with each answer weighed by its probability, as in the original scripts. A mean
  of divergences bounds no divergence; it is for planning.

Noise on a grid of step h (`grid`): integer noise of the discrete Gaussian law times h. Its mass at x is
at most h times the density at x (Poisson summation), and where the density is convex, beyond one
deviation, that is at most the mass of [x - h/2, x + h/2]. So P(noise >= g) <= P(normal >= g - h/2).
The difference of two such noises has masses of at most h times its density, up to a factor of
1 + 2 e^(-(pi sigma / h)^2), below rounding for h <= sigma / 2, which is asked for. A tie counts as a
wrong answer. If the sum is at most Phi(-1), every gap in it lies beyond one deviation; if not, q is set
to its cap, and from ln(1/q) < 1 on Theorem 6 never applies. It needs the divergences a / sigma^2 of the
mechanism itself; discrete noise has no larger ones where 1 is a multiple of h (Canonne, Kamath, Steinke
2020, Theorem 4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from sourdine import checks
from sourdine.accounting.rdp import Renyi
from sourdine.errors import InputError

Floats = NDArray[np.float64]
ORDERS: tuple[float, ...] = tuple(
    sorted(
        {
            *(2 + x / 2 for x in range(198)),
            *(float(x) for x in np.logspace(2, math.log10(500), 100)),
        }
    )
)
"""The orders of the published figures: 2 to 100.5 by halves, and a hundred from 100 to 500."""
_ROWS = 2048  # queries at a time: a few arrays of rows x orders stay in the cache
_ONE_DEVIATION = float(special.log_ndtr(-1.0))


def log_q_gnmax(counts: ArrayLike, sigma: float, grid: float = 0.0) -> Floats:
    """ln q of every row of votes: a bound on the probability that GNMax gives another answer."""
    rows = votes(counts)
    return _capped(log_union(rows, sigma, grid), rows.shape[1], grid)


def log_union(counts: ArrayLike, sigma: float, grid: float = 0.0) -> Floats:
    """The same before it is capped: the sum over all other classes, which may be above 1."""
    gaps = _gaps(votes(counts))
    sigma, grid = checks.positive("sigma", sigma), _grid(grid, sigma)
    terms = special.log_ndtr(-(gaps - grid / 2) / (math.sqrt(2) * sigma))
    return np.asarray(special.logsumexp(terms, axis=1))


def log_answered(
    top: ArrayLike, threshold: float, sigma: float, grid: float = 0.0
) -> tuple[Floats, Floats]:
    """ln P(top + noise >= threshold) and ln P(top + noise < threshold), for each top.

    With a grid both are bounds from above, valid where they are at most Phi(-1).
    """
    sigma, grid = checks.positive("sigma", sigma), _grid(grid, sigma)
    ahead = np.asarray(top, np.float64) - checks.finite("threshold", threshold)
    passed = special.log_ndtr((ahead + grid / 2) / sigma)
    return passed, special.log_ndtr((grid / 2 - ahead) / sigma)


def rdp_gnmax(log_q: ArrayLike, sigma: float, orders: Sequence[float] = ORDERS) -> Floats:
    """The bound on D_a(M(D) || M(D')) of one GNMax answer; (queries, orders).

    With L = ln(1/q), mu2 = sigma sqrt(L), mu1 = mu2 + 1 and eps_i = mu_i / sigma^2, where a < mu1,
    mu2 > 1, L > eps2 and q <= e^((mu2 - 1) eps2) / (mu1/(mu1 - 1) mu2/(mu2 - 1))^mu2:

        ln((1 - q) A^(a-1) + q B^(a-1)) / (a - 1),
        A = (1 - q) / (1 - (q e^eps2)^(1 - 1/mu2)),  B = e^eps1 / q^(1 / (mu1 - 1));

    never above a / sigma^2, which holds everywhere; 0 where q = 0. Any mechanism with a modal answer
    that costs a / sigma^2 at every order a may be put in (Papernot et al. 2018, Theorem 6).
    """
    sigma, a = checks.positive("sigma", sigma), _orders(orders)
    log_q = np.atleast_1d(np.asarray(log_q, np.float64))
    if log_q.ndim != 1 or np.isnan(log_q).any() or (log_q > 0).any():
        raise InputError("ln q must be a list of numbers that are not above zero.")
    cost = np.broadcast_to(a / sigma**2, (len(log_q), len(a))).copy()
    cost[np.isneginf(log_q)] = 0.0
    valid = _valid(log_q, sigma)
    log_q = log_q[valid]
    root = np.sqrt(-log_q)
    log_b = (sigma * root + 1) / sigma**2 + root / sigma  # since -ln q / (mu1 - 1) = sqrt(L) / sigma
    # ln of (q e^eps2)^(1 - 1/mu2), with both roots of L / sigma^2 taken together.
    log_w = log_q + 2 * root / sigma - 1 / sigma**2
    log_a = np.log1p(-np.exp(log_q)) - np.log1p(-np.exp(log_w))
    bound = np.logaddexp(
        np.log1p(-np.exp(log_q))[:, None] + np.outer(log_a, a - 1),
        log_q[:, None] + np.outer(log_b, a - 1),
    )
    bound /= a - 1
    small = a < (sigma * root + 1)[:, None]
    cost[valid] = np.where(small, np.clip(bound, 0.0, cost[valid]), cost[valid])
    return cost


def rdp_threshold(
    top: ArrayLike,
    threshold: float,
    sigma: float,
    orders: Sequence[float] = ORDERS,
    grid: float = 0.0,
) -> Floats:
    """The bound for one check top + N(0, sigma^2) >= threshold; (queries, orders).

    One vote moves the top by at most 1, so the check costs a / (2 sigma^2): that of GNMax with sqrt(2)
    sigma. The rarer of both outcomes has probability q = min(p, 1 - p). Tops that are no whole numbers
    (votes less what a student expects) are taken as they are; the original rounds them.
    """
    q = np.minimum(*log_answered(np.atleast_1d(top), threshold, sigma, grid))
    return rdp_gnmax(_capped(q, 2, grid), math.sqrt(2) * sigma, orders)


def rdp_lnmax(
    counts: ArrayLike, scale: float, orders: Sequence[float] = ORDERS, grid: float = 0.0
) -> Floats:
    """The bound on D_a(M(D) || M(D')) of one LNMax answer; (queries, orders).

    With e = 2 / scale the least of a e^2 / 2, e and, where q <= 1 / (e^e + 1),

        ln((1 - q) ((1 - q) / (1 - e^e q))^(a-1) + q e^(e (a-1))) / (a - 1).

    With a grid of step h the noise has P(x) proportional to p^(|x| / h), p = e^(-h / scale), and the
    difference of two P(D = k h) = tanh(u)^2 p^k (k + coth(2 u)), u = h / (2 scale), for k >= 0, whose
    sum from the gap on is taken in place of (2 + g) e^-g / 4. Ties count as wrong answers.
    """
    scale, a = checks.positive("scale", scale), _orders(orders)
    gaps, e = _gaps(votes(counts)), 2 / scale
    grid = _grid(grid, scale)
    if grid:
        steps, p, u = np.ceil(gaps / grid), math.exp(-grid / scale), grid / (2 * scale)
        tail = (steps + 1 / math.tanh(2 * u)) / -math.expm1(-2 * u) + p / math.expm1(-2 * u) ** 2
        terms = np.log(tail) + 2 * math.log(math.tanh(u)) - steps * grid / scale
    else:
        terms = np.log((2 + gaps / scale) / 4) - gaps / scale
    log_q = _capped(special.logsumexp(terms, axis=1), gaps.shape[1] + 1, 0.0)
    cost = np.broadcast_to(np.minimum(a * e**2 / 2, e), (len(log_q), len(a))).copy()
    valid = log_q <= -np.logaddexp(0.0, e)
    q = np.exp(log_q[valid])
    bound = np.logaddexp(
        np.outer(np.log1p(-q), a) - np.outer(np.log1p(-q * math.exp(e)) if len(q) else q, a - 1),
        log_q[valid][:, None] + e * (a - 1),
    )
    bound /= a - 1
    cost[valid] = np.clip(bound, 0.0, cost[valid])
    return cost


def gnmax(
    counts: ArrayLike, sigma: float, orders: Sequence[float] = ORDERS, grid: float = 0.0
) -> Renyi:
    """All rows answered by GNMax, without a check."""
    log_q = log_q_gnmax(counts, sigma, grid)
    return _summed(log_q, np.ones(len(log_q)), sigma, orders)


def lnmax(
    counts: ArrayLike, scale: float, orders: Sequence[float] = ORDERS, grid: float = 0.0
) -> Renyi:
    """All rows answered by LNMax."""
    rows = votes(counts)
    total = np.zeros(len(orders))
    for start in range(0, len(rows), _ROWS):
        total += rdp_lnmax(rows[start : start + _ROWS], scale, orders, grid).sum(0)
    return Renyi(tuple(orders), tuple(total.tolist()))


def realised(
    counts: ArrayLike,
    answered: ArrayLike,
    threshold: float,
    sigma1: float,
    sigma2: float,
    orders: Sequence[float] = ORDERS,
    grid: float = 0.0,
    tops: ArrayLike | None = None,
) -> Renyi:
    """Confident-GNMax as it went: a check for every row, GNMax for the rows that were answered.

    `tops` is what the check looked at where it is not the largest count (Interactive-GNMax: the largest
    of n - K p, for the probabilities p of the student).
    """
    rows = votes(counts)
    mask = np.asarray(answered)
    if mask.dtype != np.bool_ or mask.shape != (len(rows),):
        raise InputError("`answered` must hold one True or False for every row of votes.")
    checked = _checks(rows, tops, threshold, sigma1, orders, grid)
    return checked + _summed(log_q_gnmax(rows, sigma2, grid), mask * 1.0, sigma2, orders)


def expected(
    counts: ArrayLike,
    threshold: float,
    sigma1: float,
    sigma2: float,
    orders: Sequence[float] = ORDERS,
    grid: float = 0.0,
    tops: ArrayLike | None = None,
) -> Renyi:
    """Confident-GNMax on average: the cost of each answer weighed by the chance that it is given."""
    rows = votes(counts)
    chance = np.exp(log_answered(_tops(rows, tops), threshold, sigma1)[0])
    checked = _checks(rows, tops, threshold, sigma1, orders, grid)
    return checked + _summed(log_q_gnmax(rows, sigma2, grid), chance, sigma2, orders)


def at_most(
    counts: ArrayLike,
    answers: int,
    threshold: float,
    sigma1: float,
    sigma2: float,
    orders: Sequence[float] = ORDERS,
    grid: float = 0.0,
    tops: ArrayLike | None = None,
) -> Renyi:
    """Confident-GNMax that stops at so many answers: all checks, and the dearest answers."""
    rows = votes(counts)
    answers = min(checks.whole("answers", answers, least=0), len(rows))
    log_q = log_q_gnmax(rows, sigma2, grid)
    distinct, times = np.unique(log_q, return_counts=True)
    costs = rdp_gnmax(distinct, sigma2, orders)
    order = np.argsort(-costs, axis=0)
    copies = times[order]
    taken = np.clip(answers - (np.cumsum(copies, axis=0) - copies), 0, copies)
    dearest = (taken * np.take_along_axis(costs, order, 0)).sum(0)
    checked = _checks(rows, tops, threshold, sigma1, orders, grid)
    return checked + Renyi(tuple(orders), tuple(dearest.tolist()))


def votes(counts: ArrayLike) -> Floats:
    """Counts as an array (queries, classes) of whole numbers, checked."""
    rows = np.asarray(counts, np.float64)
    if rows.ndim != 2 or rows.shape[1] < 2:
        raise InputError("votes must be a table: one row a query, one column a class, two at least.")
    if not ((rows >= 0) & (rows == np.floor(rows)) & (rows <= checks.MOST)).all():
        raise InputError("votes must be whole numbers, zero or above: they count teachers.")
    return rows


def _gaps(rows: Floats) -> Floats:
    """How far the top is ahead of every other class."""
    ordered = np.sort(rows, axis=1)
    return np.asarray(ordered[:, -1:] - ordered[:, :-1])


def _capped(log_q: Floats, classes: int, grid: float) -> Floats:
    """At most 1 - 1/m: a top class wins at least as often as each other one does."""
    cap = math.log1p(-1 / classes)
    limit = _ONE_DEVIATION if grid else cap
    return np.where(log_q <= limit, np.minimum(log_q, cap), cap)


def _valid(log_q: Floats, sigma: float) -> NDArray[np.bool_]:
    """Where the conditions of Theorem 6 hold, but for a < mu1, which depends on the order."""
    with np.errstate(divide="ignore", invalid="ignore"):
        mu2 = sigma * np.sqrt(-log_q)
        eps2 = mu2 / sigma**2
        # (mu1/(mu1 - 1) mu2/(mu2 - 1))^mu2 with mu1 = mu2 + 1
        most = (mu2 - 1) * eps2 - mu2 * (np.log1p(1 / mu2) - np.log1p(-1 / mu2))
        # mu2 > 1 is L > eps2 as well: both say sqrt(L) > 1 / sigma.
        return np.asarray(np.isfinite(log_q) & (mu2 > 1) & (log_q <= most))


def _summed(log_q: Floats, weights: Floats, sigma: float, orders: Sequence[float]) -> Renyi:
    """Weighted costs, added up. Queries with equal gaps cost the same and are computed once."""
    distinct, where = np.unique(log_q, return_inverse=True)
    shares = np.bincount(where, weights=weights, minlength=len(distinct))
    total = np.zeros(len(orders))
    for start in range(0, len(distinct), _ROWS):
        part = slice(start, start + _ROWS)
        total += shares[part] @ rdp_gnmax(distinct[part], sigma, orders)
    return Renyi(tuple(orders), tuple(total.tolist()))


def _checks(
    rows: Floats,
    tops: ArrayLike | None,
    threshold: float,
    sigma: float,
    orders: Sequence[float],
    grid: float,
) -> Renyi:
    """The threshold checks of all rows."""
    rare = np.minimum(*log_answered(_tops(rows, tops), threshold, sigma, grid))
    weights = np.ones(len(rows))
    return _summed(_capped(rare, 2, grid), weights, math.sqrt(2) * sigma, orders)


def _tops(rows: Floats, tops: ArrayLike | None) -> Floats:
    found = rows.max(1) if tops is None else np.asarray(tops, np.float64)
    if found.shape != (len(rows),) or not np.isfinite(found).all():
        raise InputError("`tops` must hold one finite number for every row of votes.")
    return found


def _grid(grid: float, sigma: float) -> float:
    grid = checks.not_negative("grid", grid)
    if grid > sigma / 2 or (grid and (1 / grid) % 1):
        raise InputError(
            f"a grid of {grid:g} is too coarse for noise of {sigma:g}, or 1 is no multiple of it; the "
            "analysis holds for 1, 1/2, 1/4 and so on, up to half the noise."
        )
    return grid


def _orders(orders: Sequence[float]) -> Floats:
    a = np.asarray(orders, np.float64)
    if a.ndim != 1 or not len(a) or not (np.isfinite(a) & (a > 1)).all():
        raise InputError("Rényi orders are finite numbers above 1.")
    return a
