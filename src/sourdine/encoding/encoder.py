"""Differentially private instance encoding: noisy vectors of private records, to train on anywhere.

    encoder = InstanceEncoder(features, Budget(8, 1e-5, adjacency="replace-one"), classes=("0", "1"),
                              map=pca(public, 32))
    encodings = encoder.encode(texts, labels)

Each record becomes a vector of bounded size (encoding/vectors.py) by functions that are public: an
encoder that was never trained on the private text, a map from public text, a clip. Noise is added once,
and everything after it (mixing, masks, any number of epochs and models) is post-processing.

Modes:
- `Local`: each record gets its own noise. Nobody has to be trusted to mix. The default.
- `Central`: T rows that mix k records each, and noise on the mixtures. The owner is trusted; the noise
  is paid for by the largest column of the mixing matrix (encoding/noises.py). `stream` makes such rows
  one by one, as they are asked for, under a cap on every column.
- `Secret`: rows of records drawn by secret coins (encoding/mixing.py), under zero-out only, with
  Gaussian noise and the label inside.

Guarantee: the encodings are (epsilon, delta)-DP for one record under the budget's adjacency; how many
records there are is public. The whole cost is charged before anything is drawn, and the plan does not
depend on any record. An encoder that was trained on the private text is a release of its own: give its
event as `tuned`, which is charged along, or do not use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sourdine import checks
from sourdine.accounting import least_noise
from sourdine.budget import Budget
from sourdine.encoding.encodings import Encodings
from sourdine.encoding.labels import (
    Classes,
    Inside,
    Labels,
    Public,
    Randomized,
    places,
    unbiased,
)
from sourdine.encoding.maps import Map
from sourdine.encoding.mixing import Mixing, PoissonRows, Stream, draw_mixing
from sourdine.encoding.noises import ONCE, Columns, Gaussian, Noise
from sourdine.encoding.vectors import Floats, Shape, checked, indicators, joined
from sourdine.errors import InputError
from sourdine.events import Event, compose
from sourdine.ledger import Ledger
from sourdine.ledger.shared import check_part
from sourdine.mechanisms.response import flip_event
from sourdine.register import watch
from sourdine.rng import Source, secure

Features = Callable[[Sequence[str]], Floats]


@dataclass(frozen=True)
class Local:
    """Each record by itself, once."""

    name = "local"


@dataclass(frozen=True)
class Central:
    """`outputs` mixtures of `mixed` records each; as many as there are records by default."""

    mixed: int = 4
    outputs: int | None = None
    even: bool = False
    name = "central"

    def __post_init__(self) -> None:
        _check_sizes(self.mixed, self.outputs)


@dataclass(frozen=True)
class Secret:
    """`outputs` rows of about `mixed` records each, drawn by coins that nobody sees."""

    mixed: int = 4
    outputs: int | None = None
    name = "secret selection"

    def __post_init__(self) -> None:
        _check_sizes(self.mixed, self.outputs)


Mode = Local | Central | Secret


def _check_sizes(mixed: int, outputs: int | None) -> None:
    checks.whole("mixed", mixed)
    if outputs is not None:
        checks.whole("outputs", outputs)


@dataclass(frozen=True)
class Plan:
    """All that is settled before a record is looked at; `event` is what is charged."""

    shape: Shape
    scale: float
    flip: float
    columns: Columns
    event: Event
    mixing: Mixing | PoissonRows | None


class InstanceEncoder:
    """See the top of this file.

    features: from texts to an array with a row for each; public and frozen. classes: all labels that
    there may be, known without the records. map: fewer dimensions, from public text (encoding/maps.py).
    ledger: a shared one; then the budget is this encoding's part of it.
    clip: the largest norm of a record after the map, by default 1. labels: Inside, Randomized, Public.
    """

    def __init__(
        self,
        features: Features,
        budget: Budget | Ledger,
        *,
        classes: Sequence[str],
        ledger: Ledger | None = None,
        map: Map | None = None,  # noqa: A002 (what it is called everywhere)
        clip: float = 1.0,
        labels: Labels | None = None,
        mode: Mode | None = None,
        noise: Noise | None = None,
        tuned: Event | None = None,
        source: Source | None = None,
    ) -> None:
        own = budget if isinstance(budget, Ledger) else Ledger(None, budget)
        self.ledger, self.shared = own if ledger is None else ledger, ledger is not None
        self.budget = own.budget if ledger is None else check_part(ledger, own.budget)
        if self.ledger.witness is None:
            self.ledger = watch(self.ledger, [])
        if self.budget.unit != "example":
            raise InputError(
                "encodings protect one record each; give a budget per example, and at most one record "
                "for each person."
            )
        places([], classes)  # refuses labels that are none
        self.features, self.map, self.classes = features, map, tuple(classes)
        self.clip = checks.positive("clip", clip)
        self.labels, self.mode = labels or Randomized(), mode or Local()
        self.noise = noise or Gaussian()
        self.tuned, self.source = tuned, source or secure()
        self.made: Encodings | None = None
        """What was drawn last, which alone may be sealed."""
        self.entries: list[int] = []
        """Its charges in the ledger."""
        if isinstance(self.mode, Secret):
            self._check_secret()

    def _check_secret(self) -> None:
        if self.budget.adjacency != "zero-out":
            raise InputError(
                "rows by secret coins are accounted for under zero-out; give a budget with it."
            )
        if not isinstance(self.noise, Gaussian):
            raise InputError(
                "rows by secret coins are accounted for with Gaussian noise; leave noise out."
            )
        if not isinstance(self.labels, Inside):
            raise InputError(
                "with rows by secret coins labels lie inside the vectors, labels=Inside(): beside them "
                "they would show who is in a row."
            )

    def plan(self, records: int, dimension: int) -> Plan:
        """What will be charged for so many records with so many features each."""
        records = checks.whole("records", records)
        if isinstance(self.mode, Secret):
            return self._secret_plan(self.mode, records, self._shape(dimension))
        if isinstance(self.mode, Local):
            return self._planned(dimension, ONCE, None)
        rows = self.mode.outputs or records
        mixing = draw_mixing(records, rows, self.mode.mixed, self.source, even=self.mode.even)
        return self._planned(dimension, mixing.columns(), mixing)

    def _shape(self, dimension: int) -> Shape:
        inside = self.labels.weight * self.clip if isinstance(self.labels, Inside) else 0.0
        return Shape(dimension, self.clip, self.noise.clips, len(self.classes), inside)

    def _planned(self, dimension: int, columns: Columns, mixing: Mixing | None) -> Plan:
        """The least noise for which all that is released fits the budget."""
        shape, flip = self._shape(dimension), 0.0
        beside = [] if self.tuned is None else [self.tuned]
        if isinstance(self.labels, Randomized):
            flip = self.labels.flip(self.budget, len(self.classes))
            beside.append(flip_event(flip, len(self.classes), self.budget.adjacency))
        scale = self.noise.scale(self.budget, shape, columns, compose(beside) if beside else None)
        own = self.noise.event(scale, shape, self.budget.adjacency, columns)
        return Plan(shape, scale, flip, columns, compose([own, *beside]), mixing)

    def _secret_plan(self, mode: Secret, records: int, shape: Shape) -> Plan:
        rate = min(1.0, mode.mixed / records)
        rows = PoissonRows(records, mode.outputs or records, rate)

        def event(multiplier: float) -> Event:
            own = rows.event(multiplier)
            return own if self.tuned is None else own + self.tuned

        multiplier = least_noise(self.budget, event) * (1 + 1e-4)
        scale = multiplier * rows.weight * shape.moved("zero-out")
        return Plan(shape, scale, 0.0, Columns(rows.weight, rows.weight), event(multiplier), rows)

    def encode(self, texts: Sequence[str], labels: Sequence[str]) -> Encodings:
        """Charges the ledger, then encodes; a text whose label is none of the classes has none."""
        if len(texts) != len(labels):
            raise InputError(f"there are {len(texts)} texts, but {len(labels)} labels.")
        return self.encode_features(self.features(texts), labels)

    def encode_features(self, features: Floats, labels: Sequence[str]) -> Encodings:
        """The same for features that were made before, by the public encoder."""
        rows, targets = self._mapped(features, labels)
        plan = self.plan(len(rows), rows.shape[1])
        self._charge(plan, self.mode.name)
        return self._drawn(rows, targets, plan)

    def _mapped(self, features: Floats, labels: Sequence[str]) -> tuple[Floats, Classes]:
        """Checked features behind the map, and the places of their labels."""
        rows = checked(np.asarray(features), "features")
        if len(rows) != len(labels):
            raise InputError(f"there are features of {len(rows)} records, but {len(labels)} labels.")
        checks.delta(self.budget.delta, len(rows))
        if self.map is not None:
            with np.errstate(all="ignore"):  # what is not finite is made zero when it is clipped
                rows = self.map(rows)
        return rows, places(labels, self.classes)

    def stream(self, features: Floats, labels: Sequence[str], cap: float) -> Streaming:
        """Rows one by one, for a cap on the squared coefficients of each record; charged at once."""
        if not isinstance(self.noise, Gaussian) or not isinstance(self.mode, Central):
            raise InputError("a stream makes mixtures with Gaussian noise: mode=Central(), no noise=.")
        rows, targets = self._mapped(features, labels)
        stream = Stream(len(rows), cap)
        plan = self._planned(rows.shape[1], stream.columns, None)
        self._charge(plan, "stream")
        return Streaming(self, rows, targets, plan, stream)

    def _charge(self, plan: Plan, how: str) -> None:
        entry = self.ledger.charge(plan.event, f"encoding, {how}", source=self.source.kind)
        self.entries.append(entry.id)

    def _drawn(self, rows: Floats, targets: Classes, plan: Plan) -> Encodings:
        """What was charged for is drawn here, and nowhere else."""
        exact, beside = self._exact(rows, targets, plan)
        if isinstance(plan.mixing, Mixing):
            exact = plan.mixing.mix(exact)
            beside = None if beside is None else plan.mixing.mix(beside)
        elif isinstance(plan.mixing, PoissonRows):
            exact = plan.mixing.mix(exact, self.source)
        return self._noised(exact, beside, plan)

    def _exact(self, rows: Floats, targets: Classes, plan: Plan) -> tuple[Floats, Floats | None]:
        """z for every record without noise, and what is released of labels beside it."""
        count = len(self.classes)
        exact = joined(rows, targets if isinstance(self.labels, Inside) else None, plan.shape)
        if isinstance(self.labels, Randomized):
            answers = self.labels.answers(targets, plan.flip, count, self.source)
            return exact, unbiased(answers, plan.flip, count)
        return exact, indicators(targets, count) if isinstance(self.labels, Public) else None

    def _noised(self, exact: Floats, beside: Floats | None, plan: Plan) -> Encodings:
        noisy = self.noise.add(exact, plan.scale, self.source)
        dimension = plan.shape.dimension
        if beside is None:
            beside = noisy[:, dimension:] / plan.shape.weight
        self.made = Encodings(
            noisy[:, :dimension],
            beside,
            self.classes,
            self.noise.variance(plan.scale, plan.shape),
            self.map,
            {
                "mode": self.mode.name,
                "noise": self.noise.name,
                "scale": plan.scale,
                "clip": self.clip,
                "labels": self.labels.said,
                "mixed": getattr(self.mode, "mixed", 1),
                "adjacency": self.budget.adjacency,
                "source": self.source.kind,
            },
        )
        return self.made


class Streaming:
    """Mixtures one by one: `row` gives each its own noise, or denies it before the cap is passed."""

    def __init__(
        self, encoder: InstanceEncoder, rows: Floats, targets: Classes, plan: Plan, stream: Stream
    ) -> None:
        self._encoder, self._plan, self.stream = encoder, plan, stream
        self._exact, self._beside = encoder._exact(rows, targets, plan)

    def row(self, chosen: Sequence[int], coefficients: Sequence[float]) -> Encodings:
        """One encoding of these records, chosen without a look at them."""
        mixing = self.stream.take(chosen, coefficients)
        beside = None if self._beside is None else mixing.mix(self._beside)
        return self._encoder._noised(mixing.mix(self._exact), beside, self._plan)
