"""Attacks end to end: an overfitted classifier gives its members away, one that never saw them does not."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from sourdine.attacks import scores
from sourdine.attacks.adapters import Function, Scikit
from sourdine.attacks.blind import Blind
from sourdine.attacks.calibrated import calibrated_tokens
from sourdine.attacks.membership import Membership, attack_membership
from sourdine.attacks.roc import Roc
from sourdine.attacks.shadows import Shadows, from_vectors, halves, train_shadows
from sourdine.attacks.target import Record, TokenLogs
from sourdine.errors import InputError

linear = pytest.importorskip("sklearn.linear_model")
from sklearn.feature_extraction.text import CountVectorizer  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402

FALSE_ALARM = 1e-6
SIZE = 1000
NAMES = np.array([f"w{at}" for at in range(4000)])
WEIGHTS = 1 / np.arange(1, len(NAMES) + 1) ** 0.7


def drawn(count: int, seed: int) -> list[Record]:
    """Texts of few and many words, common and rare, with a label that a sign tells 85 times of 100."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        sign = int(rng.integers(2))
        words = rng.choice(NAMES, int(rng.integers(4, 40)), p=WEIGHTS / WEIGHTS.sum())
        label = ("no", "yes")[sign ^ int(rng.random() < 0.15)]
        found.append(Record((" ".join([*words, ("dull", "fine")[sign]]),), label))
    return found


def train(records: list[Record], seed: int = 0) -> Scikit:
    model = make_pipeline(CountVectorizer(), linear.LogisticRegression(C=10.0, max_iter=2000, tol=1e-3))
    return Scikit(model.fit([r.texts[0] for r in records], [r.label for r in records]))


@pytest.fixture(scope="module")
def pool() -> list[Record]:
    return drawn(2 * SIZE, 1)


@pytest.fixture(scope="module")
def shadows(pool: list[Record]) -> Shadows:
    return train_shadows(train, pool, 16, seed=5)


@pytest.fixture(scope="module")
def found(pool: list[Record], shadows: Shadows) -> Membership:
    target = train(pool[:SIZE])
    reference = train(drawn(SIZE, 2))
    return attack_membership(target, pool[:SIZE], pool[SIZE:], reference=reference, shadows=shadows)


def test_an_overfitted_classifier_gives_its_members_away(found: Membership) -> None:
    """Chance passes 0.58 with probability below 1e-6: the deviation of the AUC is 0.013."""
    assert set(found.attacks) == {
        *("loss", "reference", "LiRA online", "LiRA offline"),
        *("RMIA online", "RMIA offline", "shadow classifier"),
    }
    assert stats.norm.sf((0.58 - 0.5) / math.sqrt((2 * SIZE + 1) / 12) * SIZE) < FALSE_ALARM
    assert all(roc.auc > 0.58 for roc in found.attacks.values())
    assert found.verdict == "told apart" and set(found.told) == set(found.attacks)
    assert not found.blind.differs


def test_lira_with_sixteen_shadows_beats_the_loss_at_one_percent(found: Membership) -> None:
    """The two intervals, each false with probability 1e-6 at most, lie apart."""
    loss, lira = (
        Roc(found.attacks[name].members, found.attacks[name].others, 1 - FALSE_ALARM).at(0.01)
        for name in ("loss", "LiRA online")
    )
    assert loss.high is not None and lira.low is not None and loss.high < lira.low
    assert found.attacks["LiRA offline"].at(0.01).tpr > loss.tpr
    assert found.attacks["RMIA offline"].at(0.01).tpr > loss.tpr
    assert found.best in {"LiRA online", "RMIA online", "RMIA offline"}


def test_a_target_that_never_saw_them_gives_chance(pool: list[Record], shadows: Shadows) -> None:
    """Chance leaves 0.43 to 0.57 with probability below 1e-6 for one attack, 6e-6 for all six."""
    target = train(drawn(SIZE, 3))
    found = attack_membership(target, pool[:SIZE], pool[SIZE:], shadows=shadows)
    assert all(0.43 < roc.auc < 0.57 for roc in found.attacks.values())
    assert found.verdict == "not told apart" and not found.told
    assert "no proof that none can" in found.words()[0]


def test_false_verdicts_are_as_rare_as_stated() -> None:
    """Four attacks on scores that know nothing: `told` at 2.5%; twins with a shift are caught."""
    rng = np.random.default_rng(6)
    silent = Blind(0.5, 0.4, 0.6, 0.95)

    def told(shift: float) -> bool:
        one = {str(at): Roc(rng.normal(shift, 1, 120), rng.normal(0, 1, 120)) for at in range(4)}
        return Membership(one, silent).verdict == "told apart"

    most = stats.binom.isf(FALSE_ALARM, 400, 0.025)
    assert sum(told(0.0) for _ in range(400)) <= most
    assert sum(told(0.5) for _ in range(400)) > most


def test_members_of_another_kind_are_no_finding(pool: list[Record]) -> None:
    other = [Record((f"yesterday {record.texts[0]}",), record.label) for record in pool[SIZE:]]
    found = attack_membership(train(pool[:SIZE]), pool[:SIZE], other)
    assert found.verdict == "differ in kind"
    assert found.words()[0].startswith("Nothing can be said about the target")
    assert found.to_json()["blind"]["differs"] is True


def test_the_result_holds_no_record_and_says_whom_it_is_for(
    found: Membership, pool: list[Record]
) -> None:
    written = json.dumps(found.to_json())
    assert json.loads(written)["attacks"]["loss"]["rates"][2]["tpr"] is None
    assert pool[0].texts[0] not in written + str(found) + repr(found)
    assert "no privacy was charged" in str(found) and "16 shadow models" in str(found)
    assert found.to_json()["members"] == found.to_json()["others"] == SIZE


def test_texts_on_both_sides_are_counted(pool: list[Record]) -> None:
    target = train(pool[:200])
    found = attack_membership(target, pool[:200], [*pool[200:380], *pool[:20]])
    assert any(note.startswith("20 of the others hold the text of a member") for note in found.notes)


class Unigrams:
    """A language model of words: as likely as they were in training, over a floor."""

    def __init__(self, records: list[Record]) -> None:
        words = [word for record in records for word in record.texts[0].split()]
        names, counts = np.unique(words, return_counts=True)
        total = len(words) + 0.5 * len(NAMES)
        self.known = dict(zip(names, np.log((counts + 0.5) / total), strict=True))
        self.floor = math.log(0.5 / total)

    def token_logs(self, texts: list[str]) -> list[TokenLogs]:
        found = []
        for text in texts:
            logs = np.array([self.known.get(word, self.floor) for word in text.split()])
            found.append(TokenLogs(logs, logs - 1, np.ones_like(logs), np.zeros(len(logs), np.int64)))
        return found


def test_a_language_model(pool: list[Record]) -> None:
    members, others = pool[:300], pool[300:600]
    shadows = train_shadows(lambda records, _: Unigrams(records), pool[:600], 8, seed=1)
    found = attack_membership(
        Unigrams(members), members, others, reference=Unigrams(pool[600:]), shadows=shadows
    )
    assert list(found.attacks) == [
        *("loss", "zlib", "Min-20%", "Min-20%++", "reference"),
        *("LiRA online", "LiRA offline", "RMIA online", "RMIA offline"),
    ]
    assert found.attacks["reference"].auc > 0.9 and found.attacks["LiRA online"].auc > 0.9
    assert found.attacks["Min-20%"].auc > 0.6


def logs(*values: float) -> TokenLogs:
    log = np.array(values)
    return TokenLogs(log, np.full_like(log, -2.0), np.full_like(log, 0.5), np.zeros(len(log), np.int64))


def test_scores_of_tokens_by_hand() -> None:
    one = logs(-1.0, -4.0, -3.0, -2.0, -0.5, -0.5, -0.5, -0.5, -0.5, -0.5)
    assert scores.token_loss(one) == pytest.approx(-1.3)
    assert scores.least_likely(one) == pytest.approx(-3.5)
    assert scores.least_likely_standardised(one) == pytest.approx((-4 - 2) / 2)
    assert scores.least_likely(logs(-1.0, -2.0)) == -2.0  # one token at least
    import zlib

    assert scores.compressed(one, "text") == pytest.approx(-13 / (8 * len(zlib.compress(b"text"))))
    assert calibrated_tokens(one, logs(-20.0), "thirteen byte") == pytest.approx(7 / 13)
    for rule in (scores.token_loss, scores.least_likely, scores.least_likely_standardised):
        assert rule(logs()) == -math.inf
    assert scores.compressed(logs(), "") == calibrated_tokens(one, logs(), "") == -math.inf


def test_scores_of_probabilities_by_hand() -> None:
    p, at = np.array([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]), np.array([1, 0, 2])
    assert scores.negative_loss(p, at)[0] == pytest.approx(math.log(0.2))
    assert scores.logit(p, at)[0] == pytest.approx(math.log(0.2 / 0.8))
    assert np.isfinite(scores.logit(p, at)).all()
    close = np.array([[1.0, 1e-20]])  # 1 - p would be zero
    assert scores.logit(close, np.array([0]))[0] == pytest.approx(20 * math.log(10))


def uniform(labels: tuple[str, ...]) -> Function:
    return Function(lambda records: np.full((len(records), len(labels)), 1 / len(labels)), labels)


def test_what_cannot_be_attacked(pool: list[Record]) -> None:
    members, others = pool[:20], pool[20:40]
    for target, named, message in (
        (object(), {}, "neither classifies nor predicts"),
        (uniform(("1", "0")), {}, "40 of 40 records have no label that the target knows"),
        (uniform(("yes", "no")), {"reference": Unigrams(others)}, "the reference does not answer"),
        (Unigrams(members), {"reference": uniform(("yes", "no"))}, "the reference does not answer"),
        (uniform(("yes", "no")), {"confidence": 1.0}, "confidence is 1.0"),
    ):
        with pytest.raises(InputError, match=message):
            attack_membership(target, members, others, **named)
    small = Shadows(halves(39, 2, 0), np.zeros((2, 39)), np.zeros((2, 39)))
    with pytest.raises(InputError, match="the shadows know 39 records, but 40"):
        attack_membership(uniform(("yes", "no")), members, others, shadows=small)
    inside, at = halves(40, 2, 0), np.array([record.label == "yes" for record in pool[:40]])
    turned = from_vectors(inside, np.full((2, 40, 2), 0.5), at.astype(np.int64))
    with pytest.raises(InputError, match="in another order than the target"):
        attack_membership(uniform(("yes", "no")), members, others, shadows=turned)
    with pytest.raises(InputError, match="records are pairs"):
        attack_membership(Unigrams(members), [Record(("a", "b"))] * 20, others)
    with pytest.raises(InputError, match="train must make a target"):
        train_shadows(lambda *_: object(), pool[:20], 2)
    constant = attack_membership(uniform(("yes", "no")), members, others)
    assert constant.attacks["loss"].auc == 0.5 and constant.verdict == "not told apart"
