"""Persons whose text was used are found by all they wrote; persons whose was not give chance."""

import math

import numpy as np
import pytest

from sourdine.attacks.adapters import Function
from sourdine.attacks.target import Record, TokenLogs
from sourdine.attacks.users import (
    Auditor,
    attack_users,
    by_user,
    histogram,
    histograms,
    train_auditor,
)
from sourdine.errors import InputError

pytest.importorskip("sklearn")

WORDS = 400
PEOPLE = 60


class Bigrams:
    """A language model of words: mixes what followed a word in training with how common each word is."""

    def __init__(self, records: list[Record]) -> None:
        self.pairs = np.full((WORDS, WORDS), 0.02)
        for record in records:
            at = _words(record.texts[0])
            np.add.at(self.pairs, (at[:-1], at[1:]), 1.0)
        self.pairs /= self.pairs.sum(axis=1, keepdims=True)

    def token_logs(self, texts: list[str]) -> list[TokenLogs]:
        found = []
        for text in texts:
            at = _words(text)
            p = self.pairs[at[:-1]]
            true = p[np.arange(len(p)), at[1:]]
            logs = np.log(p)
            mean = (p * logs).sum(axis=1)
            spread = np.sqrt((p * (logs - mean[:, None]) ** 2).sum(axis=1))
            found.append(TokenLogs(np.log(true), mean, spread, (p > true[:, None]).sum(axis=1)))
        return found


def _words(text: str) -> np.ndarray:
    return np.array([int(word) for word in text.split()], dtype=np.int64)


def written(people: int, seed: int) -> list[Record]:
    """Everybody draws words from one distribution, with habits of their own: some words follow others."""
    rng = np.random.default_rng(seed)
    common = 1 / np.arange(1, WORDS + 1) ** 0.8
    common /= common.sum()
    found = []
    for person in range(people):
        habit = rng.permutation(WORDS)
        for _ in range(4):
            words = [int(rng.choice(WORDS, p=common))]
            for _ in range(20):
                follow = rng.random() < 0.3
                words.append(int(habit[words[-1]] if follow else rng.choice(WORDS, p=common)))
            found.append(Record((" ".join(map(str, words)),), user=f"{seed}-{person}"))
    return found


@pytest.fixture(scope="module")
def members() -> list[Record]:
    return written(PEOPLE, 1)


@pytest.fixture(scope="module")
def others() -> list[Record]:
    return written(PEOPLE, 2)


@pytest.fixture(scope="module")
def auditor() -> Auditor:
    """Learnt on other persons than those under attack."""
    pool = written(PEOPLE, 3) + written(PEOPLE, 4)
    return train_auditor(lambda records, _: Bigrams(records), pool, 4, highest=WORDS)


def test_persons_whose_text_was_used_are_found(
    members: list[Record], others: list[Record], auditor: Auditor
) -> None:
    """Chance passes an AUC of 0.76 with probability below 1e-6: its deviation is 0.053."""
    found = attack_users(
        Bigrams(members), members, others, reference=Bigrams(written(PEOPLE, 5)), auditor=auditor
    )
    assert set(found.attacks) == {"mean loss", "reference", "ranks"}
    assert all(roc.auc > 0.76 for roc in found.attacks.values())
    assert found.unit == "user" and found.verdict == "told apart"
    assert found.to_json()["members"] == PEOPLE


def test_persons_whose_text_was_not_used_give_chance(
    members: list[Record], others: list[Record], auditor: Auditor
) -> None:
    found = attack_users(Bigrams(written(PEOPLE, 6)), members, others, auditor=auditor)
    assert all(0.24 < roc.auc < 0.76 for roc in found.attacks.values())
    assert found.verdict == "not told apart"


def test_a_reference_takes_off_what_it_knows_itself(
    members: list[Record], others: list[Record]
) -> None:
    target = Bigrams(members)
    found = attack_users(target, members, others, reference=target).attacks
    assert found["reference"].auc == 0.5 and not found["reference"].members.any()


def test_a_histogram_by_hand() -> None:
    found = histogram(np.array([0, 49, 50, 4999, 7000]))
    assert found[0] == pytest.approx(2 / 3) and found[1] == pytest.approx(1 / 3)
    assert found[-1] == pytest.approx(2 / 3) and np.linalg.norm(found) == pytest.approx(1)
    assert not histogram(np.array([], dtype=np.int64)).any()


def test_each_person_has_one_histogram(members: list[Record]) -> None:
    people = by_user(members)
    rows = histograms(Bigrams(members), people, WORDS)
    assert rows.shape == (PEOPLE, 100)
    alone = histograms(Bigrams(members), {"one": people["1-7"]}, WORDS)
    assert rows[7] == pytest.approx(alone[0])


def test_a_person_without_tokens_scores_lowest(members: list[Record], others: list[Record]) -> None:
    silent = [Record(("5",), user="silent")]
    found = attack_users(
        Bigrams(members), members, [*others, *silent], reference=Bigrams(others)
    ).attacks
    assert all(roc.others[0] == -math.inf and np.isfinite(roc.others[1]) for roc in found.values())


def test_a_classifier_is_asked_for_its_labels() -> None:
    def answer(records: list[Record]) -> np.ndarray:
        p = np.array([0.9 if "in" in str(record.user) else 0.6 for record in records])
        return np.column_stack([p, 1 - p])

    records = [
        [Record((f"text {at % 10}",), "yes", f"{side}{at // 2}") for at in range(40)]
        for side in ("in", "out")
    ]
    target = Function(answer, ("yes", "no"))
    found = attack_users(target, *records)
    assert found.attacks["mean loss"].auc == 1.0 and len(found.attacks["mean loss"].members) == 20
    with pytest.raises(InputError, match="no language model"):
        attack_users(target, *records, auditor=Auditor(None))


def test_what_is_refused(members: list[Record], others: list[Record]) -> None:
    with pytest.raises(InputError, match="60 persons stand on both sides"):
        attack_users(Bigrams(members), members, members)
    with pytest.raises(InputError, match="names no person"):
        by_user([Record(("a",))])
    with pytest.raises(InputError, match="neither classifies nor predicts"):
        attack_users(object(), members, others)
    with pytest.raises(InputError, match="the reference does not answer"):
        attack_users(Bigrams(members), members, others, reference=Function(lambda _: [], ("a", "b")))
