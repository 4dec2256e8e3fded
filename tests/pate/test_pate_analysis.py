"""Golden values: tests/golden/pate (tensorflow/privacy 03035d5d, research/pate_2018)."""

import json
import math
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from scipy import special

from sourdine.errors import InputError
from sourdine.pate import analysis

GOLDEN = Path(__file__).parent.parent / "golden" / "pate"
ARRAYS = np.load(GOLDEN / "reference.npz")
FACTS = json.loads((GOLDEN / "reference.json").read_text(encoding="utf-8"))
SETS = tuple(FACTS["sets"])
CLOSE = {"rtol": 1e-9, "atol": 0}


def known(name: str) -> tuple[dict, np.ndarray, tuple[float, float, float]]:
    facts = FACTS["sets"][name]
    return facts, ARRAYS[f"{name}_votes"], (facts["T"], facts["sigma1"], facts["sigma2"])


@pytest.mark.parametrize("name", SETS)
def test_each_query_costs_what_the_original_says(name):
    _, counts, (threshold, sigma1, sigma2) = known(name)
    orders = ARRAYS["orders_report"]
    log_q = analysis.log_q_gnmax(counts, sigma2)
    np.testing.assert_allclose(log_q, ARRAYS[f"{name}_logq"], **CLOSE)
    passed, failed = analysis.log_answered(counts.max(1), threshold, sigma1)
    np.testing.assert_allclose(passed, ARRAYS[f"{name}_logpr_answered"], **CLOSE)
    np.testing.assert_allclose(np.exp(passed) + np.exp(failed), 1)
    np.testing.assert_allclose(
        analysis.rdp_gnmax(log_q, sigma2, orders), ARRAYS[f"{name}_rdp_gnmax"], **CLOSE
    )
    np.testing.assert_allclose(
        analysis.rdp_threshold(counts.max(1), threshold, sigma1, orders),
        ARRAYS[f"{name}_rdp_threshold"],
        **CLOSE,
    )


@pytest.mark.parametrize("name", SETS)
def test_totals_and_epsilons_are_those_of_the_original(name):
    facts, counts, (threshold, sigma1, sigma2) = known(name)
    orders = tuple(ARRAYS["orders_long"].tolist())
    assert sorted(set(orders)) == pytest.approx(analysis.ORDERS, rel=1e-12)
    totals = {
        "expected": analysis.expected(counts, threshold, sigma1, sigma2, orders),
        "gnmax_only": analysis.gnmax(counts, sigma2, orders),
        "lnmax_lambda20": analysis.lnmax(counts, 20.0, orders),
    }
    for kind, total in totals.items():
        np.testing.assert_allclose(total.values, ARRAYS[f"{name}_rdp_total_{kind}"], **CLOSE)
    for kind, key in (
        ("expected", "confident_data_dep_expected"),
        ("gnmax_only", "gnmax_only_data_dep"),
        ("lnmax_lambda20", "lnmax_lambda20_data_dep"),
    ):
        delta = facts["delta"]
        assert totals[kind].epsilon_classic(delta) == pytest.approx(facts[key]["eps_classic"], rel=1e-9)
        if "eps_improved" in facts[key]:
            assert totals[kind].epsilon(delta) == pytest.approx(facts[key]["eps_improved"], rel=1e-9)


def test_the_published_epsilon_of_the_mnist_votes():
    """Papernot et al. 2018, Table 1: 1.97 for 286 answers to 640 queries, on average over the noise."""
    _, counts, (threshold, sigma1, sigma2) = known("mnist640")
    found = []
    for seed in range(20):
        noise = sigma1 * np.random.default_rng(seed).standard_normal(len(counts))
        answered = counts.max(1) + noise >= threshold
        spent = analysis.realised(counts, answered, threshold, sigma1, sigma2)
        found.append(spent.epsilon_classic(1e-5))
    error = np.std(found, ddof=1) / math.sqrt(len(found))
    assert error < 0.03
    assert abs(np.mean(found) - 1.970) < 3 * error


def law(counts: np.ndarray, sigma: float) -> np.ndarray:
    """P(argmax = j) for each j, by quadrature; every term is positive, so small ones are accurate."""
    x = np.linspace(-40, 40, 8001)
    density = -(x**2) / 2 - math.log(2 * math.pi) / 2
    found = []
    for j, own in enumerate(counts):
        others = (own - np.delete(counts, j)) / sigma
        beaten = special.log_ndtr(x[:, None] + others).sum(1)
        found.append(np.exp(density + beaten).sum() * (x[1] - x[0]))
    return np.array(found)


def divergence(p: np.ndarray, q: np.ndarray, order: float) -> float:
    """D_a(p || q) without cancellation: the largest of p is one minus the others."""
    top = int(np.argmax(p))
    ratio = np.log(p) - np.log(q)
    ratio[top] = math.log1p(-np.delete(p, top).sum()) - math.log1p(-np.delete(q, top).sum())
    terms = np.exp(np.log(p) + (order - 1) * ratio) - p
    terms[top] = (1 - np.delete(p, top).sum()) * math.expm1((order - 1) * ratio[top])
    return math.log1p(terms.sum()) / (order - 1)


def neighbours(counts: np.ndarray) -> list[np.ndarray]:
    found = []
    for giver, taker in permutations(range(len(counts)), 2):
        if counts[giver]:
            moved = counts.copy()
            moved[giver] -= 1
            moved[taker] += 1
            found.append(moved)
    return found


HISTOGRAM_ORDERS = (1.5, 2.0, 5.0, 10.0, 20.0, 50.0)


def worst_ratio(shrink: float = 1.0) -> tuple[float, int]:
    """The largest exact forward divergence over its bound, and how often the bound was the better one."""
    generator = np.random.default_rng(2018)
    worst, better = 0.0, 0
    for classes in (2, 3, 4, 5):
        for sigma in (2.0, 5.0, 12.0, 30.0):
            for _ in range(4):
                # up to 25 deviations apart, so that no probability underflows
                teachers = int(generator.integers(4, min(200, 25 * sigma)))
                chances = generator.dirichlet(np.r_[8.0, np.ones(classes - 1)])
                counts = generator.multinomial(teachers, chances).astype(float)
                log_q = analysis.log_q_gnmax(counts[None], sigma * shrink)
                bounds = analysis.rdp_gnmax(log_q, sigma, HISTOGRAM_ORDERS)[0]
                better += int((bounds < np.array(HISTOGRAM_ORDERS) / sigma**2).sum())
                here = law(counts, sigma)
                for other in neighbours(counts):
                    there = law(other, sigma)
                    for order, bound in zip(HISTOGRAM_ORDERS, bounds, strict=True):
                        worst = max(worst, divergence(here, there, order) / bound)
    return worst, better


def test_the_exact_forward_divergence_keeps_below_the_bound():
    worst, better = worst_ratio()
    assert better > 50
    assert 0.5 < worst <= 1 + 1e-9


def test_a_wrong_q_is_caught():
    assert worst_ratio(shrink=0.97)[0] > 1


@pytest.mark.parametrize(
    "case", FACTS["exact_renyi"], ids=lambda case: f"{case['votes']} {case['order']}"
)
def test_exact_divergences_and_bounds_of_the_reference(case):
    counts, order, sigma = np.array(case["votes"]), case["order"], case["sigma"]
    log_q = analysis.log_q_gnmax(counts[None], sigma)
    assert math.exp(log_q[0]) == pytest.approx(case["q_union"], rel=1e-9)
    assert analysis.rdp_gnmax(log_q, sigma, [order])[0, 0] == pytest.approx(case["thm6"], rel=1e-9)
    here = law(counts, sigma)
    exact = max(divergence(here, law(other, sigma), order) for other in neighbours(counts))
    assert exact == pytest.approx(case["exact_rdp_D_to_neighbour"], rel=1e-5)
    assert exact <= case["thm6"]


def test_the_bound_is_one_sided():
    here, there = np.array([95.0, 5.0]), np.array([94.0, 6.0])
    bound = analysis.rdp_gnmax(analysis.log_q_gnmax(here[None], 10), 10, [5.0])[0, 0]
    assert bound == pytest.approx(1.3217e-9, rel=1e-4)
    back = divergence(law(there, 10), law(here, 10), 5.0)
    assert back == pytest.approx(2.1354e-9, rel=1e-4)
    assert divergence(law(here, 10), law(there, 10), 5.0) < bound < back


def discrete(sigma: float, steps_in_one: int) -> tuple[np.ndarray, np.ndarray]:
    steps = np.arange(-40 * sigma * steps_in_one, 40 * sigma * steps_in_one + 1)
    x = steps / steps_in_one
    mass = np.exp(-(x**2) / (2 * sigma**2))
    return x, mass / mass.sum()


@pytest.mark.parametrize(("sigma", "steps"), [(2.0, 1), (5.0, 1), (5.0, 4), (12.0, 1)])
def test_noise_on_a_grid_is_bounded_by_smaller_gaps(sigma, steps):
    x, mass = discrete(sigma, steps)
    difference = np.convolve(mass, mass)
    wide = np.arange(len(difference)) / steps + 2 * x[0]
    counts = np.array([[50 + k, 50] for k in range(0, int(8 * sigma))], float)
    tails = np.array([difference[wide >= top - 50 - 1e-9].sum() for top in counts[:, 0]])
    bound = np.exp(analysis.log_q_gnmax(counts, sigma, 1 / steps))
    beyond = bound < 0.5
    assert beyond.sum() > 5
    assert (tails[beyond] <= bound[beyond] * (1 + 1e-12)).all()
    # ties and the grid matter: without them the bound would be too low
    assert (tails > np.exp(analysis.log_q_gnmax(counts, sigma)) * (1 + 1e-6))[beyond].all()
    tops = np.arange(50.0, 50 + int(8 * sigma))
    passed, _ = analysis.log_answered(100 - tops, 50.0, sigma, 1 / steps)
    rare = np.array([mass[x >= top - 50 - 1e-9].sum() for top in tops])
    beyond = passed <= special.log_ndtr(-1)
    assert beyond.sum() > 5
    assert (rare <= np.exp(passed) * (1 + 1e-12))[beyond].all()
    # a threshold just above a grid point is the worst for the other outcome
    _, failed = analysis.log_answered(tops, 50.001, sigma, 1 / steps)
    missed = np.array([mass[x < 50.001 - top].sum() for top in tops])
    beyond = failed <= special.log_ndtr(-1)
    assert beyond.sum() > 5
    assert (missed <= np.exp(failed) * (1 + 1e-12))[beyond].all()


def test_where_gaps_are_small_a_grid_leaves_the_worst_case():
    counts = [[52.0, 50.0, 0.0]]
    assert analysis.log_q_gnmax(counts, 4.0, 1.0)[0] == pytest.approx(math.log(2 / 3))
    orders = (1.5, 2.0, 30.0)
    for m in (2, 3, 10, 1000):
        cost = analysis.rdp_gnmax([math.log1p(-1 / m)], 4.0, orders)[0]
        assert cost == pytest.approx(np.array(orders) / 16)


def test_laplace_noise_on_a_grid_is_added_up_exactly():
    scale, grid = 6.0, 0.5
    x = np.arange(-4000, 4001)
    mass = np.exp(-np.abs(x) * grid / scale)
    mass /= mass.sum()
    difference = np.convolve(mass, mass)
    gap = 70.0
    q = difference[(np.arange(len(difference)) - 8000) * grid >= gap].sum()
    e, order = 2 / scale, 5.0
    top = (1 - q) * ((1 - q) / (1 - math.exp(e) * q)) ** (order - 1)
    wanted = math.log(top + q * math.exp(e * (order - 1))) / (order - 1)
    found = analysis.rdp_lnmax([[100, 30]], scale, [order], grid)[0, 0]
    assert found == pytest.approx(wanted, rel=1e-6)
    assert found > analysis.rdp_lnmax([[100, 30]], scale, [order])[0, 0]


def test_all_agreeing_for_ever_costs_nothing_and_worst_case_is_the_ceiling():
    orders = (2.0, 10.0, 100.0)
    assert (analysis.rdp_gnmax([-math.inf], 40.0, orders) == 0).all()
    assert analysis.rdp_gnmax([math.log(0.5)], 40.0, orders)[0] == pytest.approx(
        np.array(orders) / 1600
    )
    cost = analysis.rdp_gnmax(np.linspace(-2000, -1e-3, 5000), 40.0, orders)
    assert ((cost >= 0) & (cost <= np.array(orders) / 1600)).all()


def test_conditions_of_theorem_6():
    """At sigma 1000 ln(1/q) must be above 1 or so; at sigma 1/2 above 4, or mu2 is below 1."""
    assert analysis._valid(np.array([-0.9, -1.1]), 1000.0).tolist() == [False, True]
    assert analysis._valid(np.array([-3.9, -12.0, -math.inf]), 0.5).tolist() == [False, True, False]


def test_at_most_takes_the_dearest_answers():
    _, counts, (threshold, sigma1, sigma2) = known("mnist640")
    orders = (4.0, 14.0)
    costs = analysis.rdp_gnmax(analysis.log_q_gnmax(counts, sigma2), sigma2, orders)
    checks = analysis.rdp_threshold(counts.max(1), threshold, sigma1, orders).sum(0)
    found = analysis.at_most(counts, 100, threshold, sigma1, sigma2, orders)
    wanted = checks + np.sort(costs, axis=0)[-100:].sum(0)
    np.testing.assert_allclose(found.values, wanted)
    some = np.random.default_rng(3).permutation(len(counts)) < 100
    went = analysis.realised(counts, some, threshold, sigma1, sigma2, orders)
    assert all(a < b for a, b in zip(went.values, found.values, strict=True))
    every = analysis.at_most(counts, 10**6, threshold, sigma1, sigma2, orders)
    np.testing.assert_allclose(every.values, checks + costs.sum(0))


def test_a_student_moves_what_the_check_looks_at():
    counts = np.array([[90, 10], [60, 40]])
    mask = np.zeros(2, dtype=bool)
    tops = np.array([12.5, -3.0])
    found = analysis.realised(counts, mask, 30.0, 10.0, 8.0, (5.0,), tops=tops)
    assert found.values[0] == pytest.approx(
        analysis.rdp_threshold(tops, 30.0, 10.0, (5.0,)).sum(), rel=1e-12
    )


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda: analysis.realised([[3, 1]], [1], 2.0, 1.0, 1.0), "True or False"),
        (lambda: analysis.realised([[3, 1]], [True], 2.0, 1.0, 1.0, tops=[1, 2]), "tops"),
        (lambda: analysis.rdp_gnmax([0.1], 1.0), "above zero"),
        (lambda: analysis.rdp_gnmax([math.nan], 1.0), "above zero"),
        (lambda: analysis.rdp_gnmax([-1.0], 1.0, [1.0]), "above 1"),
        (lambda: analysis.rdp_gnmax([-1.0], 0.0), "sigma"),
        (lambda: analysis.log_q_gnmax([[3, 1]], 1.0, grid=1.0), "too coarse"),
        (lambda: analysis.log_q_gnmax([[3, 1]], 9.0, grid=0.3), "no multiple"),
    ],
)
def test_refusals(wrong, why):
    with pytest.raises(InputError, match=why):
        wrong()


@pytest.mark.parametrize("counts", [[1, 2], [[1]], [[1.5, 2]], [[-1, 2]], [[math.nan, 2]]])
def test_votes_are_checked(counts):
    with pytest.raises(InputError, match="votes must be"):
        analysis.gnmax(counts, 1.0)
