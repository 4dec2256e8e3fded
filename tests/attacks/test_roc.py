"""The curve by brute force, ties, refusals, and intervals that hold as often as they say."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sourdine.attacks.roc import Roc, density, wilson
from sourdine.errors import InputError

FALSE_ALARM = 1e-6
scores = st.lists(st.sampled_from([-math.inf, -1.0, 0.0, 0.5, 2.0, math.inf]), min_size=1, max_size=12)


@given(scores, scores)
def test_auc_counts_all_pairs(members: list[float], others: list[float]) -> None:
    pairs = [(m > o) + 0.5 * (m == o) for m in members for o in others]
    assert Roc(members, others).auc == pytest.approx(np.mean(pairs))


@given(scores, scores, st.floats(0.001, 0.999))
def test_the_rate_is_the_best_of_whole_blocks(
    members: list[float], others: list[float], fpr: float
) -> None:
    """Against all regions {score >= s} and the empty one."""
    best = 0.0
    for least in {*members, *others}:
        if np.mean([o >= least for o in others]) <= fpr:
            best = max(best, float(np.mean([m >= least for m in members])))
    tpr, low, high = (float(end[0]) for end in Roc(members, others).band([fpr]))
    assert tpr == pytest.approx(best)
    assert low <= tpr <= high


@given(scores, scores)
def test_the_curve_climbs_and_its_area_is_the_auc(members: list[float], others: list[float]) -> None:
    roc = Roc(members, others)
    fpr, tpr = roc.steps
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    assert (np.diff(fpr) >= 0).all() and (np.diff(tpr) >= 0).all()
    assert np.trapezoid(tpr, fpr) == pytest.approx(roc.auc)
    assert roc.advantage == pytest.approx(np.max(tpr - fpr)) and 0 <= roc.advantage <= 1
    assert roc.balanced_accuracy == pytest.approx((1 + roc.advantage) / 2)


def test_nothing_is_read_from_within_a_block_of_ties() -> None:
    """Sorted with members first, a constant score would find a tenth of them at no false positive."""
    constant = Roc(np.zeros(1000), np.zeros(1000))
    assert constant.at(0.1).tpr == 0.0 and constant.auc == 0.5 and constant.advantage == 0.0
    half = Roc(np.repeat([1.0, 0.0], [300, 700]), np.repeat([1.0, 0.0], [100, 900]))
    assert half.at(0.1).tpr == 0.3  # the block of exactly a tenth of the others is taken whole
    assert Roc(half.members, np.repeat([1.0, 0.0], [101, 899])).at(0.1).tpr == 0.0


def test_known_rates() -> None:
    """The interval is R's binom.test(20, 100): 0.1267 to 0.2918."""
    roc = Roc(np.concatenate([np.full(20, 2.0), np.full(80, -1.0)]), np.linspace(0, 1, 1000))
    rate = roc.at(0.01)
    assert rate.tpr == 0.2
    assert (rate.low, rate.high) == pytest.approx((0.1267, 0.2918), abs=5e-5)
    assert str(rate) == "TPR at FPR 0.01: 0.200 (0.127 to 0.292)."


@pytest.mark.parametrize(("others", "fpr", "given"), [(1000, 0.01, True), (999, 0.01, False), (100, 0.1, True), (99, 0.1, False), (10_000, 0.001, True), (9_999, 0.001, False)])  # fmt: skip
def test_too_few_others_get_no_rate(others: int, fpr: float, given: bool) -> None:
    rate = Roc(np.ones(5), np.zeros(others)).at(fpr)
    assert (rate.tpr is not None) is given
    if not given:
        assert rate.low is None and rate.high is None
        assert str(rate.reason).endswith(f"{round(10 / fpr):,} or more are needed")
        assert "not given" in str(rate)


def test_to_json_has_rates_and_no_scores() -> None:
    found = Roc(np.array([0.123456]), np.zeros(200)).to_json()
    assert found["auc"] == 1.0 and [rate["tpr"] for rate in found["rates"]] == [1.0, None, None]
    assert "0.123456" not in str(found) and "0.123456" not in repr(Roc([0.123456], [0.0]))


def covered(interval: str, trials: int = 400, count: int = 60) -> int:
    """How often a 95% interval holds the truth, for normal scores that are one deviation apart."""
    rng = np.random.default_rng(7)
    true = stats.norm.cdf(1 / math.sqrt(2))
    hits = 0
    for _ in range(trials):
        members, others = rng.normal(1, 1, count), rng.normal(0, 1, 2 * count)
        roc = Roc(members, others)
        if interval == "auc":
            low, high = roc.auc_interval()
            hits += low <= true <= high
        elif interval == "tpr":
            rate = roc.at(0.1)
            threshold = np.sort(others)[-13]  # twelve of 120 lie above it
            hits += rate.low <= stats.norm.sf(threshold - 1) <= rate.high
        else:
            low, high = wilson(roc.auc, 4 * count, 0.05)  # as if there were more records
            hits += low <= true <= high
    return hits


def test_intervals_hold_as_often_as_they_say() -> None:
    """Fewer hits than this have probability 1e-6 where 95% hold."""
    least = stats.binom.ppf(FALSE_ALARM, 400, 0.95)
    assert covered("auc") >= least
    assert covered("tpr") >= least
    assert covered("too narrow") < least


def alarms(sure: float, trials: int = 400, count: int = 1000) -> int:
    """How often chance is excluded at 5%, where the attack is sure of a share of the members."""
    rng = np.random.default_rng(11)
    found = 0
    for _ in range(trials):
        members = np.where(rng.random(count) < sure, 9.0, rng.normal(size=count))
        found += Roc(members, rng.normal(size=count)).beats_chance(0.05)
    return found


def test_chance_is_excluded_as_rarely_as_stated_and_a_few_sure_members_are_seen() -> None:
    """Twenty of 400 alarms may be false; more than `most` have probability 1e-6."""
    most = stats.binom.isf(FALSE_ALARM, 400, 0.05)
    assert alarms(0.0) <= most
    assert alarms(0.05, trials=100) > 90
    members = np.concatenate([np.full(40, 9.0), np.linspace(-1, 1, 960)])
    few = Roc(members, np.linspace(-1, 1, 1000))
    assert few.auc_interval()[0] < 0.5 and few.beats_chance(0.01)  # the AUC alone would miss them
    assert not Roc(np.zeros(2000), np.zeros(2000)).beats_chance(0.9)


def test_an_interval_of_perfect_scores_is_no_point() -> None:
    low, high = Roc(np.ones(20), np.zeros(30)).auc_interval()
    assert 0.8 < low < 0.9 and high == 1.0
    assert Roc(np.ones(20), np.zeros(30)).auc_interval(0.999)[0] < low


@pytest.mark.parametrize(
    ("members", "others", "message"),
    [
        ([], [1.0], "no scores of members"),
        ([1.0], [], "no scores of others"),
        ([math.nan], [1.0], "a score of members is not a number"),
        ([[1.0]], [1.0], "no scores of members"),
    ],
)
def test_scores_that_make_no_curve(members: list[float], others: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Roc(members, others)


@pytest.mark.parametrize("fpr", [0.0, 1.0, -0.1, math.nan])
def test_rates_that_make_no_sense(fpr: float) -> None:
    with pytest.raises(InputError, match="fpr is"):
        Roc([1.0], [0.0]).at(fpr)


def test_a_density_integrates_to_one_and_a_point_has_none() -> None:
    grid = np.linspace(-6, 6, 400)
    found = density(np.append(np.random.default_rng(1).normal(size=300), -math.inf), grid)
    assert np.trapezoid(found, grid) == pytest.approx(1, abs=0.01)
    assert not density(np.ones(5), grid).any() and not density(np.array([-math.inf]), grid).any()
