"""The blind baseline: silent on fair splits at its stated rate, loud where members are of another kind."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from sourdine.attacks.blind import Blind, blind
from sourdine.attacks.roc import wilson
from sourdine.attacks.target import Record
from sourdine.errors import InputError

pytest.importorskip("sklearn")

FALSE_ALARM = 1e-6
TRIALS = 100
WORDS = [f"word{at}" for at in range(300)]


def texts(count: int, rng: np.random.Generator, first: int = 0, size: int = 12) -> list[Record]:
    found = []
    for _ in range(count):
        picked = rng.integers(first, len(WORDS), size)
        found.append(Record((" ".join(WORDS[at] for at in picked),), str(rng.integers(2))))
    return found


def alarms(pair: Callable[[np.random.Generator], tuple[list[Record], list[Record]]]) -> int:
    return sum(
        blind(*pair(np.random.default_rng(trial)), seed=trial).differs for trial in range(TRIALS)
    )


def test_a_fair_split_is_silent_at_the_stated_rate() -> None:
    """An alarm rings for 2.5 of 100 fair splits at most; more than `most` have probability 1e-6."""
    most = stats.binom.isf(FALSE_ALARM, TRIALS, 0.025)
    assert alarms(lambda rng: (texts(40, rng), texts(60, rng))) <= most
    assert alarms(lambda rng: (texts(40, rng, first=60), texts(60, rng))) > most


@pytest.mark.parametrize(
    "other",
    [
        lambda rng: texts(150, rng, first=60),
        lambda rng: texts(150, rng, size=30),
        lambda rng: [Record(record.texts, "2") for record in texts(150, rng)],
    ],
    ids=["other words", "longer", "another label"],
)
def test_another_kind_is_seen_by(other: Callable[[np.random.Generator], list[Record]]) -> None:
    rng = np.random.default_rng(1)
    found = blind(texts(150, rng), other(rng))
    assert found.differs and found.low > 0.5 and "differ in kind" in str(found)
    assert found.to_json()["differs"] is True


def test_a_fair_split_says_so() -> None:
    rng = np.random.default_rng(2)
    found = blind(texts(150, rng), texts(150, rng))
    assert found.low < 0.5 < found.high and found.low < found.auc < found.high
    assert "no difference in kind" in str(found)
    again = blind(texts(150, np.random.default_rng(2)), texts(150, np.random.default_rng(3)))
    assert 0 <= again.low <= again.high <= 1


def test_the_interval_is_the_mean_of_two_halves_at_half_the_level() -> None:
    rng = np.random.default_rng(5)
    found = blind(texts(150, rng), texts(200, rng), confidence=0.9)
    low, high = wilson(found.auc, 75, 0.05)
    assert found.high - found.low == pytest.approx(high - low, rel=0.02)


def test_pairs_empty_texts_and_missing_labels_are_read() -> None:
    pairs = [Record(("a text", "and another"), None)] * 15
    assert not blind(pairs, pairs).differs
    empty = [Record(("",), None)] * 15
    assert not blind(empty, empty).differs


def test_the_same_seed_gives_the_same_answer() -> None:
    rng = np.random.default_rng(4)
    members, others = texts(50, rng), texts(50, rng)
    assert blind(members, others, seed=1) == blind(members, others, seed=1)
    assert blind(members, others, seed=1) != blind(members, others, seed=2)


def test_too_few_are_refused() -> None:
    with pytest.raises(InputError, match="9 members and 20 others are too few"):
        blind([Record(("a",))] * 9, [Record(("b",))] * 20)
    assert Blind(0.5, 0.5, 0.6, 0.95).differs is False
