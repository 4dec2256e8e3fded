"""Selection: the exact law of the best of K, attacked with the optimal test, keeps the promised cost.

P(best <= t) = f(F(t)) with f(x) = E[x^K], so the law of the best is known for any base mechanism.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dp
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp
from scipy import special

from sourdine.accounting import curve, renyi
from sourdine.accounting.filter import Filter
from sourdine.accounting.rdp import ORDERS
from sourdine.accounting.selection import calibrate_trial, ratio, ratio_renyi
from sourdine.budget import Budget
from sourdine.dp_events import to_dp_event
from sourdine.errors import BudgetError, InputError, NotAccountable
from sourdine.events import (
    NOTHING,
    ApproximateEvent,
    DiscreteLaplaceEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    PateEvent,
    PoissonEvent,
    RandomizedResponseEvent,
    SelectionEvent,
    ZcdpEvent,
    expected_trials,
)
from sourdine.ledger import Ledger

pytestmark = pytest.mark.usefixtures("any_epsilon")

LAWS = [(1.0, 0.1), (1.0, 0.9), (0.0, 0.02), (-0.5, 0.01), (3.0, 0.05), (0.3, 1e-4), (20.0, 0.5)]
SGD = 100 * PoissonEvent(0.05, GaussianEvent(1.2)) + GaussianEvent(6.0)
Masses = np.ndarray


def best_of(masses: Masses, eta: float, gamma: float) -> Masses:
    """The law of the best of K, where outcomes stand in the order of their scores.

    f(b) - f(a) by u = 1 - (1 - gamma) x, of which f is u^-eta up to constants, to full accuracy.
    """
    s = -math.log(gamma)
    above = np.concatenate([np.cumsum(masses[:0:-1])[::-1], [0.0]])
    u = gamma + (1 - gamma) * above
    step = np.log1p((1 - gamma) * masses / u)
    return u**-eta * -np.expm1(-eta * step) / math.expm1(eta * s) if eta else step / s


def best_of_always(masses: Masses, trials: int) -> Masses:
    return np.diff(np.minimum(1.0, np.concatenate([[0.0], np.cumsum(masses)])) ** trials)


def divergence(p: Masses, q: Masses, order: float) -> float:
    return float(special.logsumexp(order * np.log(p) + (1 - order) * np.log(q)) / (order - 1))


def hockey(p: Masses, q: Masses, epsilon: float) -> float:
    return float(np.maximum(0.0, p - math.exp(epsilon) * q).sum())


def cells(density: Callable[[Masses], Masses]) -> Masses:
    """Masses of a density on fine cells: merging is post-processing, so bounds must hold for it."""
    middle = np.linspace(-9, 12, 6001)
    masses = density(middle)
    return masses / masses.sum()


def normal(mean: float) -> Masses:
    return cells(lambda y: np.exp(-((y - mean) ** 2) / 2))


def bases() -> list[tuple[str, Event, Masses, Masses]]:
    """Neighbouring laws of one trial with the event that covers them, under replace-one."""
    keep = RandomizedResponseEvent(0.4, 3)
    e = keep.flip / 3
    mixed = 0.9 * normal(0.0) + 0.1 * normal(2.0)
    lap = [cells(lambda y, m=mean: np.exp(-np.abs(y - m) / 2)) for mean in (0.0, 1.0)]
    return [
        ("gaussian", GaussianEvent(1.0, "replace-one"), normal(1.0), normal(0.0)),
        ("small", GaussianEvent(5.0, "replace-one"), normal(0.2), normal(0.0)),
        ("laplace", LaplaceEvent(2.0, "replace-one"), lap[0], lap[1]),
        ("response", keep, np.array([e, e, 1 - 2 * e]), np.array([1 - 2 * e, e, e])),
        ("sampled", PoissonEvent(0.1, GaussianEvent(0.5)), mixed, normal(0.0)),
        ("nested", SelectionEvent(GaussianEvent(1.0, "replace-one"), 1.0, 0.3), *nested()),
    ]


def nested() -> tuple[Masses, Masses]:
    pair = [best_of(normal(mean), 1.0, 0.3) for mean in (1.0, 0.0)]
    return np.maximum(pair[0], 1e-300), np.maximum(pair[1], 1e-300)


BASES = {name: rest for name, *rest in bases()}


def attacks(p: Masses, q: Masses) -> list[tuple[Masses, Masses]]:
    """Both directions, and scores that rise or fall with the outcome."""
    return [(p, q), (q, p), (p[::-1], q[::-1]), (q[::-1], p[::-1])]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("eta", "gamma"), LAWS)
def test_the_best_of_k_keeps_its_promise(base: str, eta: float, gamma: float) -> None:
    event, p, q = BASES[base]
    adjacency = "zero-out" if base == "sampled" else "replace-one"
    selection = SelectionEvent(event, eta, gamma)
    orders = (1.2, 2.0, 5.0, 17.0, 60.0)
    costs = renyi(selection, adjacency, orders).values
    found = curve(selection, adjacency)
    for one, other in attacks(p, q):
        a, b = (best_of(law, eta, gamma) for law in (one, other))
        kept = (a > 1e-250) & (b > 1e-250)
        for order, cost in zip(orders, costs, strict=True):
            assert divergence(a[kept], b[kept], order) <= cost + 1e-9
        for epsilon in (0.0, 0.3, 1.0, 2.0, 4.0):
            assert hockey(a, b, epsilon) <= found.delta(epsilon).upper + 1e-12


def losing(epsilon: float, top: float) -> tuple[Masses, Masses]:
    """An epsilon-DP trial made to lose: y is likelier here, and what beats y is likelier there."""
    low = math.exp(-epsilon)
    q = np.array([1 - 1.01 * top, 0.01 * top * low, top])
    p = np.array([0.0, 0.01 * top, top * low])
    p[0] = 1 - p.sum()
    return p, q


@pytest.mark.parametrize("eta", [-0.5, 0.0, 1.0, 3.0])
def test_pure_trials_cost_two_plus_eta_and_no_less(eta: float) -> None:
    epsilon, gamma, order = 0.5, 1e-5, 1e4
    selection = SelectionEvent(ApproximateEvent(epsilon, 0.0, "zero-out"), eta, gamma)
    (cost,) = renyi(selection, orders=(order,)).values
    p, q = losing(epsilon, 0.1)
    assert max(abs(np.log(p / q))) <= epsilon + 1e-12
    a, b = (best_of(law, eta, gamma) for law in (p, q))
    exact = divergence(a, b, order)
    assert exact <= cost <= (2 + eta) * epsilon + 0.03
    assert exact >= 0.98 * (2 + eta) * epsilon
    # Twins: forgetting the second term, or its factor 1 + eta.
    assert exact > cost - (1 + eta) * epsilon
    if eta > 0:
        assert exact > cost - 0.9 * eta * epsilon
    assert curve(selection).epsilon_upper(1e-12) <= (2 + eta) * epsilon * (1 + 1e-9)


def test_two_selections_cost_twice() -> None:
    selection = SelectionEvent(ApproximateEvent(0.5, 0.0, "zero-out"), 1.0, 1e-5)
    a, b = (best_of(law, 1.0, 1e-5) for law in losing(0.5, 0.1))
    exact = hockey(np.outer(a, a), np.outer(b, b), 0.98 * 2 * 1.5)
    assert 0 < exact <= curve(2 * selection).delta(0.98 * 2 * 1.5).upper


def rare(hidden: float) -> tuple[Masses, Masses]:
    """The top outcome shows the record, but only now and then: more trials show it more often."""
    return np.array([1 - hidden, hidden]), np.array(
        [1 - hidden * math.exp(-3.0), hidden * math.exp(-3.0)]
    )


def test_forgetting_the_expected_number_of_trials_is_caught() -> None:
    eta, gamma, order = 0.0, 0.02, 2.0
    p, q = rare(1e-4)
    a, b = (best_of(law, eta, gamma) for law in (p, q))
    single, exact = divergence(p, q, order), divergence(a, b, order)
    shift = max(0.0, math.log((gamma + (1 - gamma) * p[1]) / (gamma + (1 - gamma) * q[1])))
    expected = expected_trials(eta, gamma)
    assert exact <= single + (1 + eta) * shift + math.log(expected) / (order - 1)
    assert exact > single + (1 + eta) * shift
    # The same for delta.
    assert hockey(a, b, 1.0) <= expected * hockey(p, q, 1.0 - (1 + eta) * shift)
    assert hockey(a, b, 1.0) > 2 * hockey(p, q, 1.0 - (1 + eta) * shift)


def test_a_fixed_number_of_trials_breaks_the_claim() -> None:
    """Ten trials always, or the best of K claimed as one trial: both are found out."""
    event, p, q = BASES["gaussian"]
    one = curve(event, "replace-one").epsilon(1e-3).upper
    drawn = [best_of(law, 1.0, 0.1) for law in (p, q)]
    fixed = [best_of_always(law, 200) for law in (p, q)]
    assert hockey(*drawn, one) > 2e-3
    random = curve(SelectionEvent(event, 1.0, 0.5), "replace-one").epsilon(1e-3).upper
    assert hockey(*(best_of(law, 1.0, 0.5) for law in (p, q)), random) <= 1e-3
    assert hockey(*fixed, random) > 1e-3


@pytest.mark.parametrize(("eta", "gamma"), [(0.0, 0.02), (1.0, 0.1), (3.0, 0.2)])
def test_the_ratio_bounds_every_threshold(eta: float, gamma: float) -> None:
    """ln(u'/u) for all thresholds of the most powerful test; a tenth less would be broken."""
    selection = SelectionEvent(GaussianEvent(1.0), eta, gamma)
    t = np.linspace(-6, 6, 20001)
    u = [gamma + (1 - gamma) * special.ndtr(mean - t) for mean in (1.0, 0.0)]
    exact = float(np.log(u[0] / u[1]).max())
    assert exact <= ratio(selection, "zero-out") <= exact * (1 + 1e-5)
    by_renyi = ratio_renyi(selection, ORDERS, renyi(GaussianEvent(1.0)).values)
    assert exact < by_renyi < -math.log(gamma)


def test_costs_of_dp_accounting_are_the_same() -> None:
    for eta, gamma in [(0.0, 0.02), (1.0, 0.1), (3.0, 0.2)]:
        event = SelectionEvent(SGD, eta, gamma)
        peer = RdpAccountant(list(ORDERS), NeighboringRelation.ADD_OR_REMOVE_ONE)
        peer.compose(to_dp_event(event))
        assert np.allclose(renyi(event).values, peer._rdp, rtol=1e-7)
    assert isinstance(to_dp_event(event), dp.RepeatAndSelectDpEvent)
    with pytest.raises(NotAccountable):
        to_dp_event(SelectionEvent(SGD, -0.5, 0.1))


def test_the_curve_beats_the_renyi_conversion_and_lies_above_one_trial() -> None:
    one = curve(SGD).epsilon(1e-6)
    for eta, gamma in [(0.0, 0.02), (1.0, 0.1)]:
        event = SelectionEvent(SGD, eta, gamma)
        found = curve(event).epsilon(1e-6)
        assert found.lower == pytest.approx(one.lower)
        assert one.upper < found.upper < 0.95 * renyi(event).epsilon(1e-6)
        assert curve(event).delta(found.upper).upper <= 1e-6 * (1 + 1e-4)


def test_beside_other_releases() -> None:
    """Two selections and a release beside them: exact laws of the products stay below the curve."""
    event, p, q = BASES["response"]
    selection = SelectionEvent(event, 1.0, 0.2)
    found = curve(2 * selection + event, "replace-one")
    for one, other in attacks(p, q):
        a, b = (best_of(law, 1.0, 0.2) for law in (one, other))
        both = [
            np.array([math.prod(t) for t in itertools.product(x, x, y)])
            for x, y in ((a, one), (b, other))
        ]
        for epsilon in (0.0, 1.0, 3.0, 5.0):
            assert hockey(*both, epsilon) <= found.delta(epsilon).upper + 1e-12
    alone = curve(SelectionEvent(SGD, 0.0, 0.1)).epsilon(1e-6).upper
    more = curve(SelectionEvent(SGD, 0.0, 0.1) + GaussianEvent(8.0)).epsilon(1e-6).upper
    assert alone < more < alone + 0.2


@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove", "replace-one"])
def test_every_adjacency_is_that_of_the_trial(adjacency: str) -> None:
    trial = 20 * PoissonEvent(0.05, GaussianEvent(1.5))
    found = curve(SelectionEvent(trial, 0.0, 0.1), adjacency).epsilon(1e-6)
    one = curve(trial, adjacency).epsilon(1e-6)
    assert one.upper < found.upper < 2.5 * one.upper


@given(st.floats(-0.999, 50.0), st.floats(1e-12, 1 - 1e-15))
@settings(max_examples=200)
def test_expected_trials_are_exact(eta: float, gamma: float) -> None:
    with mp.workdps(60):
        e, g = mp.mpf(eta), mp.mpf(gamma)
        exact = (1 - g) / g * (e / -mp.expm1(e * mp.log(g)) if e else -1 / mp.log(g))
        assert abs(expected_trials(eta, gamma) / exact - 1) < 1e-14


@pytest.mark.parametrize("eta", [0.0, 1e-300, -1e-300, 1e-17, 1e-9])
def test_eta_near_zero_is_continuous(eta: float) -> None:
    assert expected_trials(eta, 0.02) == pytest.approx(expected_trials(0.0, 0.02), rel=1e-8)
    cost, limit = (renyi(SelectionEvent(SGD, x, 0.02), orders=(5.0,)).values[0] for x in (eta, 0.0))
    assert cost == pytest.approx(limit, rel=1e-8)


@pytest.mark.parametrize("eta", [-0.9, 0.0, 1.0, 30.0])
def test_gamma_near_one_is_one_trial(eta: float) -> None:
    near, trial = SelectionEvent(SGD, eta, 1 - 2.0**-53), renyi(SGD)
    for cost, one in zip(renyi(near).values, trial.values, strict=True):
        assert one <= cost <= one * (1 + 1e-9) + 1e-9
    exact = curve(SGD).epsilon(1e-6).upper
    assert exact <= curve(near).epsilon(1e-6).upper <= exact * (1 + 1e-6)


def test_tiny_gamma_stays_finite() -> None:
    event = SelectionEvent(GaussianEvent(5.0), 1.0, 1e-12)
    assert event.expected == pytest.approx(1e12)
    assert 3 < curve(event).epsilon(1e-6).upper < renyi(event).epsilon(1e-6) < 10


def test_costs_grow_with_the_number_of_trials() -> None:
    costs = [
        curve(SelectionEvent(GaussianEvent(1.0), 1.0, g)).epsilon(1e-6).upper
        for g in (0.9, 0.5, 0.1, 0.01)
    ]
    assert costs == sorted(costs)


def test_trials_that_fail_fail_more_often() -> None:
    event = SelectionEvent(ApproximateEvent(0.5, 1e-6, "zero-out"), 1.0, 0.1)
    found = curve(event)
    assert found.epsilon(1e-7).upper == math.inf
    assert found.epsilon(0.9e-5).upper == math.inf  # ten trials have ten times the delta
    assert found.epsilon(1.1e-5).upper <= 1.5 * (1 + 1e-3)
    assert curve(SelectionEvent(NonPrivateEvent(), 1.0, 0.5)).epsilon(1e-6).upper == math.inf


def test_json() -> None:
    event = SelectionEvent(SGD, 1, 0.1) + GaussianEvent(3.0)
    assert Event.from_json(event.to_json()) == event
    text = (  # as version 1 wrote it: it must load for ever
        '{"format": "sourdine.event", "version": 1, "event": {"kind": "selection", "event": {"kind": "composed", '
        '"items": [{"count": 7, "event": {"kind": "gaussian", "noise_multiplier": 2.0, "adjacency": null}}]}, '
        '"eta": 1.0, "gamma": 0.1}}'
    )
    assert Event.from_json(text) == SelectionEvent(7 * GaussianEvent(2.0), 1, 0.1)
    assert SelectionEvent(7 * GaussianEvent(2.0), 1, 0.1).to_json() == text


@pytest.mark.parametrize(
    ("trial", "eta", "gamma"),
    [
        (GaussianEvent(1.0), -1.0, 0.1),
        (GaussianEvent(1.0), math.inf, 0.1),
        (GaussianEvent(1.0), 1e4, 0.1),
        (GaussianEvent(1.0), 1.0, 0.0),
        (GaussianEvent(1.0), 1.0, 1.0),
        (GaussianEvent(1.0), 1.0, 1e-13),
        (GaussianEvent(1.0), math.nan, 0.5),
        (NOTHING, 1.0, 0.5),
        ("gaussian", 1.0, 0.5),
    ],
)
def test_impossible_selections_are_refused(trial: object, eta: float, gamma: float) -> None:
    with pytest.raises(InputError):
        SelectionEvent(trial, eta, gamma)  # type: ignore[arg-type]


def test_the_ledger_charges_reserves_and_settles() -> None:
    event = SelectionEvent(SGD, 0.0, 0.1)
    epsilon = curve(event).epsilon(1e-6).upper
    ledger = Ledger(None, Budget(epsilon * 1.001, 1e-6))
    entry = ledger.reserve(event, "tuning")
    assert ledger.spent().epsilon == pytest.approx(epsilon, rel=1e-3)
    with pytest.raises(BudgetError):
        ledger.charge(event, "tuning again")
    ledger.settle(entry, event, "done")
    assert ledger.spent().releases == 1
    with pytest.raises(BudgetError):
        Ledger(None, Budget(epsilon * 0.99, 1e-6)).charge(event, "tuning")
    roomy = Ledger(None, Budget(60.0, 1e-6))
    for _ in range(3):
        roomy.charge(event, "tuning")
    assert 2 * epsilon < roomy.spent().epsilon < 60
    again = roomy.reserve(event, "one that was interrupted before anything was seen")
    before = roomy.spent().epsilon
    roomy.settle(again, NOTHING, "interrupt")
    assert roomy.spent().epsilon < before


def test_the_filter_adds_up_pure_selections() -> None:
    found = Filter(Budget(1.0, 1e-6))
    trial = DiscreteLaplaceEvent(0.01, 1, "zero-out") + ApproximateEvent(0.02, 0.0, "zero-out")
    assert found.cost(SelectionEvent(trial, 1.0, 0.1)).pure == pytest.approx(3 * 0.03)
    loose = found.cost(SelectionEvent(ApproximateEvent(0.1, 1e-12, "zero-out"), 1.0, 0.1))
    assert 0 < loose.delta < 1e-6 and loose.pure < 0.31
    only_renyi = found.cost(SelectionEvent(ZcdpEvent(1e-4, "zero-out"), 1.0, 0.1))
    assert math.isfinite(only_renyi.renyi)


def test_costs_that_were_computed_from_votes_do_not_hide_in_a_selection() -> None:
    event = SelectionEvent(PateEvent((2.0, 8.0), (0.01, 0.05), "zero-out"), 1.0, 0.1)
    assert event.data_dependent and (event + GaussianEvent(1.0)).data_dependent
    with pytest.raises(NotAccountable, match="private data"):
        Ledger(None, Budget(3.0, 1e-6)).charge(event, "tuning")


def test_what_has_no_proof_is_refused() -> None:
    with pytest.raises(NotAccountable):
        curve(PoissonEvent(0.1, SelectionEvent(GaussianEvent(1.0), 1.0, 0.1)))
    with pytest.raises(NotAccountable):
        curve(SelectionEvent(RandomizedResponseEvent(0.5), 1.0, 0.1), "zero-out")


def test_calibration_uses_the_budget_and_never_more() -> None:
    budget = Budget(3.0, 1e-6)

    def trial(noise: float) -> Event:
        return 50 * GaussianEvent(noise) + GaussianEvent(8 * noise)

    noise = calibrate_trial(budget, 1.0, 0.1, trial)
    assert 2.99 < curve(SelectionEvent(trial(noise), 1.0, 0.1)).epsilon(1e-6).upper <= 3.0 + 1e-6
    assert curve(trial(noise)).epsilon(1e-6).upper < 2.4
