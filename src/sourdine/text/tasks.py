"""What is learnt: which examples a record makes, the loss of each, and how answers are counted.

One task stands so far, classification of a text or of a pair of texts. Others take the same road: a
task makes its model from an encoder, turns records into examples, gives one loss per example, and
counts its answers so that a mechanism can release them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sourdine import checks
from sourdine.errors import InputError
from sourdine.text.examples import NOTHING, Examples, tokenized
from sourdine.text.machine import halves
from sourdine.text.measures import measured
from sourdine.text.models import Classifier, Pooling


@dataclass(frozen=True)
class Classify:
    """Telling classes apart; `labels` are their names, in order."""

    name: ClassVar[str] = "classify"
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(set(self.labels)) < 2 or len(set(self.labels)) < len(self.labels):
            raise InputError("classification needs at least two labels, each named once.")
        if "" in self.labels:
            raise InputError("an empty label stands for none; give that class a name.")

    def model(self, encoder: Any, pooling: Pooling, scale: float) -> Classifier:
        return Classifier(encoder, len(self.labels), pooling, scale)

    def classes(self, labels: Sequence[str]) -> list[int]:
        """The number of each label; a record whose label is not among them counts for nothing."""
        known = {label: number for number, label in enumerate(self.labels)}
        return [known.get(label, NOTHING) for label in labels]

    def examples(
        self, tokenizer: Any, texts: Sequence[Sequence[str]], labels: Sequence[str], most: int
    ) -> Examples:
        return tokenized(tokenizer, texts, self.classes(labels), most)

    def metrics(
        self, matrix: np.ndarray[Any, np.dtype[np.float64]], deviation: float, records: int | None
    ) -> dict[str, Any]:
        """What a confusion matrix says, whose cells have noise of this deviation."""
        return measured(matrix, deviation, records, self.labels)


def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Cross entropy of each example, of its own text and class only; none for a record of no class.

    The model runs in bfloat16 where the device is faster so, but for a head alone on a CPU; norms and
    sums are made in single precision all the same.
    """
    labels = batch["labels"]
    alone = isinstance(model, OnFeatures) and not labels.is_cuda
    with nullcontext() if alone else halves(labels.device):
        scores = model(batch)
    each = nn.functional.cross_entropy(scores.float(), labels.clamp(min=0), reduction="none")
    return torch.where(labels == NOTHING, torch.zeros_like(each), each)


class OnFeatures(nn.Module):
    """A head alone, on features that were computed before."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head = head

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.head(batch["features"])  # type: ignore[no-any-return]


TASKS = {Classify.name: Classify}


def task(name: str) -> type[Classify]:
    """The task of this name."""
    return TASKS[checks.one_of("task", name, tuple(TASKS))]
