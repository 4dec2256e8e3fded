"""Teachers: models that each see their own part of the records, and nothing of any other part.

    parts = partitions(corpus, 250)
    teachers = fit_heads(features, targets, parts, classes=2)
    votes = teachers.vote(public_features)

A record lies in one part, by a hash of it alone (data/split.py); where users are named, all records of
a person lie in one part. A teacher is a function of its part and of public things: no scaler, no early
stopping, no clipping statistic is shared. So a unit that is added, removed or zeroed out changes one
teacher, and one vote on every question.

Floating point keeps to that: every teacher is fitted by itself, in arrays of its own size, so that its
digits do not depend on how large the parts of others are. Features must be made so too: an encoder that
reads texts in batches moves their last digits with their neighbours in the batch, and with them a vote
that stands on edge (`sourdine pate` reads private texts one at a time).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sourdine import checks
from sourdine.data.corpus import Corpus
from sourdine.data.split import partition
from sourdine.errors import InputError
from sourdine.pate.votes import PRIVATE, Counts, Votes

Parts = Sequence[Sequence[int]]
RIDGE = 0.3
"""Of linear heads on features of norm 1; public, so that no teacher has to look for its own."""

_HUGE = 1e3


class Model(Protocol):
    """A classifier as scikit-learn has them."""

    def fit(self, inputs: Any, labels: Any) -> Any: ...

    def predict(self, inputs: Any) -> Any: ...


def partitions(records: Corpus | NDArray[Any], teachers: int) -> list[list[int]]:
    """The places of each teacher's records: disjoint, by a hash of the record or of its person.

    records: a corpus, or an array with a row for each record, whose bytes are hashed. Parts that are
    dealt by place instead hold under zero-out only: a record that is removed moves all behind it.
    """
    teachers = checks.whole("teachers", teachers, least=2)
    if not isinstance(records, Corpus | np.ndarray):
        raise InputError("partitions are made of a corpus (data.corpus.read_corpus) or of an array.")
    if isinstance(records, np.ndarray):
        texts = [np.ascontiguousarray(row).tobytes().hex() for row in records]
        records = Corpus((texts,), None, None, "an array", None, ("row",))
    return partition(records, teachers, salt="sourdine pate 1")


def check_parts(parts: Parts, records: int, units: Sequence[Hashable] | None = None) -> None:
    """Refuses parts that overlap; units: whose each record is, or the record itself."""
    if len(parts) < 2:
        raise InputError("teachers vote against each other; make at least two parts.")
    places = [place for part in parts for place in part]
    if any(not 0 <= place < records for place in places):
        raise InputError(f"a part names a record outside of 0 to {records - 1}.")
    if len(set(places)) != len(places):
        raise InputError(
            "a record lies in more than one part, so that it would move more than one vote; make "
            "disjoint parts with pate.partitions(corpus, teachers)."
        )
    if units is None:
        return
    if len(units) != records:
        raise InputError(f"there are {records} records, but units of {len(units)}.")
    owner: dict[Hashable, int] = {}
    for teacher, part in enumerate(parts):
        for place in part:
            if owner.setdefault(units[place], teacher) != teacher:
                raise InputError(
                    "the records of one unit lie in more than one part, so that it would move more "
                    "than one vote; make the parts with pate.partitions(corpus, teachers): it keeps "
                    "each person's records and copies of a record together."
                )


@dataclass(frozen=True, eq=False)
class Heads:
    """Linear heads on frozen features: a weight for each teacher, class and feature, and a bias."""

    weights: NDArray[np.float64]
    origin: str = PRIVATE

    def vote(self, questions: Any) -> Votes:
        rows = _features(questions)
        if rows.shape[1] + 1 != self.weights.shape[2]:
            raise InputError("these questions have other features than the teachers were trained on.")
        classes = self.weights.shape[1]
        counts = np.zeros((len(rows), classes), np.int64)
        for own in self.weights:
            chosen = (rows @ own[:, :-1].T + own[:, -1]).argmax(axis=1)
            counts[np.arange(len(rows)), chosen] += 1
        return gathered(counts, self.origin)


@dataclass(frozen=True, eq=False)
class Each:
    """Teachers that are functions from questions to classes."""

    models: Sequence[Callable[[Any], Any]]
    classes: int
    origin: str = PRIVATE

    def vote(self, questions: Any) -> Votes:
        counts = np.zeros((len(questions), self.classes), np.int64)
        for model in self.models:
            chosen = np.asarray(model(questions))
            if chosen.shape != (len(questions),) or not np.isin(chosen, range(self.classes)).all():
                raise InputError(f"a teacher names a class from 0 to {self.classes - 1} per question.")
            counts[np.arange(len(counts)), chosen.astype(np.int64)] += 1
        return gathered(counts, self.origin)


def fit_heads(
    features: Any,
    targets: Sequence[int],
    parts: Parts,
    classes: int,
    *,
    ridge: float = RIDGE,
    units: Sequence[Hashable] | None = None,
    origin: str = PRIVATE,
) -> Heads:
    """Many small teachers at once, on features that are public functions of each record.

    Each is the least-squares fit of its own records to the indicators of their classes, with this
    weight on the squares of its weights: a closed form. A record without a class (-1) is left out.
    """
    rows, aims = _features(features), np.asarray(targets, dtype=np.int64)
    _check_targets(aims, len(rows), classes)
    check_parts(parts, len(rows), units)
    weight = checks.positive("ridge", ridge)
    found = []
    for part in own_share(parts):
        kept = [place for place in part if aims[place] >= 0]
        x = np.concatenate([rows[kept], np.ones((len(kept), 1))], axis=1)
        y = np.eye(classes)[aims[kept]] - 1 / classes
        # In the smaller of both forms: with fewer records than features, that of the records.
        if len(kept) < x.shape[1]:
            inner = np.linalg.solve(x @ x.T + weight * np.eye(len(kept)), y)
            found.append((x.T @ inner).T)
        else:
            found.append(np.linalg.solve(x.T @ x + weight * np.eye(x.shape[1]), x.T @ y).T)
    return Heads(np.array(found), origin)


def fit_each(
    make: Callable[[], Model],
    inputs: Any,
    targets: Sequence[int],
    parts: Parts,
    classes: int,
    *,
    units: Sequence[Hashable] | None = None,
    origin: str = PRIVATE,
    tell: Callable[[int, int], object] = lambda done, total: None,
) -> Each:
    """A teacher for each part: `make()` gives a fresh classifier of scikit-learn, or one like it.

    inputs: an array or a list with a record for each target. A part that knows one class, or none,
    votes for it, or for the first one, always; so does a teacher that cannot be fitted, as an error
    must not depend on a record. A `random_state` that is None becomes the teacher's number: state that
    all teachers draw from would let one record move them all.
    """
    aims = np.asarray(targets, dtype=np.int64)
    _check_targets(aims, len(inputs), classes)
    check_parts(parts, len(inputs), units)
    usable, (rank, count) = _usable(inputs), processes()
    models: list[Callable[[Any], Any]] = []
    made: list[Model] = []
    failed = 0
    for number, part in enumerate(own := list(own_share(parts))):
        kept = [place for place in part if aims[place] >= 0 and usable[place]]
        known = sorted(set(aims[kept].tolist()))
        model = _own_state(make(), rank + number * count)
        if any(model is other for other in made):
            raise InputError("make() gave the same model twice, so that teachers would share it.")
        made.append(model)
        models.append(_always(known[0] if known else 0))
        if len(known) > 1:
            taken = inputs[kept] if isinstance(inputs, np.ndarray) else [inputs[i] for i in kept]
            try:
                model.fit(taken, aims[kept])
                models[-1] = model.predict
            except Exception as error:
                failed += 1
                if failed == len(own):
                    raise InputError(
                        f"no teacher could be fitted; the last one said: {error}"
                    ) from error
        tell(len(models), len(own))
    return Each(models, classes, origin)


def _own_state(model: Model, number: int) -> Model:
    settings: dict[str, Any] = getattr(model, "get_params", dict)()
    if "random_state" in settings and settings["random_state"] is None:
        model.set_params(random_state=number)  # type: ignore[attr-defined]
    return model


def _usable(inputs: Any) -> NDArray[np.bool_]:
    """Which records can be learnt from: those without a number that is none."""
    if isinstance(inputs, np.ndarray) and np.issubdtype(inputs.dtype, np.floating):
        return np.asarray(np.isfinite(inputs.reshape(len(inputs), -1)).all(axis=1))
    return np.ones(len(inputs), dtype=bool)


def own_share(parts: Parts) -> Iterator[Sequence[int]]:
    """The parts that this process fits: all of them, or every n-th under torchrun with n processes."""
    rank, count = processes()
    return iter(parts[rank::count])


def gathered(counts: Counts, origin: str) -> Votes:
    """The votes of the teachers of all processes."""
    if processes()[1] > 1:
        import torch  # noqa: PLC0415 (only where processes share the teachers)

        total = torch.from_numpy(np.array(counts))
        torch.distributed.all_reduce(total)
        counts = total.numpy()
    teachers = int(counts[0].sum()) if len(counts) else 2
    return Votes(counts, teachers, origin)


def processes() -> tuple[int, int]:
    """The number of this process and how many there are."""
    torch = sys.modules.get("torch")  # without it nobody has started several
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _always(label: int) -> Callable[[Any], Counts]:
    return lambda questions: np.full(len(questions), label, np.int64)


def _features(features: Any) -> NDArray[np.float64]:
    rows = np.asarray(features, dtype=np.float64)
    if rows.ndim != 2:
        raise InputError("features are an array with a row for each record.")
    # A record whose features are no numbers, or huge, would spoil its whole teacher; it is nothing.
    with np.errstate(over="ignore", invalid="ignore"):
        usable = np.abs(rows).max(axis=1, initial=0.0, keepdims=True) < _HUGE
    return np.where(usable, rows, 0.0)


def _check_targets(aims: Counts, records: int, classes: int) -> None:
    if len(aims) != records:
        raise InputError(f"there are {records} records, but targets of {len(aims)}.")
    if aims.size and not (aims.min() >= -1 and aims.max() < checks.whole("classes", classes, least=2)):
        raise InputError(
            f"targets are classes from 0 to {classes - 1}, or -1 for a record without one."
        )
