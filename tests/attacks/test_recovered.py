"""The worth of a reconstruction, by hand; and that nothing but noise names nobody."""

import numpy as np
import pytest
from scipy import optimize, stats

from sourdine.attacks.recovered import FEWEST, Recovered, recovered
from sourdine.errors import InputError

WIDTH = 32
RNG = np.random.default_rng(3)
SHIFT = np.full(WIDTH, 5.0)
PUBLIC = RNG.normal(size=(4000, WIDTH)) + SHIFT
PUBLIC += SHIFT - PUBLIC.mean(axis=0)
OTHERS = RNG.normal(size=(FEWEST, WIDTH)) + SHIFT
TRUTH = RNG.normal(size=(40, WIDTH)) + SHIFT


def worth(found: np.ndarray, truth: np.ndarray = TRUTH, **change: object) -> Recovered:
    return recovered(found, truth, **({"public": PUBLIC, "distractors": OTHERS} | change))


def test_the_truth_in_any_order_and_length_is_worth_everything() -> None:
    found = 3 * (TRUTH[::-1] - SHIFT) + SHIFT
    result = worth(found)
    assert result.matched == result.identified == 1
    assert result.cosines == pytest.approx(1)
    assert result.chance == 1 / (FEWEST + 1)


def test_the_mean_is_worth_nothing() -> None:
    """Its cosine with every vector is 0.98 or so before the mean is subtracted."""
    raw = TRUTH @ SHIFT / np.linalg.norm(TRUTH, axis=1) / np.linalg.norm(SHIFT)
    assert raw.min() > 0.9
    result = worth(np.tile(SHIFT, (40, 1)))
    assert result.matched == result.identified == 0


def test_each_found_vector_has_one_partner() -> None:
    axes = np.eye(4)
    truth = np.array([axes[0], axes[0] + 0.1 * axes[1], axes[2]])
    found = np.array([axes[0], axes[0], axes[0]])  # one guess three times over
    public = np.vstack([axes, -axes])
    result = recovered(found, truth, public=public, distractors=np.tile(-axes[3], (FEWEST, 1)))
    assert result.cosines == pytest.approx([1, 1 / np.sqrt(1.01), 0])
    assert result.matched == pytest.approx(2 / 3)
    one = recovered(found[:1], truth, public=public, distractors=np.tile(-axes[3], (FEWEST, 1)))
    assert one.cosines == pytest.approx([1, -1, -1])
    assert one.matched == pytest.approx(1 / 3)


def test_the_threshold_is_reached_or_not() -> None:
    axes = np.eye(3)
    public = np.vstack([axes, -axes])
    found = np.array([[0.8, 0.6, 0.0]])
    others = np.tile(-axes[2], (FEWEST, 1))
    for threshold, matched in ((0.79, 1), (0.81, 0)):
        result = recovered(found, axes[:1], public=public, distractors=others, threshold=threshold)
        assert (result.matched, result.identified) == (matched, 1)


def test_a_closer_distractor_or_a_tie_is_a_miss() -> None:
    found = TRUTH + 0.01
    assert worth(found).identified == 1
    assert worth(found, distractors=np.vstack([OTHERS, TRUTH])).identified == 0
    assert (
        worth(found, distractors=np.vstack([OTHERS, found[0]])).identified == 0
    )  # one bad entry in all lists


def test_noise_names_nobody_though_partners_would() -> None:
    """Chance is 1 in 901. A partner, chosen with the truth at hand, names its vector far oftener."""
    runs, each, hit, partners = 50, 40, 0, 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        found, truth, others = (rng.normal(size=(rows, WIDTH)) + SHIFT for rows in (each, each, FEWEST))
        hit += worth(found, truth, distractors=others).identified > 0
        unit = [
            (rows - SHIFT) / np.linalg.norm(rows - SHIFT, axis=1)[:, None]
            for rows in (found, truth, others)
        ]
        mine, its = optimize.linear_sum_assignment(-unit[0] @ unit[1].T)
        close = (unit[0][mine] * unit[1][its]).sum(axis=1)
        partners += int((close > (unit[0][mine] @ unit[2].T).max(axis=1)).sum())
    # Runs are independent, and one of them names somebody with probability at most 40 / 901.
    assert hit <= stats.binom.isf(1e-6, runs, each / (FEWEST + 1))
    assert partners > 5 * runs * each / (FEWEST + 1)


def test_the_bound_of_a_release() -> None:
    result = worth(TRUTH)
    assert result.bound(0) == pytest.approx(result.chance)
    assert result.bound(1) == pytest.approx(stats.norm.cdf(stats.norm.ppf(1 / (FEWEST + 1)) + 1))
    assert result.bound(0) < result.bound(0.5) < result.bound(5) <= 1
    with pytest.raises(InputError, match="mu is -1"):
        result.bound(-1)


def test_the_best_attack_on_a_gaussian_release_stays_below_the_bound() -> None:
    """v + N of deviation s is mu-GDP with mu = (largest distance) / s; nearest candidates are named."""
    rng = np.random.default_rng(11)
    truth, others = (rng.normal(size=(rows, WIDTH)) for rows in (400, FEWEST))
    truth, others = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (truth, others))
    public = np.vstack([others, -others])
    named = []
    for row in truth:
        found = row + rng.normal(scale=0.7, size=(1, WIDTH))
        named.append(recovered(found, row[None], public=public, distractors=others).identified)
    bound = recovered(truth, truth, public=public, distractors=others).bound(2 / 0.7)
    assert 10 / (FEWEST + 1) < np.mean(named) <= bound


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"distractors": OTHERS[1:]}, "899 distractors.*900 or more other texts"),
        ({"distractors": np.full((FEWEST, WIDTH), np.nan)}, "not finite"),
        ({"distractors": OTHERS[:, 1:]}, "distractors has 31 coordinates.*same encoder"),
        ({"public": SHIFT}, "one vector a row"),
        ({"threshold": 0.0}, "above 0 and at most at 1"),
        ({"threshold": 1.5}, "above 0 and at most at 1"),
    ],
)
def test_what_cannot_be_measured(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        worth(TRUTH, **change)


def test_pairs_are_asked_one_by_one() -> None:
    chance = np.random.default_rng(3)
    truth, others, public = (chance.standard_normal((count, 40)) for count in (5, 950, 300))
    found = truth[[1, 0, 2, 3, 4]]  # the first two in each other's place
    result = recovered(found, truth, public=public, distractors=others, paired=True)
    assert result.matched == result.identified == 0.6
    assert recovered(found, truth, public=public, distractors=others).matched == 1
    with pytest.raises(InputError, match="paired"):
        recovered(found[:3], truth, public=public, distractors=others, paired=True)
