"""The model of a run folder as a target of attacks, which know nothing of how it was trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sourdine.errors import InputError
from sourdine.text.model import TextModel, load


class Record(Protocol):
    """What is asked about: a text or a pair."""

    @property
    def texts(self) -> tuple[str, ...]: ...


class RunTarget:
    """Tells how likely each label is (see attacks/target.py)."""

    def __init__(self, model: TextModel) -> None:
        self._model, self.labels = model, model.task.labels

    def probabilities(self, records: Sequence[Record]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """One row for each record, one column for each label."""
        wrong = next((record for record in records if len(record.texts) != self._model.texts), None)
        if wrong is not None:
            raise InputError(
                f"this model reads {self._model.texts} texts a record, not {len(wrong.texts)}."
            )
        columns = [[record.texts[place] for record in records] for place in range(self._model.texts)]
        found = self._model.scores(*columns).double().softmax(1)
        return np.asarray(found.numpy(), dtype=np.float64)


def run_target(folder: Path) -> RunTarget:
    """The target that a run folder holds."""
    return RunTarget(load(folder))
