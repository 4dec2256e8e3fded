"""TextHide (m, k): feature vectors, mixed and masked, which proves nothing (Huang et al. 2020).

An encoding is mask * sum_i lambda_i v_i: the record itself and k - 1 others of its data set (or, with
public text, every second one of those from there), coefficients |g| / sum |g| of normal g, labels mixed
alike, and one of m sign masks that were drawn once. This follows the authors' code.

There is no epsilon: two data sets that differ in one record are told apart from any encoding that has
the record in it. The authors claim that an attacker needs n^(k/2) operations, by likeness to the k-sum
problem; but an attacker need not solve for single sums, since thousands of them share their terms.
attacks/mixtures.py recovers nearly all vectors in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sourdine import checks
from sourdine.encoding.encodings import Encodings
from sourdine.encoding.mixing import Mixing, generator, weights
from sourdine.encoding.vectors import Floats, checked, indicators
from sourdine.errors import InputError
from sourdine.rng import Source, secure

NO_EPSILON = "no differential privacy: TextHide has no epsilon"


@dataclass(frozen=True)
class TextHide:
    """m masks and k records in a mixture; the published setting is (16, 4)."""

    masks: int = 16
    mixed: int = 4

    def __post_init__(self) -> None:
        checks.whole("masks", self.masks)
        checks.whole("mixed", self.mixed)

    def claimed_effort(self, records: int) -> float:
        """n^(k/2), the operations that the authors claim an attacker needs."""
        return math.pow(checks.whole("records", records), self.mixed / 2)

    def draw_masks(self, dimension: int, source: Source | None = None) -> Floats:
        """The pool of sign masks (m, d), which the owner keeps: a model reads masked features only."""
        shape = (self.masks, checks.whole("dimension", dimension))
        return np.asarray(2.0 * generator(source or secure()).integers(0, 2, shape) - 1, np.float64)

    def encode(
        self,
        features: Floats,
        labels: NDArray[np.int64],
        classes: tuple[str, ...],
        *,
        outputs: int | None = None,
        public: Floats | None = None,
        pool: Floats | None = None,
        source: Source | None = None,
    ) -> Encodings:
        """So many encodings, as many as records by default.

        public: features of public text, to mix with. pool: the masks, drawn if not given.
        """
        rows = checked(features, "features")
        public = None if public is None else checked(public, "public features")
        if len(rows) < self.mixed:
            raise InputError(f"{len(rows)} records are too few to mix {self.mixed} of them.")
        source = source or secure()
        chance, count = generator(source), outputs or len(rows)
        rounds = math.ceil(count / len(rows))
        chosen = [np.tile(np.arange(len(rows)), rounds)[:count]]
        for place in range(1, self.mixed):
            mine = public is None or place % 2 == 0
            there = len(rows) if public is None or mine else len(public)
            drawn = [chance.permutation(there) for _ in range(math.ceil(count / there))]
            own = np.concatenate(drawn)[:count]
            chosen.append(own if mine else own + len(rows))
        every = rows if public is None else np.concatenate([rows, public])
        mixing = Mixing(np.stack(chosen, 1), weights(count, self.mixed, chance), len(every))
        known = np.zeros((len(every), len(classes)))  # public text has no label
        known[: len(rows)] = indicators(labels, len(classes))
        signs = self.draw_masks(rows.shape[1], source) if pool is None else pool
        own_signs = signs[chance.integers(0, len(signs), count)]
        about = {
            "mode": f"TextHide ({self.masks}, {self.mixed})",
            "privacy": NO_EPSILON,
            "masks": self.masks,
            "mixed": self.mixed,
            "records": len(rows),
        }
        return Encodings(own_signs * mixing.mix(every), mixing.mix(known), classes, 0.0, None, about)
