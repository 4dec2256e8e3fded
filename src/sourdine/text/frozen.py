"""Texts as the features of a frozen encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sourdine.text.base import load_base
from sourdine.text.examples import Collate, features, tokenized
from sourdine.text.machine import device_of
from sourdine.text.models import Classifier
from sourdine.text.prepared import default_model

LONGEST = 128
"""Tokens of a text that are read."""
Tell = Callable[[str, int, int, float | None], object]


class Frozen:
    """An encoder as it is, by folder or name; the fetched MiniLM, or the one on bytes, if None."""

    def __init__(self, model: str | None, device: str | None, tell: Tell | None = None) -> None:
        self.base = model or default_model()
        self.encoder, self.tokenizer, self.pooling = load_base(self.base)
        self.longest = min(
            LONGEST, getattr(self.encoder.config, "max_position_embeddings", None) or LONGEST
        )
        self._network = Classifier(self.encoder, 2, self.pooling).to(device_of(device))
        self._tell = tell or (lambda stage, done, total, epsilon: None)

    def __call__(self, texts: tuple[list[str], ...], alone: bool = False) -> Any:
        """An array with a row for each text, or pair of texts.

        alone: one at a time, slower, so that not even the last digit of a row depends on others.
        """
        rows = tokenized(self.tokenizer, texts, [0] * len(texts[0]), self.longest)
        found = features(
            self._network,
            rows,
            Collate(self.tokenizer.pad_token_id),
            batch_size=1 if alone else 64,
            tell=lambda done: self._tell("reading", done, len(rows), None),
        )
        return found.double().numpy()
