"""Private selection: the best of a random number of trials, and nothing of the others.

One trial is a mechanism Q that puts out a model and its score. K is drawn from the truncated negative
binomial law of a SelectionEvent, Q runs K times, the best by score is released (Papernot and Steinke
2022). Because K is random and stays secret, the cost is that of a trial or two, not of K.

Guarantee. Let q(y) be the probability that a trial scores below y (ties are broken at random, which for
independent trials is the same as by the first) and f(x) = E[x^K]. The density of the best is
A(y) = Q(y) f'(q(y)), and f'(q) is proportional to u^-(1 + eta) with u = gamma + (1 - gamma)(1 - q).
This u is the probability of an event: a coin of gamma shows heads, or a trial scores above y. So for
neighbours Q and Q', whichever is the one with the record, u'/u is bounded by what a trial gives away:

- if delta_Q(x) <= gamma (e^x - 1) / (1 - gamma) then u' - e^x u <= (1 - gamma) delta_Q(x)
  - gamma (e^x - 1) <= 0, so ln(u'/u) <= x (`ratio`);
- if Q is (b, r)-RDP then u'^b u^(1-b) <= e^((b-1) r), and u >= gamma, so
  ln(u'/u) <= (1 - 1/b) r + ln(1/gamma) / b (`ratio_renyi`); ln(1/gamma) at b = 1.

Call the bound x and let s = (1 + eta) x, so that f'(q) <= e^s f'(q'). Also f'(q) <= f'(1) = E[K]. Then

- [A - e^eps A']_+ <= f'(q) [Q - e^(eps - s) Q']_+, so delta(eps) <= E[K] delta_Q(eps - s). Releases G
  beside the selection, before or after it and however they depend on each other, stand as factors on
  both sides of the bracket: delta of all is at most E[K] times delta of *one trial* with G, at eps - s.
  Several selections multiply their E[K] and add their s (after Koskela, Redberg, Wang 2024);
- A^a A'^(1-a) = Q^a Q'^(1-a) f'(q) (f'(q)/f'(q'))^(a-1), so the divergence of order a is at most
  r(a) + s + ln E[K] / (a - 1) (Papernot and Steinke 2022, Theorem 2), and never more than one of a
  higher order.

Nothing here depends on the adjacency but the cost of a trial. For trials that are epsilon-DP, delta_Q
is 0 at epsilon, so x <= epsilon and the selection is (2 + eta) epsilon-DP. A fixed number of trials has
no such bound: there f'(q)/f'(q') has none.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from scipy import optimize

from sourdine import checks
from sourdine.accounting.calibration import least_noise
from sourdine.accounting.curves import Interval, PrivacyCurve, curve
from sourdine.accounting.rdp import ORDERS, renyi
from sourdine.budget import Budget
from sourdine.events import NOTHING, Event, SelectionEvent

_UP = 1 + 1e-12  # rounding of the few operations here
_LEAST = 1e-12  # ratios below are as good as none
_LEAST_DELTA = 1e-200  # the smallest delta that curves are asked for


class SelectionCurve(PrivacyCurve):
    """Selections and what is beside them, seen from `trial`: the curve of one trial of each.

    delta(eps) <= factor delta_trial(eps - shift). The lower end is that of one trial: where all scores
    are equal the first trial is released, whatever K was.
    """

    def __init__(self, trial: PrivacyCurve, shift: float, factor: float) -> None:
        self._trial, self._shift, self._factor = trial, shift, factor
        self.infinite = trial.infinite

    def delta(self, epsilon: float) -> Interval:
        epsilon = checks.not_negative("epsilon", epsilon)
        here = self._trial.delta(epsilon)
        upper = min(1.0, self._factor * self._moved(epsilon - self._shift))
        return Interval(min(here.lower, upper), upper)

    def epsilon(self, delta: float) -> Interval:
        upper = self.epsilon_upper(delta)
        return Interval(min(self._trial.epsilon(delta).lower, upper), upper)

    def epsilon_upper(self, delta: float) -> float:
        share = checks.delta(delta) / self._factor
        if share < _LEAST_DELTA:
            return math.inf
        return self._trial.epsilon_upper(share) + self._shift

    def _moved(self, epsilon: float) -> float:
        """delta of the trial, also below zero: H_(1/a)(P, Q) = 1 - 1/a + H_a(Q, P) / a."""
        if epsilon >= 0:
            return self._trial.delta(epsilon).upper
        return -math.expm1(epsilon) + math.exp(epsilon) * self._trial.delta(-epsilon).upper


def selection_curve(event: Event, adjacency: str, accuracy: float) -> SelectionCurve:
    """The curve of selections and all that is composed with them."""
    trial: Event = NOTHING
    shift = log_factor = 0.0
    for part, count in event.parts:
        if isinstance(part, SelectionEvent):
            shift += count * (1 + part.eta) * ratio(part, adjacency, accuracy)
            log_factor += count * math.log(part.expected * _UP)
            trial += count * part.event
        else:
            trial += count * part
    factor = math.exp(min(log_factor, 700.0)) * _UP  # past e^700 no delta is left to share
    return SelectionCurve(curve(trial, adjacency, accuracy=accuracy), shift * _UP + 1e-13, factor)


@functools.lru_cache(maxsize=256)
def ratio(event: SelectionEvent, adjacency: str, accuracy: float = 1e-6) -> float:
    """A bound on ln(u'/u): the least x with delta_Q(x) <= gamma (e^x - 1) / (1 - gamma), nearly."""
    trial = curve(event.event, adjacency, accuracy=accuracy)
    odds = event.gamma / (1 - event.gamma) / _UP

    def excess(x: float) -> float:
        """ln of the left side over the right one, cut where it is far from zero."""
        over = trial.delta(x).upper / (odds * math.expm1(x))
        return min(50.0, max(-50.0, math.log(over))) if over > 0 else -50.0

    most = -math.log(event.gamma) * _UP  # delta 1 is allowed there, so it always holds
    if most <= _LEAST or excess(_LEAST) <= 0:
        return min(most, _LEAST)
    if excess(most) > 0:
        return most
    found, step = float(optimize.brentq(excess, _LEAST, most, xtol=1e-9, rtol=1e-6)), 1e-7
    while found < most and excess(found) > 0:
        found, step = found * (1 + step), 2 * step
    return min(found, most)


def ratio_renyi(event: SelectionEvent, orders: Sequence[float], costs: Sequence[float]) -> float:
    """The same from the Rényi costs of a trial: min over b of (1 - 1/b) r + ln(1/gamma) / b."""
    most = -math.log(event.gamma)
    known = ((1 - 1 / b) * r + most / b for b, r in zip(orders, costs, strict=True))
    return min(most, *known) * _UP


def divergences(event: SelectionEvent, adjacency: str, orders: Sequence[float]) -> list[float]:
    """The Rényi cost of a selection: r(a) + s + ln E[K] / (a - 1), or less at a higher order."""
    grid = sorted({*orders, *ORDERS})
    trial = renyi(event.event, adjacency, grid).values
    shift = (1 + event.eta) * ratio_renyi(event, grid, trial)
    log_expected = math.log(event.expected * _UP)
    best, found = math.inf, {}
    for order, cost in zip(reversed(grid), reversed(trial), strict=True):
        best = min(best, (cost + shift + log_expected / (order - 1)) * _UP)
        found[order] = best
    return [found[order] for order in orders]


def calibrate_trial(budget: Budget, eta: float, gamma: float, trial: Callable[[float], Event]) -> float:
    """The least noise whose trials, the best of K of them released, fit the budget.

    trial: from the noise multiplier to the event of one whole trial, scoring included.
    """
    return least_noise(budget, lambda noise: SelectionEvent(trial(noise), eta, gamma))
