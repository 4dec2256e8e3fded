"""How thresholds are chosen: what is guessed, what is counted, what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sourdine.audit import rules
from sourdine.audit.bound import Counts
from sourdine.audit.one_run import GaussianOneRun, OneRun, one_run_epsilon
from sourdine.audit.rules import Bonferroni, Fixed, Split, lower_bound, usual_grid
from sourdine.errors import InputError

SCORES = np.array([0.9, -1.0, 0.3, 0.8, -math.inf, 0.1, math.inf, -0.5])
COINS = np.array([True, False, False, True, False, True, True, False])


def leaking(canaries: int, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    noise = np.random.default_rng(seed)
    coins = noise.random(canaries) < 0.5
    return coins + noise.laplace(0, 0.5, canaries), coins


def test_fixed_counts_what_is_right() -> None:
    """From the highest: in, in, in, out, in, out, out, out."""
    for k_in, k_out, correct in (
        (3, 0, 3),
        (4, 0, 3),
        (0, 3, 3),
        (0, 4, 3),
        (4, 4, 6),
        (1, 1, 2),
        (0, 0, 0),
    ):
        assert Fixed(k_in, k_out).guesses(SCORES, COINS) == (Counts(8, k_in + k_out, correct),)


def test_infinite_scores_are_the_ends() -> None:
    flipped = COINS.copy()
    flipped[[4, 6]] = True, False
    assert Fixed(1, 1).guesses(SCORES, flipped) == (Counts(8, 2, 0),)


def test_bonferroni_tests_the_whole_grid_at_a_share_of_alpha() -> None:
    scores, coins = leaking(1000)
    grid = ((10, 10), (100, 100), (300, 0))
    parts = Bonferroni(grid).guesses(scores, coins)
    assert [(c.canaries, c.guesses) for c in parts] == [(1000, 20), (1000, 200), (1000, 300)]
    best = max(OneRun().epsilon(c, 1e-5, 0.05 / 3) for c in parts)
    found = lower_bound(scores, coins, delta=1e-5, rule=Bonferroni(grid))
    assert found.epsilon == pytest.approx(best, abs=1e-9)
    assert found.conditional is None and found.method == "one run" and found.confidence == 0.95
    chosen = next(c for c in parts if c.guesses == found.guesses)
    assert (found.canaries, found.correct) == (chosen.canaries, chosen.correct)
    # Twice as many methods: half the level for each.
    both = lower_bound(
        scores, coins, delta=1e-5, rule=Bonferroni(grid), bounds=(OneRun(), GaussianOneRun())
    )
    best = max(
        method.epsilon(c, 1e-5, 0.05 / 6) for c in parts for method in (OneRun(), GaussianOneRun())
    )
    assert both.epsilon == pytest.approx(best, abs=1e-9)
    assert both.conditional == "if the mechanism is Gaussian"


def test_a_split_counts_its_second_part_only() -> None:
    scores, coins = leaking(1000)
    for share, second in ((0.3, 700), (0.001, 999), (0.999, 1)):
        (counts,) = Split(share).guesses(scores, coins)
        assert counts.canaries == second and counts.guesses >= 1
    found = lower_bound(scores, coins, delta=1e-5, rule=Split())
    (counts,) = Split().guesses(scores, coins)
    assert found.epsilon == one_run_epsilon(700, counts.guesses, counts.correct, 1e-5) > 1
    assert Split(0.5).guesses(np.arange(2.0), np.array([False, True]))[0].canaries == 1


def test_a_split_chooses_without_its_second_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the shuffle held still: other coins in the second part change what is right, not what is
    guessed; other coins in the first part change what is guessed."""
    monkeypatch.setattr(rules, "_keys", lambda scores, _: np.arange(len(scores)))
    scores, coins = leaking(1000)
    (chosen,) = Split(0.5).guesses(scores, coins)
    for changed, same in ((slice(500, 1000), True), (slice(0, 500), False)):
        others = coins.copy()
        others[changed] = np.random.default_rng(5).random(500) < 0.5
        (counts,) = Split(0.5).guesses(scores, others)
        assert (counts.guesses == chosen.guesses) is same
        assert (counts.correct == chosen.correct) is False


@pytest.mark.parametrize("canaries", [1, 2, 3, 7, 10, 33, 100, 1000, 10_000])
def test_the_usual_grid_fits_any_number(canaries: int) -> None:
    grid = usual_grid(canaries)
    assert len(set(grid)) == len(grid) >= 1
    for k_in, k_out in grid:
        assert k_in >= 1 and k_out >= 0 and k_in + k_out <= canaries
    if canaries >= 1000:
        assert len(grid) == 4
    coins = np.arange(canaries) % 2 == 0
    assert 0 <= lower_bound(np.zeros(canaries), coins, delta=0.0).epsilon < math.inf


def test_the_same_scores_give_the_same_bound() -> None:
    scores, coins = leaking(500)
    for rule in (Fixed(50, 50), Bonferroni(), Split()):
        first = lower_bound(np.round(scores), coins, delta=1e-5, rule=rule)
        assert first == lower_bound(np.round(scores), coins, delta=1e-5, rule=rule)
    lists = lower_bound(scores.tolist(), coins.tolist(), delta=1e-5)
    assert lists == lower_bound(scores, coins, delta=1e-5)


def test_only_the_order_of_scores_counts() -> None:
    scores, coins = leaking(500)
    for rule in (Fixed(50, 50), Bonferroni()):
        assert rule.guesses(scores, coins) == rule.guesses(np.exp(3 * scores), coins)
        order = np.random.default_rng(4).permutation(500)
        assert rule.guesses(scores, coins) == rule.guesses(scores[order], coins[order])


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=60))
def test_any_scores_and_coins(canaries: list[tuple[int, bool]]) -> None:
    scores, coins = (np.array(column) for column in zip(*canaries, strict=True))
    for rule in (Fixed(1, 1), Split(), Bonferroni()):
        for counts in rule.guesses(scores, coins):
            assert 0 <= counts.correct <= counts.guesses <= counts.canaries <= len(coins)
        bound = lower_bound(scores, coins, delta=1e-5, rule=rule)
        assert 0 <= bound.epsilon < math.inf
        less = lower_bound(scores, coins, delta=1e-3, rule=rule)
        surer = lower_bound(scores, coins, delta=1e-5, rule=rule, confidence=0.99)
        assert max(less.epsilon, surer.epsilon) <= bound.epsilon + 1e-8


def test_what_is_refused() -> None:
    good = np.array([0.1, 0.2]), np.array([True, False])
    for scores, coins in (
        ([], []),
        ([0.1], [True, False]),
        ([[0.1, 0.2]], [[True, False]]),
    ):
        with pytest.raises(InputError, match="one of each for each canary"):
            lower_bound(scores, coins, delta=0.0)
    with pytest.raises(InputError, match="1 of 2 scores are NaN"):
        lower_bound([0.1, math.nan], [True, False], delta=0.0)
    for coins in ([1, 0], ["in", "out"], [0.5, 0.5]):
        with pytest.raises(InputError, match="coins must be true or false"):
            lower_bound(good[0], coins, delta=0.0)
    with pytest.raises(InputError, match="2 guesses of in and 1 of out are more than 2 canaries"):
        lower_bound(*good, delta=0.0, rule=Fixed(2, 1))
    with pytest.raises(InputError, match="k_in is -1"):
        Bonferroni(((-1, 2),))
    with pytest.raises(InputError, match=r"grid of .* is empty"):
        Bonferroni(())
    with pytest.raises(InputError, match="no bound or no guess to try"):
        lower_bound(*good, delta=0.0, bounds=())
    with pytest.raises(InputError, match="share is 1"):
        Split(1.0)
    with pytest.raises(InputError, match="one canary cannot be split"):
        lower_bound([0.1], [True], delta=0.0, rule=Split())
    with pytest.raises(InputError, match="scores must be numbers"):
        lower_bound(["a", "b"], [True, False], delta=0.0)
