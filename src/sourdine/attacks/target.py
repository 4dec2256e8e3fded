"""What an attack may ask of a target: each attack names the least it needs, a target has what it can.

A target is any object with the methods below; nothing has to be inherited. Adapters for models of
transformers, for classifiers of scikit-learn and for plain functions are in adapters.py; the model of a
run folder is a target by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Record:
    """A text, or a pair of texts, with its label and its person where they are known."""

    texts: tuple[str, ...]
    label: str | None = None
    user: str | None = None


@dataclass(frozen=True)
class TokenLogs:
    """What a language model thought of the tokens of one text, each given those before it.

    log: log probability of the true token. mean, deviation: of the log probability over the vocabulary,
    under the model's own distribution there. rank: how many tokens it found likelier than the true one.
    """

    log: Floats
    mean: Floats
    deviation: Floats
    rank: np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Sampling:
    """How text is drawn: from the `top` likeliest tokens, at a temperature that may fall to 1.

    decay: over so many tokens the temperature goes down to 1 in a straight line; 0 keeps it.
    """

    top: int = 40
    temperature: float = 1.0
    decay: int = 0


@runtime_checkable
class Classifies(Protocol):
    """Tells how likely each label is."""

    labels: tuple[str, ...]

    def probabilities(self, records: Sequence[Record]) -> Floats:
        """One row for each record, one column for each label; rows sum to 1."""


@runtime_checkable
class Predicts(Protocol):
    """A language model: tells how likely each next token is."""

    def token_logs(self, texts: Sequence[str]) -> list[TokenLogs]:
        """One entry for each text; a text of no token has empty arrays."""


@runtime_checkable
class Generates(Protocol):
    """Goes on writing."""

    def generate(
        self, prompts: Sequence[str], *, tokens: int, sampling: Sampling, seed: int
    ) -> list[str]:
        """For each prompt what follows it, without the prompt; "" is a prompt too."""


@runtime_checkable
class Differentiates(Protocol):
    """Shows the gradient of the loss of each record in the weights it trains."""

    def gradients(self, records: Sequence[Record]) -> Floats:
        """One row for each record."""


Target = Classifies | Predicts | Generates | Differentiates
