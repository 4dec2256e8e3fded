"""One unit, one teacher, one vote; nothing else moves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.tree import ExtraTreeClassifier

from sourdine.data.corpus import read_corpus
from sourdine.errors import InputError
from sourdine.pate.teachers import check_parts, fit_each, fit_heads, partitions

CLASSES = 3


def records(count: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    targets = generator.integers(0, CLASSES, count)
    centres = np.random.default_rng(99).normal(size=(CLASSES, 8))
    features = centres[targets] + generator.normal(size=(count, 8))
    return features / np.linalg.norm(features, axis=1, keepdims=True), targets


def in_turn(count: int, teachers: int) -> list[list[int]]:
    return [list(range(k, count, teachers)) for k in range(teachers)]


def test_heads_learn_and_outvote_their_mean() -> None:
    features, targets = records()
    heads = fit_heads(features, targets, in_turn(600, 20), CLASSES)
    fresh, truth = records(300, seed=1)
    votes = heads.vote(fresh)
    assert votes.teachers == 20 and votes.origin == "private"
    together = (votes.counts.argmax(axis=1) == truth).mean()
    assert together > 0.8
    assert together >= votes.counts[np.arange(300), truth].mean() / 20


def test_both_forms_of_the_fit_are_the_same() -> None:
    """With fewer records than features the dual is solved; both are the minimum of one function."""
    features, targets = records(40)
    parts = in_turn(40, 8)
    heads = fit_heads(features, targets, parts, CLASSES, ridge=0.5)
    x = np.concatenate([features[parts[0]], np.ones((5, 1))], axis=1)
    y = np.eye(CLASSES)[targets[parts[0]]] - 1 / CLASSES
    expected = np.linalg.solve(x.T @ x + 0.5 * np.eye(9), x.T @ y).T
    np.testing.assert_allclose(heads.weights[0], expected, rtol=1e-10, atol=1e-12)
    many = fit_heads(features, targets, in_turn(40, 2), CLASSES, ridge=0.5)
    x = np.concatenate([features[::2], np.ones((20, 1))], axis=1)
    y = np.eye(CLASSES)[targets[::2]] - 1 / CLASSES
    expected = x.T @ np.linalg.solve(x @ x.T + 0.5 * np.eye(20), y)
    np.testing.assert_allclose(many.weights[0], expected.T, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("what", ["removed", "relabelled", "spoilt"])
def test_one_record_moves_one_teacher_to_the_last_bit(what: str) -> None:
    features, targets = records()
    parts = in_turn(600, 20)
    before = fit_heads(features, targets, parts, CLASSES)
    if what == "removed":
        parts[3] = parts[3][1:]
    elif what == "relabelled":
        targets[3] = (targets[3] + 1) % CLASSES
    else:
        features[3] = np.nan
    after = fit_heads(features, targets, parts, CLASSES)
    moved = [k for k in range(20) if not np.array_equal(before.weights[k], after.weights[k])]
    assert moved == [3]
    fresh, _ = records(200, seed=2)
    apart = np.abs(before.vote(fresh).counts - after.vote(fresh).counts).sum(axis=1)
    assert set(apart) <= {0, 2}


def test_any_classifier_of_scikit_learn() -> None:
    features, targets = records()
    fresh, truth = records(200, seed=1)
    for make in (lambda: LogisticRegression(max_iter=200), GaussianNB):
        teachers = fit_each(make, features, targets, in_turn(600, 10), CLASSES)
        assert (teachers.vote(fresh).counts.argmax(axis=1) == truth).mean() > 0.75


def test_teachers_of_texts() -> None:
    """A text model is a callable: here one that knows the most common class of a word."""

    class Words:
        def fit(self, inputs: Sequence[str], labels: Any) -> None:
            self.known = dict(zip(inputs, labels.tolist(), strict=True))

        def predict(self, inputs: Sequence[str]) -> list[int]:
            return [self.known.get(text, 0) for text in inputs]

    texts = ["good", "bad"] * 10
    teachers = fit_each(Words, texts, [1, 0] * 10, [list(range(10)), list(range(10, 20))], 2)
    assert teachers.vote(["good", "bad", "new"]).counts.tolist() == [[0, 2], [2, 0], [2, 0]]


def test_a_part_without_records_or_with_one_class_votes_all_the_same() -> None:
    features, targets = records(12)
    ones = [int(i) for i in np.flatnonzero(targets == 1)[:2]]
    parts: list[list[int]] = [[], ones, [i for i in range(12) if i not in ones]]
    votes = fit_each(GaussianNB, features, targets, parts[:2], CLASSES).vote(features)
    assert (votes.counts == [1, 1, 0]).all()
    assert fit_heads(features, targets, parts, CLASSES).vote(features).teachers == 3


def test_records_without_a_class_teach_nothing() -> None:
    features, targets = records()
    targets[::2] = -1
    some = fit_heads(features, targets, in_turn(600, 4), CLASSES)
    parts = [[i for i in part if i % 2] for part in in_turn(600, 4)]
    np.testing.assert_array_equal(some.weights, fit_heads(features, targets, parts, CLASSES).weights)


def test_overlapping_parts_are_refused() -> None:
    features, targets = records(40)
    parts = in_turn(40, 4)
    parts[1].append(parts[0][0])
    with pytest.raises(InputError, match=r"more than one part.*pate\.partitions"):
        fit_heads(features, targets, parts, CLASSES)
    with pytest.raises(InputError, match=r"more than one part.*pate\.partitions"):
        fit_each(GaussianNB, features, targets, parts, CLASSES)


def test_a_person_in_two_parts_is_refused() -> None:
    users = ["ann", "bob", "ann", "eve"]
    with pytest.raises(InputError, match=r"records of one unit.*each person's"):
        check_parts([[0, 1], [2, 3]], 4, users)
    check_parts([[0, 2], [1, 3]], 4, users)


@pytest.mark.parametrize("parts", [[[0, 1]], [[0], [4]], [[0], [-1]]])
def test_parts_that_are_none(parts: list[list[int]]) -> None:
    with pytest.raises(InputError):
        check_parts(parts, 4)


def test_parts_by_hash_keep_people_and_copies_together() -> None:
    texts = [f"text {i % 150}" for i in range(300)]
    columns = {"text": texts, "label": ["a", "b"] * 150}
    corpus = read_corpus(columns, text="text", label="label")
    parts = partitions(corpus, 10)
    check_parts(parts, 300, texts)
    assert sorted(i for part in parts for i in part) == list(range(300))
    with_users = read_corpus(
        columns | {"who": [f"user {i % 40}" for i in range(300)]},
        text="text",
        label="label",
        user="who",
    )
    check_parts(partitions(with_users, 10), 300, with_users.users)
    fewer = corpus.take(range(1, 300))
    names = [{texts[i] for i in part} for part in parts]
    again = [{fewer.texts[0][i] for i in part} for part in partitions(fewer, 10)]
    assert names == again  # "text 0" has a copy; nobody else moved


def test_targets_that_are_none() -> None:
    features, targets = records(20)
    for wrong in (targets[:-1], np.where(targets == 2, 7, targets)):
        with pytest.raises(InputError, match="targets"):
            fit_heads(features, wrong, in_turn(20, 2), CLASSES)
    with pytest.raises(InputError, match="other features"):
        fit_heads(features, targets, in_turn(20, 2), CLASSES).vote(features[:, :3])


def test_teachers_do_not_share_a_model_or_a_random_state() -> None:
    features, targets = records(200)
    one = GaussianNB()
    with pytest.raises(InputError, match="the same model twice"):
        fit_each(lambda: one, features, targets, in_turn(200, 4), CLASSES)
    parts = in_turn(200, 8)
    fresh, _ = records(50, seed=4)

    def vote(own: list[list[int]]) -> np.ndarray:
        return fit_each(ExtraTreeClassifier, features, targets, own, CLASSES).vote(fresh).counts

    apart = np.abs(vote(parts) - vote([parts[0][1:], *parts[1:]])).sum(axis=1)
    assert set(apart) <= {0, 2}
    assert np.array_equal(vote(parts), vote(parts))


def test_no_error_depends_on_a_record() -> None:
    features, targets = records(60)
    features[3], features[8] = np.nan, 1e30
    votes = fit_each(GaussianNB, features, targets, in_turn(60, 4), CLASSES).vote(records(9)[0])
    assert votes.teachers == 4
    assert fit_heads(features, targets, in_turn(60, 4), CLASSES).vote(records(9)[0]).teachers == 4

    class Fails(GaussianNB):
        def fit(self, inputs: Any, labels: Any) -> Any:
            if len(inputs) == 14:
                raise ValueError("too few")
            return super().fit(inputs, labels)

    parts = in_turn(60, 4)
    some = fit_each(Fails, np.abs(records(60)[0]), targets, [parts[0][1:], *parts[1:]], CLASSES)
    assert some.vote(records(9)[0]).counts[:, 0].min() >= 1  # that teacher names the first class
    with pytest.raises(InputError, match="no teacher could be fitted"):
        fit_each(Fails, records(60)[0], targets, [p[1:] for p in parts], CLASSES)


def test_rows_of_an_array_are_shared_by_their_hashes() -> None:
    features, _ = records(300)
    parts = partitions(features, 10)
    assert sorted(at for part in parts for at in part) == list(range(300))
    names = [{features[at].tobytes() for at in part} for part in parts]
    fewer = [{features[1:][at].tobytes() for at in part} for part in partitions(features[1:], 10)]
    assert [own - {features[0].tobytes()} for own in names] == fewer


TWO = """
import sys
import numpy as np, torch
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
from sourdine.pate.teachers import fit_heads
x = np.random.default_rng(0).normal(size=(90, 5)); y = np.random.default_rng(1).integers(0, 2, 90)
parts = [list(range(k, 90, 9)) for k in range(9)]
votes = fit_heads(x, y, parts, 2).vote(x[:7])
print(votes.teachers, votes.counts.tolist())
torch.distributed.destroy_process_group()
"""


def test_two_processes_share_the_teachers(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TWO, str(tmp_path / "meet"), str(rank)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate(timeout=120)[0].strip() for process in started]
    x, y = np.random.default_rng(0).normal(size=(90, 5)), np.random.default_rng(1).integers(0, 2, 90)
    alone = fit_heads(x, y, in_turn(90, 9), 2).vote(x[:7])
    assert said == [f"9 {alone.counts.tolist()}"] * 2
