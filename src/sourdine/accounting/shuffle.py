"""What shuffled batches give away at least (Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha, Zhang 2024).

All records but one pull every batch down by one; the one in question pulls its batch up. Shifted and
scaled by the clip, batch t of T then shows N(2, sigma^2) with the record and N(1, sigma^2) without it
(zero-out), or N(0, sigma^2) with another record like the rest (replace-one); all other batches show
N(0, sigma^2). The attack looks at the largest batch: for every threshold C,
    P(max >= C) = 1 - Phi((C - 2)/sigma) Phi(C/sigma)^(T-1),
and Q likewise, which bounds delta >= P - e^epsilon Q. One epoch bounds several from below.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from sourdine.accounting.normal import Array
from sourdine.events import ShuffledEvent


def _threshold_test(event: ShuffledEvent, adjacency: str) -> tuple[Array, Array]:
    sigma, others = event.noise_multiplier, event.batches - 1
    without = 1.0 if adjacency == "zero-out" else 0.0
    threshold = np.linspace(-10 * sigma, 2 + 30 * sigma, 40_001)
    rest = others * special.log_ndtr(threshold / sigma)
    p = -np.expm1(special.log_ndtr((threshold - 2) / sigma) + rest)
    q = -np.expm1(special.log_ndtr((threshold - without) / sigma) + rest)
    return p, q


def lower_epsilon(event: ShuffledEvent, adjacency: str, delta: float) -> float:
    """The largest epsilon that the threshold attack refutes at this delta."""
    p, q = _threshold_test(event, adjacency)
    useful = (p > delta) & (q > 1e-300)  # below, digits are lost
    return max(0.0, float(np.log((p[useful] - delta) / q[useful]).max(initial=0.0)))


def lower_delta(event: ShuffledEvent, adjacency: str, epsilon: float) -> float:
    """The largest delta that the threshold attack shows at this epsilon."""
    p, q = _threshold_test(event, adjacency)
    return max(0.0, float((p - math.exp(min(epsilon, 700.0)) * q).max()))
