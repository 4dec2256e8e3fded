"""Parallel composition: exact laws of a toy, attacked with the optimal test, keep the promised curve."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sourdine.accounting import curve, least_noise, renyi
from sourdine.accounting.curves import PrivacyCurve
from sourdine.accounting.filter import Filter
from sourdine.accounting.parallel import alternatives
from sourdine.budget import Budget
from sourdine.certificate.facts import check_sampling, private, sampling
from sourdine.certificate.second import opinion
from sourdine.dp_events import to_dp_event
from sourdine.errors import ContradictionError, InputError, NotAccountable
from sourdine.events import (
    NOTHING,
    ApproximateEvent,
    Event,
    FixedSizeEvent,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    ParallelEvent,
    PateEvent,
    PoissonEvent,
    SelectionEvent,
    ShuffledEvent,
    TruncatedPoissonEvent,
    ZcdpEvent,
    parallel,
)
from sourdine.ledger import Ledger
from sourdine.report.findings import find
from sourdine.report.words import described

G = GaussianEvent
TRAINING = 300 * PoissonEvent(0.1, G(2.95))
SCORING = G(4.0)
LABELS = ApproximateEvent(0.1, 1e-8, "zero-out")
PLAN = LABELS + ParallelEvent((TRAINING, SCORING))
EPSILONS = (0.0, 0.05, 0.2, 0.5, 0.9, 1.3, 1.7, 2.1)
Law = dict[tuple[int, ...], float]

# A toy with exact laws: each of three releases is one bit, flipped at random. Labels (0.3-DP) look at
# all units, training (1.5-DP) at part A. Scoring (0.8-DP) looks at part B and at the trained bit.
COSTS = {"labels": 0.3, "training": 1.5, "scoring": 0.8}
BITS: dict[str, Event] = {name: ApproximateEvent(e, 0.0, "zero-out") for name, e in COSTS.items()}
TOY = BITS["labels"] + ParallelEvent((BITS["training"], BITS["scoring"]))


def response(epsilon: float, bit: int, out: int) -> float:
    """The probability that a bit comes out so."""
    return (math.exp(epsilon) if bit == out else 1.0) / (1 + math.exp(epsilon))


def toy(*, trained: int, scored: int, labelled: int) -> Law:
    """The law of all three releases, where the unit in question adds 0 or 1 to each."""
    law = {}
    for x, model, shown in itertools.product((0, 1), repeat=3):
        law[x, model, shown] = (
            response(COSTS["labels"], labelled, x)
            * response(COSTS["training"], trained, model)
            * response(COSTS["scoring"], scored, shown ^ model)  # the score depends on the model
        )
    return law


def advantage(p: Law, q: Law, epsilon: float) -> float:
    """delta of the optimal test: sum of (p - e^epsilon q)_+."""
    return math.fsum(max(0.0, p[out] - math.exp(epsilon) * q[out]) for out in p)


def shown(p: Law, q: Law, epsilon: float) -> float:
    return max(advantage(p, q, epsilon), advantage(q, p, epsilon))


ABSENT = toy(trained=0, scored=0, labelled=0)
IN_A = toy(trained=1, scored=0, labelled=1)
IN_B = toy(trained=0, scored=1, labelled=1)


def kept(promise: PrivacyCurve, p: Law, q: Law) -> bool:
    return all(shown(p, q, epsilon) <= promise.delta(epsilon).upper + 1e-12 for epsilon in EPSILONS)


@pytest.mark.parametrize("adjacency", ["zero-out", "add-remove"])
def test_a_unit_of_either_part_stays_below_the_curve(adjacency: str) -> None:
    stated = [ApproximateEvent(e, 0.0, "add-remove") for e in COSTS.values()]
    promise = curve(stated[0] + ParallelEvent((stated[1], stated[2])), adjacency)
    assert kept(promise, IN_A, ABSENT) and kept(promise, IN_B, ABSENT)


def test_the_curve_is_exactly_the_worse_of_both() -> None:
    promise = curve(TOY)
    for epsilon in EPSILONS:
        truth = max(shown(IN_A, ABSENT, epsilon), shown(IN_B, ABSENT, epsilon))
        assert promise.delta(epsilon) == pytest.approx((truth, truth), abs=1e-6)
        assert promise.delta(epsilon).lower <= truth + 1e-12


def test_wrong_rules_are_caught() -> None:
    cheaper = curve(BITS["labels"] + BITS["scoring"])  # the min, or the dearer branch forgotten
    assert not kept(cheaper, IN_A, ABSENT)
    assert not kept(
        curve(ParallelEvent((BITS["training"], BITS["scoring"]))), IN_A, ABSENT
    )  # no labels


def test_a_unit_in_both_parts_is_caught() -> None:
    both = toy(trained=1, scored=1, labelled=1)
    assert not kept(curve(TOY), both, ABSENT)
    assert kept(curve(BITS["labels"] + BITS["training"] + BITS["scoring"]), both, ABSENT)


def test_a_unit_that_changes_its_part_is_caught_and_refused() -> None:
    moved = toy(trained=0, scored=1, labelled=1)
    assert not kept(curve(TOY), IN_A, moved)
    stated = ParallelEvent((G(1.0), G(2.0)))
    for account in (curve, renyi):
        with pytest.raises(NotAccountable, match="charge the sum"):
            account(stated, "replace-one")
    with pytest.raises(NotAccountable, match="charge the sum"):
        Ledger(None, Budget(5, 1e-6, adjacency="replace-one")).charge(stated, "both")
    with pytest.raises(NotAccountable, match="charge the sum"):
        curve(SelectionEvent(stated, 1.0, 0.1), "replace-one")


def normal(points: np.ndarray, mean: float, sigma: float) -> np.ndarray:
    density = np.exp(-(((points - mean) / sigma) ** 2) / 2)
    return density / density.sum()


def test_gaussian_sums_by_quadrature() -> None:
    """Labels N(s0) over all, a sum N(s1) over A, then a sum N(s2) over B around the first one."""
    s0, s1, s2 = 2.0, 1.0, 1.4
    promise = curve(G(s0) + ParallelEvent((G(s1), G(s2))))
    grid = np.linspace(-9, 10, 191)

    def law(a: float, b: float) -> np.ndarray:
        """Over labels, sum and score; its score has the released sum as its mean, and b on top."""
        scores = np.array([normal(grid, 0.5 * released + b, s2) for released in grid])
        model = normal(grid, a, s1)
        return normal(grid, a + b, s0)[:, None, None] * (model[:, None] * scores)[None]

    absent, worst = law(0, 0), {}
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        for part, present in {"A": law(1, 0), "B": law(0, 1)}.items():
            worst[part] = np.maximum(0, present - math.exp(epsilon) * absent).sum()
            assert worst[part] <= promise.delta(epsilon).upper + 1e-6
        assert max(worst.values()) == pytest.approx(promise.delta(epsilon).upper, rel=1e-2)
        assert worst["A"] > curve(G(s0) + G(s2)).delta(epsilon).upper, "the cheaper branch is too low"


branches = st.one_of(
    st.floats(0.5, 20).map(G),
    st.floats(0.5, 20).map(LaplaceEvent),
    st.builds(ApproximateEvent, st.floats(0.05, 2), st.floats(1e-12, 1e-7), st.just("zero-out")),
    st.tuples(st.floats(0.5, 20), st.integers(1, 5)).map(lambda drawn: drawn[1] * G(drawn[0])),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(branches, min_size=1, max_size=3), branches)
def test_the_dearest_branch_is_what_counts(events: list[Event], more: Event) -> None:
    together = curve(ParallelEvent(tuple(events)))
    wider = curve(ParallelEvent((*events, more)))
    for delta in (1e-3, 1e-6):
        each = [curve(event).epsilon(delta) for event in events]
        found = together.epsilon(delta)
        assert found.upper == pytest.approx(max(interval.upper for interval in each), rel=1e-9)
        assert found.lower == pytest.approx(max(interval.lower for interval in each), rel=1e-9)
        assert together.epsilon_upper(delta) == found.upper
        assert wider.epsilon(delta).upper >= found.upper * (1 - 1e-9)
    for epsilon in (0.0, 0.7):
        assert wider.delta(epsilon).upper >= together.delta(epsilon).upper * (1 - 1e-9)
    assert curve(events[0]).delta(0.4) == curve(ParallelEvent((events[0],))).delta(0.4)


@settings(max_examples=10, deadline=None)
@given(st.floats(1, 20), st.floats(1, 20), st.floats(1, 20))
def test_parallel_never_costs_more_than_the_sum(x: float, a: float, b: float) -> None:
    apart, summed = G(x) + ParallelEvent((G(a), LaplaceEvent(b))), G(x) + G(a) + LaplaceEvent(b)
    assert curve(apart).epsilon(1e-5).lower <= curve(summed).epsilon(1e-5).upper
    both = zip(renyi(apart).values, renyi(summed).values, strict=True)
    assert all(one <= other * (1 + 1e-12) for one, other in both)
    rules = Filter(Budget(3, 1e-6))
    assert rules.cost(apart).renyi <= rules.cost(summed).renyi * (1 + 1e-9)


def test_the_tradeoff_is_below_that_of_each_branch() -> None:
    one, other = 3 * LaplaceEvent(2.0), G(1.2)
    found = curve(ParallelEvent((one, other)))
    for fpr in (0.001, 0.05, 0.3):
        assert found.tradeoff(fpr).lower <= min(curve(e).tradeoff(fpr).upper for e in (one, other))


def test_infinite_losses_show_through() -> None:
    leaky = ParallelEvent((ApproximateEvent(0.5, 1e-3, "zero-out"), G(1.0)))
    assert curve(leaky).epsilon(1e-6).lower == math.inf
    assert math.isinf(curve(ParallelEvent((NonPrivateEvent(), G(1.0)))).epsilon(1e-6).upper)


def test_alternatives_are_all_choices() -> None:
    a, b, c = G(1.0), LaplaceEvent(2.0), G(3.0)
    assert alternatives(a + 3 * b, "zero-out") == (a + 3 * b,)
    assert set(alternatives(c + ParallelEvent((a, b)), "zero-out")) == {c + a, c + b}
    twice = alternatives(2 * ParallelEvent((a, b)), "zero-out")
    assert set(twice) == {2 * a, a + b, 2 * b}
    two_splits = alternatives(ParallelEvent((a, b)) + ParallelEvent((a, c)), "zero-out")
    assert set(two_splits) == {2 * a, a + c, b + a, b + c}
    nested = ParallelEvent((a, c + ParallelEvent((a, b))))
    assert set(alternatives(nested, "zero-out")) == {c + a, c + b}  # a alone is part of c + a
    assert alternatives(10**9 * ParallelEvent((a, 2 * a)), "zero-out") == (2 * 10**9 * a,)


def test_several_splits_cost_what_the_worst_unit_meets() -> None:
    """Two different splits: someone is in the dearer part of both, which the max alone would miss."""
    pair = ParallelEvent((G(1.0), G(2.0)))
    assert curve(2 * pair).delta(1.0) == curve(2 * G(1.0)).delta(1.0)
    assert curve(2 * pair).delta(1.0).lower > curve(pair).delta(1.0).upper


def test_too_many_alternatives_are_refused_by_the_curve_only() -> None:
    many = 64 * ParallelEvent((G(30.0), LaplaceEvent(40.0)))
    assert len(alternatives(63 * ParallelEvent((G(30.0), LaplaceEvent(40.0))), "zero-out")) == 64
    with pytest.raises(NotAccountable, match="more than 64 alternatives"):
        curve(many)
    with pytest.raises(NotAccountable, match="more than 64 alternatives"):
        curve(ParallelEvent(tuple(G(1 + i / 1000) for i in range(1000))))
    assert renyi(many).values == pytest.approx(renyi(64 * G(30.0)).values)
    assert Ledger(None, Budget(3, 1e-6)).charge(many, "many splits").id == 1


@pytest.mark.parametrize(
    "sampled",
    [
        PoissonEvent(0.1, ParallelEvent((G(1.0), G(2.0)))),
        PoissonEvent(1.0, G(3.0) + ParallelEvent((G(1.0), G(2.0)))),
        TruncatedPoissonEvent(0.1, 1000, 200, ParallelEvent((G(1.0), G(2.0)))),
        FixedSizeEvent(100, 10, 2 * ParallelEvent((G(1.0), G(2.0)))),
        ParallelEvent((PoissonEvent(0.1, ParallelEvent((G(1.0), G(2.0)))), G(1.0))),
    ],
)
def test_inside_lots_there_is_no_proof(sampled: Event) -> None:
    with pytest.raises(NotAccountable, match="split the data first"):
        curve(G(5.0) + sampled)
    with pytest.raises(NotAccountable):
        renyi(sampled)
    with pytest.raises(NotAccountable):
        Filter(Budget(3, 1e-6)).cost(sampled)


def test_selection_over_parallel_trials_covers_both_parts() -> None:
    whole = SelectionEvent(ParallelEvent((G(4.0), LaplaceEvent(3.0))), 1.0, 0.1)
    for trial in (G(4.0), LaplaceEvent(3.0)):
        one = SelectionEvent(trial, 1.0, 0.1)
        assert curve(whole).epsilon_upper(1e-6) >= curve(one).epsilon_upper(1e-6)
        assert all(a >= b for a, b in zip(renyi(whole).values, renyi(one).values, strict=True))
    rules = Filter(Budget(3, 1e-6))
    pure = SelectionEvent(ParallelEvent((LaplaceEvent(5.0), LaplaceEvent(3.0))), 1.0, 0.1)
    assert rules.cost(pure).pure == pytest.approx(3 * (1 / 3))


def test_a_unit_meets_one_branch_in_all_trials() -> None:
    trial = ParallelEvent((TRAINING, SCORING))
    whole = LABELS + SelectionEvent(trial, 0.0, 0.05)
    each = {LABELS + SelectionEvent(one, 0.0, 0.05) for one in (TRAINING, SCORING)}
    assert set(alternatives(whole, "zero-out")) == each
    deep = SelectionEvent(SelectionEvent(trial, 1.0, 0.5) + G(9.0), 0.0, 0.05)
    assert len(alternatives(deep, "zero-out")) == 2
    with pytest.raises(NotAccountable, match="replace-one"):
        alternatives(SelectionEvent(SelectionEvent(trial, 1.0, 0.5), 0.0, 0.05), "replace-one")
    # Where no branch is the dearest everywhere, one unit pays for its own, not for the worst of both.
    crossing = SelectionEvent(ParallelEvent((G(1.0), LaplaceEvent(0.7))), 1.0, 0.1)
    ends = [curve(one).epsilon_upper(1e-2) for one in alternatives(crossing, "zero-out")]
    assert curve(crossing).epsilon_upper(1e-2) == pytest.approx(max(ends))
    low, high = opinion(SelectionEvent(trial, 0.0, 0.05), "zero-out", 1e-6, 3.0), 10.0
    assert 0 < low.upper < high


def best_of_many(law: Law, scores: dict[tuple[int, ...], int]) -> Law:
    """The law of the best of K trials, P(K = k) = 1/2, 1/4, ...: f(x) = x / (2 - x)."""
    found: Law = {}
    below = 0.0
    for out in sorted(law, key=scores.__getitem__):
        upto = below + law[out]
        found[out] = upto / (2 - upto) - below / (2 - below)
        below = upto
    return found


def test_the_best_of_toy_trials_keeps_the_promise_of_each_part() -> None:
    """Exact laws: a trained bit (part A) and a score bit (part B) that looks at it; the best by both."""
    whole = SelectionEvent(ParallelEvent((BITS["training"], BITS["scoring"])), 1.0, 0.5)

    def law(a: int, b: int) -> Law:
        return {
            (t, s): response(COSTS["training"], a, t) * response(COSTS["scoring"], b ^ t, s)
            for t, s in itertools.product((0, 1), repeat=2)
        }

    outs = list(itertools.product((0, 1), repeat=2))
    worst = {"training": 0.0, "scoring": 0.0}
    for order in itertools.permutations(range(4)):
        scores = dict(zip(outs, order, strict=True))
        base = best_of_many(law(0, 0), scores)
        for name, other in {"training": law(1, 0), "scoring": law(0, 1)}.items():
            moved = best_of_many(other, scores)
            for epsilon in EPSILONS:
                for p, q in ((base, moved), (moved, base)):
                    delta = sum(max(0.0, p[o] - math.exp(epsilon) * q[o]) for o in outs)
                    own = SelectionEvent(BITS[name], 1.0, 0.5)
                    assert delta <= curve(own).delta(epsilon).upper + 1e-12
                    assert delta <= curve(whole).delta(epsilon).upper + 1e-12
            worst[name] = max(worst[name], *(abs(math.log(base[o] / moved[o])) for o in outs))
    # The attack has teeth: a trial's own price is not enough for the best of several.
    assert worst["training"] > COSTS["training"] and worst["scoring"] > COSTS["scoring"]


def test_the_filter_counts_the_dearest_branch() -> None:
    rules = Filter(Budget(3, 1e-6))
    pure = ParallelEvent((LaplaceEvent(5.0), 2 * LaplaceEvent(4.0)))
    assert rules.cost(pure) == rules.cost(2 * LaplaceEvent(4.0))
    mixed = ParallelEvent((ApproximateEvent(0.1, 1e-9, "zero-out"), LaplaceEvent(2.0)))
    assert rules.cost(mixed).delta == 1e-9 and rules.cost(mixed).pure == pytest.approx(0.5)
    known_by_curve = ParallelEvent((TruncatedPoissonEvent(0.01, 1000, 200, G(2.0)), G(9.0)))
    assert math.isfinite(rules.cost(known_by_curve).renyi)
    unknown_to_curves = ParallelEvent((ZcdpEvent(1e-3, "zero-out"), 9 * PoissonEvent(0.1, G(4.0))))
    assert math.isfinite(rules.cost(LaplaceEvent(9.0) + unknown_to_curves).renyi)
    with pytest.raises(NotAccountable, match="private data"):
        rules.cost(ParallelEvent((PateEvent((2.0,), (0.1,), "zero-out"), G(1.0))))


def test_a_ledger_charges_it_as_one_plan() -> None:
    ledger = Ledger(None, Budget(3, 1e-6))
    summed = LABELS + TRAINING + SCORING
    assert not ledger.fits(summed) and ledger.fits(PLAN)
    reservation = ledger.reserve(PLAN, "training")
    assert ledger.spent().epsilon == curve(PLAN).epsilon_upper(1e-6)
    ledger.settle(reservation, PLAN, "done")
    assert ledger.history()[-1].event == PLAN
    other = Ledger(None, Budget(8, 1e-6))
    for label in ("one", "two"):
        other.charge(ParallelEvent((TRAINING, SCORING)), label)
    assert other.price(ParallelEvent((TRAINING, SCORING))) == other.price(TRAINING)
    reservation = other.reserve(G(40.0) + ParallelEvent((G(9.0), G(30.0))), "three")
    other.settle(reservation, G(40.0), "interrupt")
    with pytest.raises(InputError, match="more was run"):
        other.settle(other.reserve(PLAN, "four"), LABELS + TRAINING, "clock")


def test_calibration_pays_for_one_branch() -> None:
    budget = Budget(3, 1e-6)

    def training(noise: float) -> Event:
        return 300 * PoissonEvent(0.1, G(noise))

    alone = least_noise(budget, lambda noise: LABELS + training(noise))
    free = least_noise(budget, lambda noise: LABELS + ParallelEvent((training(noise), SCORING)))
    summed = least_noise(budget, lambda noise: LABELS + training(noise) + SCORING)
    assert free == pytest.approx(alone, rel=1e-3) and summed > 1.01 * alone
    assert curve(LABELS + ParallelEvent((training(free), SCORING))).epsilon_upper(1e-6) <= 3


def test_the_second_accountant_is_asked_for_each_alternative() -> None:
    truth = curve(PLAN).epsilon(1e-6)
    found = opinion(PLAN, "zero-out", 1e-6, truth.upper)
    assert found.lower <= truth.upper and truth.lower <= found.upper
    assert found.lower > 0.97 * truth.upper, "a claim that forgets the training would be noticed"
    dear = LABELS + ParallelEvent((TRAINING, G(0.5)))
    assert opinion(dear, "zero-out", 1e-6, 10.0).lower > 2 * found.upper
    with pytest.raises(NotAccountable, match="charge the sum"):
        opinion(PLAN, "replace-one", 1e-6, 3.0)


def test_dp_accounting_has_no_such_event() -> None:
    with pytest.raises(NotAccountable, match="parallel"):
        to_dp_event(ParallelEvent((TRAINING, SCORING)))


def test_the_sampling_inside_is_stated_and_checked() -> None:
    assert sampling(PLAN) == "Poisson lots, rate 0.1, 300 steps"
    assert "3 epochs" in sampling(ParallelEvent((ShuffledEvent(2.0, 10, 3), SCORING)))
    check_sampling(sampling(PLAN), "Poisson lots, rate 0.1, 120 steps", [PLAN])
    for wrong in ("no sampling", "Poisson lots, rate 0.2", "Poisson lots, rate 0.1, 400 steps"):
        with pytest.raises(ContradictionError):
            check_sampling(wrong, wrong, [PLAN])


def test_private_costs_inside_are_noticed() -> None:
    votes = PateEvent((2.0,), (0.1,), "zero-out")
    assert ParallelEvent((votes, G(1.0))).data_dependent and private(ParallelEvent((votes, G(1.0))))
    assert private(G(3.0) + ParallelEvent((PoissonEvent(0.1, votes), G(1.0))))
    assert not private(PLAN)


def test_a_report_draws_the_training_inside() -> None:
    claim = curve(PLAN).epsilon(1e-6)
    stated = {"unit": "example", "adjacency": "zero-out", "epsilon": claim.upper, "delta": 1e-6}
    found = find({"guarantee": stated, "events": json.loads(PLAN.to_json())})
    assert found.agrees
    steps, epsilons = zip(*found.path, strict=True)
    assert steps[0] == 0 and steps[-1] == 300 and list(epsilons) == sorted(epsilons)
    assert epsilons[0] == pytest.approx(curve(LABELS).epsilon_upper(1e-6), rel=1e-3)
    assert epsilons[-1] == claim.upper > 2 * epsilons[0]


def test_words() -> None:
    said = described(PLAN)
    assert "300 × a Poisson lot" in said and "multiplier 4)" in said and "part of the data" in said


def test_order_and_empty_parts_do_not_matter() -> None:
    assert ParallelEvent((TRAINING, SCORING)) == ParallelEvent((SCORING, TRAINING))
    assert parallel([TRAINING, NOTHING, SCORING]) == ParallelEvent((TRAINING, SCORING))
    assert parallel([NOTHING, SCORING]) == SCORING and parallel([NOTHING]) == NOTHING
