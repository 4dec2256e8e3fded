"""The optimal attack on every mode and noise, at false alarm 1e-6; and on the published scheme.

Neighbours are as far apart as the clip lets them be, and the score is the log likelihood ratio, or what
grows with it: no attack on these neighbours does better. Each has a twin with less noise that is caught.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from sourdine.audit import check_mechanism
from sourdine.budget import Budget
from sourdine.encoding import (
    Central,
    Gaussian,
    IidLaplace,
    Inside,
    InstanceEncoder,
    L1Laplace,
    Paper,
    Public,
    RadialLaplace,
    Randomized,
    Secret,
)
from sourdine.encoding.labels import Labels
from sourdine.encoding.mixing import Mixing, PoissonRows
from sourdine.encoding.noises import Noise
from sourdine.encoding.vectors import Shape, joined
from sourdine.events import Event
from sourdine.rng import seeded

pytestmark = pytest.mark.usefixtures("any_epsilon")

FALSE_ALARM, DRAWS, CLASSES = 1e-6, 100_000, ("no", "yes")
WIDE = 5


def along(direction: Any) -> Callable[[Any], Any]:
    """The score of Gaussian noise."""
    return lambda rows: np.asarray(rows) @ direction


def direction(noise: Noise) -> Any:
    """A unit vector that moves an answer as far as it can in the norm that the noise looks at."""
    if isinstance(noise, L1Laplace):
        return np.eye(WIDE)[0]
    return np.ones(WIDE) / math.sqrt(WIDE)


def llr(noise: Noise, first: Any, second: Any, scale: float) -> Callable[[Any], Any]:
    """Of a row with this noise around the second of two centres against the first."""
    match noise:
        case Gaussian():
            return lambda x: np.asarray(x) @ (second - first) / scale**2
        case RadialLaplace():
            return lambda x: (
                (np.linalg.norm(x - first, axis=1) - np.linalg.norm(x - second, axis=1)) / scale
            )
    return lambda x: (np.abs(x - first).sum(1) - np.abs(x - second).sum(1)) / scale


def encoder(budget: Budget, seed: int, **settings: Any) -> InstanceEncoder:
    return InstanceEncoder(
        lambda texts: np.zeros((len(texts), WIDE)),
        budget,
        classes=CLASSES,
        source=seeded(seed),
        **settings,
    )


def many_records(made: InstanceEncoder) -> Callable[[Any, int], Any]:
    """Releases of one record by itself: in local mode, so many equal records at once."""

    def draw(record: tuple[Any, str], count: int) -> Any:
        features, label = record
        found = made.encode_features(np.tile(features, (count, 1)), [label] * count)
        return np.concatenate([found.vectors, found.labels], axis=1)

    return draw


def claimed(budget: Budget, **settings: Any) -> tuple[Event, float, Shape, float]:
    plan = encoder(budget, 0, **settings).plan(10, WIDE)
    return plan.event, plan.scale, plan.shape, plan.flip


NOISES: list[Noise] = [Gaussian(), IidLaplace(), L1Laplace(), RadialLaplace()]
WAYS: list[Labels] = [Public(), Inside(0.7), Randomized(0.4)]


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("labels", WAYS, ids=["public", "inside", "randomized"])
@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.name)
def test_local(noise: Noise, labels: Labels, adjacency: str) -> None:
    """One record replaced by its opposite with another label, or by nothing."""
    budget = Budget(1.5, 1e-5, adjacency=adjacency)
    event, scale, shape, flip = claimed(budget, noise=noise, labels=labels)
    far, public = 3 * direction(noise), isinstance(labels, Public)
    gone = adjacency == "zero-out"
    first = (far, "no")
    second = (0 * far if gone else -far, "no" if public else "gone" if gone else "yes")
    places = np.array(
        [CLASSES.index(label) if label in CLASSES else -1 for _, label in (first, second)]
    )
    a, b = joined(np.array([first[0], second[0]]), places, shape)
    features = llr(noise, a, b, scale)

    def score(rows: Any) -> Any:
        x = np.asarray(rows)
        if isinstance(labels, Inside):
            return features(np.concatenate([x[:, :WIDE], x[:, WIDE:] * shape.weight], axis=1))
        ratio = 0.0
        if isinstance(labels, Randomized):
            chances = [
                np.full(2, 0.5)
                if place < 0
                else np.where(np.arange(2) == place, 1 - flip / 2, flip / 2)
                for place in places
            ]
            ratio = np.log(chances[1] / chances[0])[x[:, WIDE:].argmax(1)]
        return features(x[:, :WIDE]) + ratio

    # A ledger that lets itself be charged again and again: each draw is one release of the check.
    made = encoder(Budget(1e6, 1e-7, adjacency=adjacency), 1, noise=noise, labels=labels)
    plan = encoder(budget, 0, noise=noise, labels=labels).plan(DRAWS, WIDE)
    made.plan = lambda records, dimension: plan  # type: ignore[method-assign]
    draw = many_records(made)
    scores = [score(draw(record, DRAWS)) for record in (first, second)]

    def found(claim: Event) -> Any:
        return check_mechanism(
            lambda record: record,
            (0, 1),
            claim,
            adjacency=adjacency,
            draws=DRAWS,
            false_alarm=FALSE_ALARM,
            score=np.asarray,
            many=lambda which, _: scores[which],
        )

    assert found(event).kept
    lower = Budget(0.5, 1e-5, adjacency=adjacency)
    assert not found(claimed(lower, noise=noise, labels=labels)[0]).kept  # the twin: the same draws


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.name)
def test_central(noise: Noise) -> None:
    """The record of the heaviest column, over all rows together."""
    budget = Budget(6.0, 1e-5, adjacency="replace-one")
    made = encoder(budget, 3, noise=noise, labels=Inside(0.5), mode=Central(2, outputs=40))
    plan = made.plan(4, WIDE)
    assert isinstance(plan.mixing, Mixing)
    mixing, shape = plan.mixing, plan.shape
    matrix = mixing.mix(np.eye(4))  # Lambda itself
    norm = 2 if isinstance(noise, Gaussian) else 1
    worst = int(np.linalg.norm(matrix, ord=norm, axis=0).argmax())
    far = 3 * direction(noise)

    def centre(sign: float, label: int) -> Any:
        rows, labels = np.zeros((4, WIDE)), np.full(4, -1)
        rows[worst], labels[worst] = sign * far, label
        return mixing.mix(joined(rows, labels, shape))

    a, b = centre(1, 0), centre(-1, 1)

    def draws(release: Any, count: int) -> Any:
        found = made._noised(np.tile(release, (count, 1)), None, plan)
        both = np.concatenate([found.vectors, found.labels * shape.weight], axis=1)
        return both.reshape(count, *release.shape)

    def score(outputs: Any) -> Any:
        x = np.asarray(outputs)
        return sum(
            llr(noise, first, second, plan.scale)(x[:, row])
            for row, (first, second) in enumerate(zip(a, b, strict=True))
        )

    scores = [score(draws(release, 20_000)) for release in (a, b)]

    def found(claim: Event) -> Any:
        return check_mechanism(
            lambda x: x,
            (0, 1),
            claim,
            adjacency="replace-one",
            draws=20_000,
            false_alarm=FALSE_ALARM,
            score=np.asarray,
            many=lambda which, _: scores[which],
        )

    assert found(plan.event).kept
    # The twin: sensitivity of one row, as if nobody were in several.
    assert not found(noise.event(plan.scale, shape, "replace-one")).kept


def test_secret_selection() -> None:
    """One row: the record is in it or not, and is nothing or not."""
    budget = Budget(2.0, 1e-5)
    made = encoder(budget, 4, labels=Inside(0.5), mode=Secret(2, outputs=1))
    plan = made.plan(8, WIDE)
    rows, shape = plan.mixing, plan.shape
    assert isinstance(rows, PoissonRows)
    far = direction(Gaussian()) * 3
    record = joined(far[None], np.array([0]), shape)[0]
    there, gone = np.zeros((8, len(record))), np.zeros((8, len(record)))
    there[0] = record

    def draws(records: Any, count: int) -> Any:
        """So many rows at once, by what makes one: coins, then noise."""
        mixed = PoissonRows(8, count, rows.rate).mix(records, made.source)
        found = made._noised(mixed, None, plan)
        return np.concatenate([found.vectors, found.labels * shape.weight], axis=1)

    scores = [along(record)(draws(records, 2 * DRAWS)) for records in (gone, there)]

    def found(claim: Event) -> Any:
        return check_mechanism(
            lambda x: x,
            (0, 1),
            claim,
            draws=2 * DRAWS,
            false_alarm=FALSE_ALARM,
            score=np.asarray,
            many=lambda which, _: scores[which],
        )

    assert found(plan.event).kept
    low = encoder(Budget(1.0, 1e-5), 4, labels=Inside(0.5), mode=Secret(2, outputs=1)).plan(8, WIDE)
    assert not found(low.event).kept  # the twin


# What was published


def published(
    paper: Paper, outputs: int, dimension: int, opposite: bool = True
) -> tuple[Any, Any, Any]:
    """Mixtures of four records of which one is replaced, for one drawing of the coefficients."""
    mixing = paper.draw(4, outputs, seeded(7))
    far = np.ones(dimension) / math.sqrt(dimension)
    rows = np.zeros((4, dimension))
    rows[0] = far
    other = rows.copy()
    other[0] = -far if opposite else 0 * far
    return mixing.mix(rows), mixing.mix(other), mixing


def caught(first: Any, second: Any, many: Any, score: Any, epsilon: float, delta: float) -> bool:
    finding = check_mechanism(
        lambda x: x,
        (first, second),
        (epsilon, delta),
        adjacency="replace-one",
        draws=20_000,
        false_alarm=FALSE_ALARM,
        score=score,
        many=many,
    )
    return not finding.kept


def test_the_published_laplace_is_caught() -> None:
    paper = Paper(1.0, law="laplace", mixed=1)
    *_, mixing = published(paper, 1, 384)
    first = np.ones((1, 384)) / math.sqrt(384)

    def draws(release: Any, count: int) -> Any:
        return IidLaplace().add(np.tile(release, (count, 1)), paper.scale, seeded(8))

    score = llr(IidLaplace(), first[0], -first[0], paper.scale)
    assert caught(first, -first, draws, score, 1.0, 0.0)
    assert paper.guarantee(mixing, 384).features == pytest.approx(math.sqrt(384))


def test_the_published_gaussian_is_caught_over_many_outputs() -> None:
    paper = Paper(1.0)
    a, b, mixing = published(paper, 400, 4)

    def draws(release: Any, count: int) -> Any:
        # What the best attack looks at: the projection of all outputs on what moves.
        noise = Gaussian().add(np.zeros((count, 1)), paper.scale, seeded(9))
        return (release * (b - a)).sum() + np.linalg.norm(b - a) * noise[:, 0]

    assert caught(a, b, draws, np.asarray, 1.0, 1e-5)
    claim = paper.guarantee(mixing, 4)
    assert claim.features > 5
    assert claim.total == math.inf and len(claim.reasons) >= 3


def test_shared_noise_is_caught() -> None:
    paper = Paper(0.1, noise="shared")
    a, b, mixing = published(paper, 6, 8)

    def draws(release: Any, count: int) -> Any:
        noise = Gaussian().add(np.zeros((count, 8)), paper.scale, seeded(10))
        return (release[None] + noise[:, None]).reshape(count, -1)

    def score(rows: Any) -> Any:
        x = np.asarray(rows).reshape(len(rows), 6, 8)
        x = x - x.mean(1, keepdims=True)
        centred = (b - a) - (b - a).mean(0)
        return (x * centred).sum((1, 2))

    assert caught(a, b, draws, score, 0.1, 1e-5)
    assert paper.guarantee(mixing, 8).features == math.inf


def test_clear_labels_are_caught() -> None:
    paper = Paper(1.0)
    rows = np.zeros((4, 3))

    def draws(label: int, count: int) -> Any:
        outputs = [
            paper.encode(
                rows, np.array([label, 0, 0, 0]), CLASSES, outputs=4, source=seeded(seed)
            ).labels
            for seed in range(40)
        ]
        return [float(outputs[place % 40][:, 1].max()) for place in range(count)]

    assert caught(0, 1, draws, np.asarray, 1.0, 1e-5)
