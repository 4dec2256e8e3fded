"""Instance encoding with noise as published (Xie and Hong 2022), and what its guarantee is worth.

As published: features clipped to norm C, mixed with coefficients that sum to one, noise N added,
labels mixed and released as they are. The noise is Laplace of scale 2C / epsilon in every number
(Theorem 3), or Gaussian with sigma^2 = C^2 (1 + sqrt(2 ln(1 / delta)))^2 / epsilon (Theorem 4). Where
the text leaves a choice, `Paper` asks for it:

- coefficients: "absolute" |g| / sum |g|, as TextHide's code has them, or "signed" g / sum g, as
  Algorithm 1 writes. Read to the letter they are drawn once, and all encodings are equal; here they
  are fresh.
- noise: "shared", one N for all encodings, as Algorithm 1 writes; or "fresh" for each.

None of these is a release of this library: `encode` charges nothing and writes no certificate.
`guarantee` says what is claimed, what holds, and why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sourdine import checks
from sourdine.accounting import curve
from sourdine.encoding.encodings import Encodings
from sourdine.encoding.mixing import Mixing, generator, weights
from sourdine.encoding.noises import Columns, Gaussian, IidLaplace
from sourdine.encoding.vectors import Floats, Shape, clipped, indicators
from sourdine.errors import InputError
from sourdine.rng import Source, secure


@dataclass(frozen=True)
class Claim:
    """What is claimed and what holds, under replace-one; never one without the reasons."""

    claimed: float
    delta: float
    features: float
    """The epsilon at delta that holds for the features of one record, over all encodings together."""
    labels: float
    total: float
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"claimed: epsilon {self.claimed:g}, delta {self.delta:g}",
            f"holds: features {self.features:.4g}, labels {self.labels:g}, together {self.total:g}",
            *(f"- {reason}" for reason in self.reasons),
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Paper:
    """One reading of the published scheme; see the top of this file."""

    epsilon: float
    delta: float = 1e-5
    law: str = "gaussian"
    noise: str = "fresh"
    coefficients: str = "absolute"
    mixed: int = 4
    clip: float = 1.0

    def __post_init__(self) -> None:
        checks.epsilon(self.epsilon)
        checks.delta(self.delta)
        checks.positive("clip", self.clip)
        checks.whole("mixed", self.mixed)
        for name, known in (
            ("law", ("gaussian", "laplace")),
            ("noise", ("shared", "fresh")),
            ("coefficients", ("absolute", "signed")),
        ):
            checks.one_of(name, getattr(self, name), known)

    @property
    def scale(self) -> float:
        """Of the published noise: a deviation, or the scale of Laplace."""
        if self.law == "laplace":
            return 2 * self.clip / self.epsilon
        return self.clip * (1 + math.sqrt(2 * math.log(1 / self.delta))) / math.sqrt(self.epsilon)

    def draw(self, records: int, outputs: int, source: Source | None = None) -> Mixing:
        """Which records are mixed, and the coefficients."""
        if records < self.mixed:
            raise InputError(f"{records} records are too few to mix {self.mixed} of them.")
        chance = generator(source or secure())
        keys = chance.random((outputs, records)) if outputs * records < 10**7 else None
        chosen = (
            np.argpartition(keys, self.mixed, axis=1)[:, : self.mixed]
            if keys is not None and self.mixed < records
            else np.stack([chance.choice(records, self.mixed, replace=False) for _ in range(outputs)])
        )
        shares = weights(outputs, self.mixed, chance, signed=self.coefficients == "signed")
        return Mixing(chosen.astype(np.int64), shares, records)

    def encode(
        self,
        features: Floats,
        labels: NDArray[np.int64],
        classes: tuple[str, ...],
        *,
        outputs: int | None = None,
        source: Source | None = None,
    ) -> Encodings:
        """Encodings as published, with the labels in the clear."""
        source, rows = source or secure(), clipped(features, self.clip)
        mixing = self.draw(len(rows), outputs or len(rows), source)
        mixed = mixing.mix(rows)
        law = Gaussian() if self.law == "gaussian" else IidLaplace()
        if self.noise == "fresh":
            noisy = law.add(mixed, self.scale, source)
        else:
            noisy = mixed + law.add(np.zeros((1, rows.shape[1])), self.scale, source)
        about = {
            "mode": f"as published, {self.law}, {self.noise} noise, {self.coefficients} coefficients",
            "privacy": f"claimed epsilon {self.epsilon:g}; what holds is in the guarantee",
            "guarantee": str(self.guarantee(mixing, rows.shape[1])),
            "masks": 1,
            "mixed": self.mixed,
            "records": len(rows),
        }
        shape = Shape(rows.shape[1], self.clip)
        variance = 0.0 if self.noise == "shared" else law.variance(self.scale, shape)
        answers = mixing.mix(indicators(labels, len(classes)))
        return Encodings(noisy, answers, classes, variance, None, about)

    def guarantee(self, mixing: Mixing, dimension: int) -> Claim:
        """What holds for these coefficients, by the column norms; infinity where nothing does."""
        shape, columns = Shape(dimension, self.clip), mixing.columns()
        reasons = [
            "labels are released as they are: whoever replaces one shows in every encoding that has it"
        ]
        features = self._features(shape, columns)
        if self.noise == "shared":
            # Equal rows are one release; two different ones are told apart to the last digit.
            largest = float(np.abs(mixing.coefficients).max())
            alike = _distinct(mixing) == 1
            features = self._features(shape, Columns(largest, largest)) if alike else math.inf
            reasons.append(
                "all encodings are one and the same"
                if alike
                else "all encodings share one noise: their differences have none at all"
            )
        elif columns.two > 1 or columns.one > 1:
            reasons.append(
                f"a record is in many of the {len(mixing.places)} encodings: its column has norm "
                f"{columns.two:.3g} (l2) and {columns.one:.3g} (l1), which "
                "the published proof takes as 1 at most"
            )
        if self.law == "laplace":
            moved = shape.moved("replace-one", norm=1)
            reasons.append(
                f"an l2-clipped vector moves by 2C sqrt(d) = {moved:.3g} in the l1 norm, not by 2C "
                "(Theorem 3)"
            )
        else:
            reasons.append(
                "the deviation falls with sqrt(epsilon) where it must fall with epsilon, and a record "
                "that is replaced moves by 2C, not C (Theorem 4)"
            )
        if self.coefficients == "signed":
            largest = np.abs(mixing.coefficients).max()
            reasons.append(
                f"signed coefficients have no bound: the largest here is {largest:.3g}, and before "
                "they are drawn nothing holds"
            )
        delta = self.delta if self.law == "gaussian" else 0.0
        return Claim(self.epsilon, delta, features, math.inf, math.inf, tuple(reasons))

    def _features(self, shape: Shape, columns: Columns) -> float:
        if self.law == "laplace":
            return columns.one * shape.moved("replace-one", norm=1) / self.scale
        event = Gaussian().event(self.scale, shape, "replace-one", columns)
        return curve(event, "replace-one").epsilon(self.delta).upper


def _distinct(mixing: Mixing) -> int:
    """How many different rows a mixing matrix has."""
    order = np.argsort(mixing.places, axis=1)
    rows = [np.take_along_axis(x, order, 1) for x in (mixing.places, mixing.coefficients)]
    return len(np.unique(np.concatenate(rows, axis=1), axis=0))
