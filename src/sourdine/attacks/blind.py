"""The blind baseline: can members be told from others without asking the target at all?

If a bag of words can, members and others differ in kind (another year, another source, another length),
and what an attack finds may be that difference and nothing that the model remembers (Duan et al. 2024;
Das, Zhang, Tramer 2024). Every result of a membership attack carries it.

Method. Records are cut into two halves, each with half of the members and of the others, by a draw that
looks at nothing else. A logistic regression on tf-idf of words, with the label and the length as words
too, learns on each half and scores the other.

Guarantee: on a fair split (members drawn from the pool at random) `differs` is true with probability
at most (1 - confidence) / 2, up to the normal law in roc.py. Given one half, the AUC on the other has
mean 1/2, and the lower end of its interval, at confidence 1 - (1 - confidence) / 2 on two sides, is
above that with probability (1 - confidence) / 4. If both lower ends are at most 1/2, so is their mean:
the union bound over the two halves gives the rate. The two AUCs depend on each other in ways nobody
knows; that is why the ends are averaged and not narrowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sourdine import checks
from sourdine.attacks.roc import Roc
from sourdine.attacks.target import Floats, Record
from sourdine.data.words import words
from sourdine.errors import InputError

FEWEST = 10
"""Members, or others, below which two halves are too small to learn from."""
_FEATURES = 50_000


@dataclass(frozen=True)
class Blind:
    """What a bag of words alone can tell: the mean AUC of two halves, with its interval."""

    auc: float
    low: float
    high: float
    confidence: float

    @property
    def differs(self) -> bool:
        """Whether members and others differ in kind, as far as this shows it."""
        return self.low > 0.5

    def __str__(self) -> str:
        said = f"AUC {self.auc:.3f} ({self.low:.3f} to {self.high:.3f}) without the target"
        if self.differs:
            return (
                f"{said}: members and others differ in kind, so an attack may find that difference and "
                "not what the model remembers. Take others from where the members come from."
            )
        return f"{said}: no difference in kind between members and others was found."

    def to_json(self) -> dict[str, Any]:
        """All numbers, and whether the two differ."""
        names = ("auc", "low", "high", "confidence", "differs")
        return {name: getattr(self, name) for name in names}


def blind(
    members: Sequence[Record], others: Sequence[Record], *, confidence: float = 0.95, seed: int = 0
) -> Blind:
    """Tell members from others by their words, without any target."""
    checks.probability("confidence", confidence)
    if min(len(members), len(others)) < FEWEST:
        raise InputError(
            f"{len(members)} members and {len(others)} others are too few to see whether they differ "
            f"in kind; give {FEWEST} or more of each."
        )
    bags = [_bag(record) for record in (*members, *others)]
    truth = np.arange(len(bags)) < len(members)
    second = _second_half(truth, checks.whole("seed", seed, least=0))
    rocs = []
    for tested in (second, ~second):
        scores = _scores(bags, truth, tested)
        rocs.append(Roc(scores[truth[tested]], scores[~truth[tested]]))
    ends = np.array([roc.auc_interval(1 - (1 - confidence) / 2) for roc in rocs])
    low, high = (float(end) for end in ends.mean(axis=0))
    return Blind(sum(roc.auc for roc in rocs) / 2, low, high, confidence)


def _bag(record: Record) -> list[str]:
    """Words, and as words of their own the label and about how long it is; no text has a NUL."""
    found = [word for text in record.texts for word in words(text)]
    length = sum(map(len, record.texts)).bit_length()
    return [*found, f"\0label {record.label}", f"\0length {length}"]


def _second_half(truth: np.ndarray[Any, np.dtype[np.bool_]], seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    second = np.zeros(len(truth), dtype=np.bool_)
    for side in (truth, ~truth):
        places = rng.permutation(np.flatnonzero(side))
        second[places[len(places) // 2 :]] = True
    return second


def _scores(bags: list[list[str]], truth: np.ndarray[Any, Any], tested: np.ndarray[Any, Any]) -> Floats:
    """How much each tested record looks like the members among the rest."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415
    except ModuleNotFoundError:
        raise InputError(
            "the blind baseline needs scikit-learn: pip install 'sourdine[text]'."
        ) from None
    count = TfidfVectorizer(analyzer=list, max_features=_FEATURES, sublinear_tf=True)
    learnt = count.fit_transform([bag for bag, held in zip(bags, tested, strict=True) if not held])
    model = LogisticRegression(C=10.0, class_weight="balanced", max_iter=1000)
    model.fit(learnt, truth[~tested])
    asked = count.transform([bag for bag, held in zip(bags, tested, strict=True) if held])
    found: Floats = model.decision_function(asked)
    return found
