"""The two other places for noise, on the same features and the same held out records as training.

The head of text/output.py gets its noise once it is trained, the records of text/inputs.py before
anybody trains on them. Both read frozen features, computed once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from sourdine.accounting import least_noise
from sourdine.budget import Budget
from sourdine.data.corpus import Corpus
from sourdine.events import Event, GaussianEvent
from sourdine.rng import Source
from sourdine.text import inputs, output
from sourdine.text.examples import Collate, cached_features
from sourdine.text.output import FEATURES, Weights
from sourdine.text.prepared import Prepared
from sourdine.text.releases import Confusion
from sourdine.text.tasks import Classify

_NO_FLIP = 1e-12
_split = functools.lru_cache(inputs.split)  # seconds, and the same for every repetition


@dataclass(frozen=True, eq=False)
class Rows:
    """The features and classes of one part of a corpus, whose they are, and the records themselves."""

    features: Tensor
    classes: list[int]
    users: list[str] | None
    corpus: Corpus | None = None


class Place(Protocol):
    """Where the noise goes. `most` rows of a unit count; `records` of them are public."""

    name: ClassVar[str]

    def event(self, budget: Budget, classes: int, width: int, most: int) -> Event:
        """What `fit` at this budget costs a unit, whatever the data."""

    def fit(
        self, rows: Rows, classes: int, records: int, most: int, budget: Budget, source: Source
    ) -> Weights: ...

    def fit_exactly(self, rows: Rows, classes: int, records: int) -> Weights:
        """The same without noise: not private."""


class Output:
    """Noise on the weights of a head that was trained exactly."""

    name: ClassVar[str] = "output"

    def event(self, budget: Budget, classes: int, width: int, most: int) -> Event:
        return GaussianEvent(least_noise(budget, GaussianEvent))

    def fit(
        self, rows: Rows, classes: int, records: int, most: int, budget: Budget, source: Source
    ) -> Weights:
        noise = least_noise(budget, GaussianEvent)
        return output.fit_output(
            rows.features,
            rows.classes,
            classes,
            regularisation=output.ridge(records, noise, classes, most),
            noise_multiplier=noise,
            records=records,
            source=source,
            users=rows.users,
            most_per_user=most,
        )

    def fit_exactly(self, rows: Rows, classes: int, records: int) -> Weights:
        found, finite = output.unit_rows(rows.features)
        targets = torch.tensor(rows.classes)
        kept = finite & (targets >= 0)
        x = torch.cat([FEATURES * found, output.BIAS * found.new_ones((len(found), 1))], dim=1)[kept]
        weights = output.minimiser(x, targets[kept], classes, 1 / records, records)
        return Weights(FEATURES * weights[:, :-1], output.BIAS * weights[:, -1])


class Input:
    """Noise on the features and labels of each record, before anything is trained."""

    name: ClassVar[str] = "input"

    def event(self, budget: Budget, classes: int, width: int, most: int) -> Event:
        return _split(budget, classes, width, most).event

    def fit(
        self, rows: Rows, classes: int, records: int, most: int, budget: Budget, source: Source
    ) -> Weights:
        shared = _split(budget, classes, rows.features.shape[1], most)
        features, labels = inputs.perturb(
            rows.features,
            rows.classes,
            classes,
            noise_multiplier=shared.noise_multiplier,
            flip=shared.flip,
            source=source,
            users=rows.users,
            most_per_user=most,
        )
        return inputs.train_on_noisy(
            features,
            labels,
            classes,
            noise_multiplier=shared.noise_multiplier,
            flip=shared.flip,
        )

    def fit_exactly(self, rows: Rows, classes: int, records: int) -> Weights:
        found, finite = output.unit_rows(rows.features)
        targets = torch.tensor(rows.classes)
        kept = finite & (targets >= 0)
        return inputs.train_on_noisy(
            found[kept], targets[kept], classes, noise_multiplier=0.0, flip=_NO_FLIP
        )


PLACES: dict[str, Place] = {place.name: place for place in (Output(), Input())}


def read_rows(
    ready: Prepared, goal: Classify, parts: Sequence[Corpus], device: torch.device, alone: bool = False
) -> list[Rows]:
    """The frozen features of each part, from the cache where they are known; each read alone or not."""
    network = goal.model(ready.encoder, ready.pooling, 1.0).to(device).eval()
    collate = Collate(ready.tokenizer.pad_token_id)
    found = []
    for part in parts:
        labels = part.labels or [""] * len(part)
        examples = goal.examples(ready.tokenizer, part.texts, labels, ready.plan.max_length)
        features = cached_features(network, examples, collate, alone=alone)
        found.append(Rows(features, goal.classes(labels), part.users, part))
    return found


def metrics(
    weights: Weights,
    test: Rows,
    goal: Classify,
    noise: float | None,
    most: int,
    source: Source,
    amount: str,
) -> dict[str, Any]:
    """What held out records say, as the Trainer tells it; noise None: exactly, which is not private.

    amount: about how many they are, in words: how many exactly tells where a unit lies.
    Guarantee: GaussianEvent(noise) for a unit that is held out.
    """
    answers = weights.scores(test.features).argmax(1).tolist()
    if noise is None:
        matrix, deviation = Confusion(len(goal.labels), 1.0).count(test.classes, answers), 0.0
        tested: int | None = len(answers)
        how = "NOT PRIVATE: exact, on records that the owner declares may be used so"
    else:
        counts = Confusion(len(goal.labels), noise, most)
        matrix, deviation = counts.release(test.classes, answers, source, test.users), counts.deviation
        tested = None
        how = f"Gaussian noise of deviation {deviation:.3g} on the confusion matrix of {amount} held "
        how += "out, charged"
    found = goal.metrics(matrix, deviation, tested)
    return {**found, "records": tested or amount, "how": how, "reference": None}
