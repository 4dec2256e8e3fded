"""Was this person's text used? An audit of a text model by all that a person wrote.

Song and Shmatikov 2019: a model that learnt from a person ranks the words that this person really wrote
higher, even where it is well generalised on average. The ranks of the true tokens of all of a person's
texts make a histogram (ranks above 5,000 count as 5,000; 100 bins; of length 1), and a linear
support vector machine, trained on persons inside and outside of shadow models, scores it.

Without shadows: the mean log probability of a person's tokens, over that of a reference model where
there is one. A person's many small traces add up in it, each of which alone would show nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sourdine import checks
from sourdine.attacks.blind import blind
from sourdine.attacks.calibrated import check_reference
from sourdine.attacks.membership import Membership
from sourdine.attacks.roc import Roc
from sourdine.attacks.scores import logit, places, text_of
from sourdine.attacks.shadows import halves
from sourdine.attacks.target import Classifies, Floats, Predicts, Record, Target
from sourdine.errors import InputError

HIGHEST = 5000
BINS = 100


@dataclass(frozen=True, eq=False)
class Auditor:
    """Scores persons by the ranks of their words; made by `train_auditor`."""

    model: Any
    highest: int = HIGHEST

    def scores(self, target: Predicts, people: Mapping[str, Sequence[Record]]) -> Floats:
        """The distance of each person from the border between outside and inside."""
        found: Floats = self.model.decision_function(histograms(target, people, self.highest))
        return found


def by_user(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of each person, in the order in which persons first appear."""
    people: dict[str, list[Record]] = {}
    for record in records:
        if record.user is None:
            raise InputError("a record names no person; say whose each record is (--user).")
        people.setdefault(record.user, []).append(record)
    return people


def histogram(
    ranks: np.ndarray[Any, np.dtype[np.int64]], highest: int = HIGHEST, bins: int = BINS
) -> Floats:
    """How often ranks fall into each bin of 0 to `highest`, scaled to length 1; zeros without ranks."""
    counts, _ = np.histogram(np.minimum(ranks, highest - 1), bins=bins, range=(0, highest))
    found: Floats = counts / max(float(np.linalg.norm(counts)), 1e-12)
    return found


def histograms(
    target: Predicts, people: Mapping[str, Sequence[Record]], highest: int = HIGHEST
) -> Floats:
    """One histogram of ranks for each person."""
    texts = [[text_of(record) for record in records] for records in people.values()]
    logs = iter(target.token_logs([text for own in texts for text in own]))
    rows = [np.concatenate([next(logs).rank for _ in own]) for own in texts]
    return np.stack([histogram(row, highest) for row in rows])


def train_auditor(
    train: Callable[[list[Record], int], Predicts],
    pool: Sequence[Record],
    shadows: int = 10,
    *,
    seed: int = 0,
    highest: int = HIGHEST,
) -> Auditor:
    """Learn from shadow models, each trained by `train(records, seed)` on half of the pool's persons.

    The pool may hold the persons under attack: who is in which half is drawn without the target.
    """
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415
    from sklearn.svm import LinearSVC  # noqa: PLC0415

    people = by_user(pool)
    inside = halves(len(people), shadows, seed)
    rows = []
    for number, used in enumerate(inside):
        chosen = [own for own, taken in zip(people.values(), used, strict=True) if taken]
        model = train([record for own in chosen for record in own], number)
        rows.append(histograms(model, people, highest))
    classifier = make_pipeline(StandardScaler(), LinearSVC(C=0.01, dual=False, max_iter=10_000))
    return Auditor(classifier.fit(np.concatenate(rows), inside.reshape(-1)), highest)


def attack_users(
    target: Target,
    members: Sequence[Record],
    others: Sequence[Record],
    *,
    reference: Target | None = None,
    auditor: Auditor | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Membership:
    """Tell persons whose records were used from persons whose were not.

    All of a person's records stand on one side. The result counts persons, and its blind baseline looks
    at all that a person wrote as one record. A classifier is asked by the mean logit of the true label,
    over that of the reference where there is one.
    """
    checks.probability("confidence", confidence)
    sides = by_user(members), by_user(others)
    both = len(sides[0].keys() & sides[1].keys())
    if both:
        raise InputError(f"{both} persons stand on both sides; a person is a member or is not.")
    baseline = blind(*map(_whole, sides), confidence=confidence, seed=seed)
    if reference is not None:
        check_reference(target, reference)
    people = sides[0] | sides[1]
    total, count = _sums(target, people)
    found = {"mean loss": _mean(total, count)}
    if reference is not None:
        found["reference"] = _mean(total - _sums(reference, people)[0], count)
    if auditor is not None:
        if not isinstance(target, Predicts):
            raise InputError("an auditor looks at ranks of tokens; the target is no language model.")
        found["ranks"] = auditor.scores(target, people)
    cut = len(sides[0])
    rocs = {name: Roc(values[:cut], values[cut:], confidence) for name, values in found.items()}
    return Membership(rocs, baseline, unit="user")


def _sums(target: Target, people: Mapping[str, Sequence[Record]]) -> tuple[Floats, Floats]:
    """For each person the sum of log probabilities and how many tokens; of logits, how many records."""
    records = [record for own in people.values() for record in own]
    if isinstance(target, Classifies):
        sums = logit(target.probabilities(records), places(target, records))
        counts = np.ones(len(records))
    elif isinstance(target, Predicts):
        logs = target.token_logs([text_of(record) for record in records])
        sums = np.array([one.log.sum() for one in logs])
        counts = np.array([float(len(one.log)) for one in logs])
    else:
        raise InputError("this target neither classifies nor predicts tokens; an audit needs one.")
    starts = np.cumsum([0, *(len(own) for own in people.values())][:-1])
    return np.add.reduceat(sums, starts), np.add.reduceat(counts, starts)


def _mean(total: Floats, count: Floats) -> Floats:
    """Minus infinity for a person of no token: nothing speaks for membership."""
    found: Floats = np.where(count > 0, total / np.maximum(count, 1), -np.inf)
    return found


def _whole(people: Mapping[str, Sequence[Record]]) -> list[Record]:
    """All that a person wrote as one record, for the blind baseline."""
    return [Record(tuple(text for record in own for text in record.texts)) for own in people.values()]
