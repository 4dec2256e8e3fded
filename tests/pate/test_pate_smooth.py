"""Golden values: tests/golden/pate (tensorflow/privacy 03035d5d, research/pate_2018)."""

import json
import math
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest

from sourdine.errors import InputError, NotAccountable
from sourdine.pate import analysis, smooth
from sourdine.pate.smooth import AnswerCost

GOLDEN = Path(__file__).parent.parent / "golden" / "pate"
ARRAYS = np.load(GOLDEN / "reference.npz")
FACTS = json.loads((GOLDEN / "reference.json").read_text(encoding="utf-8"))
CLOSE = {"rtol": 1e-9, "atol": 1e-22}


@pytest.mark.parametrize("name", FACTS["sets"])
def test_sensitivities_are_those_of_the_original(name):
    facts, counts = FACTS["sets"][name], ARRAYS[f"{name}_votes"]
    threshold, sigma1, order = facts["T"], facts["sigma1"], facts["ss_order"]
    answers = AnswerCost(facts["sigma2"], counts.shape[1], order)
    assert answers.log_q0 == pytest.approx(facts["logq0"], rel=1e-9)
    assert answers.log_q1 == pytest.approx(facts["logq1"], rel=1e-9)
    assert answers.conditions == tuple(facts["conditions_C5_C6"])
    rows, beta = ARRAYS[f"{name}_ls_rows"], facts["beta"]

    change = smooth.changes_gnmax(counts, answers)
    np.testing.assert_allclose(change[rows], ARRAYS[f"{name}_ls_gnmax"], **CLOSE)
    check = smooth.threshold_at(counts, threshold, sigma1, order)
    # Where all of the largest count is moved away the original looks at a largest count of 0, or not.
    possible = np.arange(check.shape[1]) != counts.max(1)[:, None]
    np.testing.assert_allclose(
        check[rows][possible[rows]], ARRAYS[f"{name}_ls_threshold"][possible[rows]], **CLOSE
    )
    for kind, local in (("gnmax", change), ("threshold", check)):
        found = [smooth.smooth_sensitivity(row, beta) for row in local[rows]]
        np.testing.assert_allclose(found, ARRAYS[f"{name}_ss_{kind}"], rtol=1e-9)

    chance = np.exp(analysis.log_answered(counts.max(1), threshold, sigma1)[0])
    total = (check + chance[:, None] * change).sum(0)
    whole = possible.all(0)
    wanted = ARRAYS[f"{name}_ls_total_expected"]
    np.testing.assert_allclose(total[whole], wanted[whole], **CLOSE)
    assert smooth.smooth_sensitivity(total, beta) == pytest.approx(facts["gnss"]["ss_total"], rel=1e-9)


def test_the_anchors_of_the_original():
    found = smooth.changes_gnmax([[10, 0, 0]], AnswerCost(0.5, 3, 1.5))[0]
    wanted = [3.13503646e-17, 1.60178280e-08, 5.90681786e-03, *[5.99981308] * 7]
    np.testing.assert_allclose(found, wanted, rtol=1e-7)
    found = smooth.changes_gnmax([[1000, 500, 300, 200, 0]], AnswerCost(250.0, 5, 10.0))[0]
    wanted = [*[0.0] * 298, 2.77693450548e-7, 2.10853979548e-6, *[2.73113623988e-6] * 1700]
    np.testing.assert_allclose(found, wanted, rtol=1e-7)
    found = smooth.threshold_at([[20, 10, 0]], 16.0, 2.0, 10.0)[0, 3:6]
    np.testing.assert_allclose(found, [1.48454129e-04, 1.47826870e-02, 3.94153241e-02], rtol=1e-7)


@pytest.mark.parametrize(
    ("answers", "holds"),
    [
        (AnswerCost(30.0, 10, 25.0), (True, True)),
        (AnswerCost(20.0, 10, 25.0), (True, False)),
        (AnswerCost(60.0, 20, 93.5), (True, False)),
        (AnswerCost(40.0, 10, 14.0), (True, True)),
    ],
)
def test_conditions(answers, holds):
    assert answers.conditions == holds
    if all(holds):
        answers.check()
    else:
        with pytest.raises(NotAccountable, match="C6"):
            answers.check()


def test_falling_values_are_seen():
    assert smooth._rises(np.array([0.0, 0.0, 1.0, 1.0]))
    assert not smooth._rises(np.array([0.0, 1.0, 1 - 1e-8]))


class Falling(AnswerCost):
    def cost(self, log_q):
        return 1 - np.exp(log_q)


def test_orders_are_refused_that_are_not_covered():
    with pytest.raises(NotAccountable, match="C5"):
        Falling(40.0, 10, 14.0).check()
    early = AnswerCost(40.0, 10, 14.0, grid=1.0)
    early.check()
    early.__dict__["log_q0"] = -1.5
    with pytest.raises(NotAccountable, match="grid"):
        early.check()


def test_totals_take_the_answers_given_or_the_largest_changes():
    counts = np.array([[240, 5, 5], [150, 90, 10], [100, 80, 70], [240, 5, 5]])
    answered = np.array([True, False, True, False])
    threshold, sigma1, sigma2, order = 200.0, 100.0, 30.0, 10.0
    single = smooth.changes_gnmax(counts, AnswerCost(sigma2, 3, order))
    check = smooth.changes_threshold(counts, threshold, sigma1, order).sum(0)
    settings = (threshold, sigma1, sigma2, order)
    found = smooth.changes_realised(counts, answered, *settings)
    np.testing.assert_allclose(found, check + single[0] + single[2], rtol=1e-12)
    found = smooth.changes_at_most(counts, 2, *settings)
    np.testing.assert_allclose(found, check + np.sort(single, axis=0)[-2:].sum(0), rtol=1e-12)
    assert (found > check + single[[0, 3]].sum(0)).any()


def test_the_last_vote_is_moved_too():
    answers = AnswerCost(3.0, 2, 2.0)
    away, there = smooth.changes_gnmax([[7, 1], [8, 0]], answers)
    assert away[0] < away[1] == there[0]
    assert (smooth.threshold_at([[7, 1]], 5.0, 2.0, 3.0)[0, 7:] == 0).all()  # nobody has no votes


def histograms(teachers: int, classes: int) -> np.ndarray:
    grid = product(range(teachers + 1), repeat=classes)
    return np.array([row for row in grid if sum(row) == teachers])


def apart(rows: np.ndarray) -> np.ndarray:
    """How many votes were moved between each two histograms."""
    return np.abs(rows[:, None] - rows).sum(2) // 2


def brute(rows: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """The largest change of the cost between neighbours, the first at most d votes from each row."""
    distance = apart(rows)
    near = np.abs(cost[:, None] - cost)
    near[distance > 1] = 0
    local = near.max(1)
    return np.array([[local[row <= d].max() for d in range(int(rows[0].sum()))] for row in distance])


CASES = [(0.7, 2.0, 9, 3), (1.5, 2.0, 14, 3), (3.0, 3.0, 22, 3), (3.0, 2.0, 16, 4), (2.0, 1.5, 20, 2)]


@pytest.mark.parametrize(("sigma", "order", "teachers", "classes"), CASES)
@pytest.mark.parametrize("grid", [0.0, 1.0])
def test_no_votes_within_reach_change_more(sigma, order, teachers, classes, grid):
    if grid > sigma / 2:
        grid = 0.25 if sigma < 1 else 0.5
    rows, answers = histograms(teachers, classes), AnswerCost(sigma, classes, order, grid)
    cost = analysis.rdp_gnmax(analysis.log_q_gnmax(rows, sigma, grid), sigma, [order])[:, 0]
    exact = brute(rows, cost)
    bound = smooth.changes_gnmax(rows, answers)
    assert exact.max() > 0
    assert (exact <= bound * (1 + 1e-9) + 1e-300).all()


@pytest.mark.parametrize("threshold", [4.0, 7.0, 12.0])
def test_no_votes_within_reach_change_the_check_more(threshold):
    rows = histograms(14, 3)
    cost = analysis.rdp_threshold(rows.max(1), threshold, 1.5, [3.0])[:, 0]
    exact = brute(rows, cost)
    assert (exact <= smooth.changes_threshold(rows, threshold, 1.5, 3.0) * (1 + 1e-12)).all()
    # what was published looks at one distance only, which is no bound
    assert (exact > smooth.threshold_at(rows, threshold, 1.5, 3.0) * (1 + 1e-6)).any()


def test_the_whole_is_smooth():
    """S(D) <= e^beta S(D') and |f(D) - f(D')| <= S(D), for all D, D' of two queries and six teachers."""
    single, beta = histograms(6, 2), 0.1
    pairs = np.array(list(product(single, repeat=2)))
    settings, order = (4.0, 1.5, 2.0), 1.5
    answered = np.array([True, False])
    for kept, cost, change in (
        (answered, analysis.realised, smooth.changes_realised),
        (1, analysis.at_most, smooth.changes_at_most),
    ):
        total = np.array([cost(rows, kept, *settings, (order,)).values[0] for rows in pairs])
        local = [change(rows, kept, *settings, order) for rows in pairs]
        size = np.array([smooth.smooth_sensitivity(changes, beta) for changes in local])
        # one teacher may change his vote in either query
        step = np.abs(pairs[:, None] - pairs).sum(3).max(2) // 2
        i, j = np.nonzero(step == 1)
        assert len(i) > 100
        assert (np.abs(total[i] - total[j]) <= np.minimum(size[i], size[j]) * (1 + 1e-9)).all()
        assert (size[i] <= math.exp(beta) * size[j] * (1 + 1e-9)).all()
        assert (size[i] > size[j] * 1.01).any()


def test_equal_histograms_in_any_order_are_the_same():
    answers = AnswerCost(40.0, 4, 14.0)
    rows = np.array(list(permutations([150, 60, 30, 10])))
    found = smooth.changes_gnmax(rows, answers)
    assert (found == found[0]).all()


def test_smooth_sensitivity_by_hand():
    assert smooth.smooth_sensitivity([1.0, 2.0, 2.5], 0.5) == pytest.approx(2 * math.exp(-0.5))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda: AnswerCost(40.0, 1, 14.0), "classes"),
        (lambda: AnswerCost(40.0, 10, 1.0), "above 1"),
        (lambda: AnswerCost(0.0, 10, 2.0), "sigma"),
        (lambda: smooth.changes_gnmax([[5, 5], [5, 4]], AnswerCost(40.0, 2, 14.0)), "differ in sum"),
        (lambda: smooth.changes_gnmax([[5, 5]], AnswerCost(40.0, 3, 14.0)), "2 classes"),
        (lambda: smooth.changes_realised([[5, 5]], [0.4], 5.0, 2.0, 40.0, 14.0), "True or False"),
        (lambda: smooth.smooth_sensitivity([-1.0], 0.1), "zero or above"),
        (lambda: smooth.smooth_sensitivity([[1.0]], 0.1), "list of numbers"),
        (lambda: smooth.smooth_sensitivity([1.0], 0.0), "beta"),
    ],
)
def test_refusals(wrong, why):
    with pytest.raises(InputError, match=why):
        wrong()
