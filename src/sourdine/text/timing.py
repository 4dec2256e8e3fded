"""How long a text takes to train on or to read, on this machine: measured on made-up texts.

No record is looked at, so the planner may choose by what is measured here. The first steps are slower
than the others (memory is allocated, and it is proved that examples are told apart), so the fastest of
a few counts.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sourdine.sgd.clipped import clipped_sum
from sourdine.sgd.proofs import Knowledge
from sourdine.text.machine import halves
from sourdine.text.models import Classifier, Pooling
from sourdine.text.strategies import Strategy
from sourdine.text.tasks import losses

_TEXTS, _MOVED = 32, 0.02
_TRIES, _LEAST_TRIES, _ENOUGH = 6, 3, 5.0
"""So many tries, fewer on a machine that is slow or busy: the third is the first without a proof."""
_PROOFS = 1.25
"""Batches of new shapes, and some of others, are proved to tell examples apart, which takes longer."""


@dataclass(frozen=True)
class Stopwatch:
    """Measures one model on one device. tokens: the length of the made-up texts."""

    encoder: Any
    pooling: Pooling
    device: torch.device
    tokens: int
    _known: dict[Strategy | None, float] = field(default_factory=dict)

    def training(self, strategy: Strategy) -> float:
        """Seconds that one text takes in a private step: forward, backward, norm and clipped sum."""
        if strategy not in self._known:
            self._known[strategy] = self._trained(strategy)
        return self._known[strategy]

    def reading(self) -> float:
        """Seconds that one text takes on its way through the frozen encoder."""
        if None not in self._known:
            self._known[None] = self._read()
        return self._known[None]

    def _trained(self, strategy: Strategy) -> float:
        model = Classifier(copy.deepcopy(self.encoder), 2, self.pooling, 2.0)
        strategy.prepare(model)
        model.to(self.device).eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for parameter in model.parameters():
                if parameter.requires_grad:  # as after a first step: of zeros nothing can be proved
                    parameter.add_(_MOVED * torch.randn_like(parameter))
        batch = self._batch()
        known = Knowledge()  # what is proved once is not proved in every try
        step = functools.partial(clipped_sum, model, lambda: losses(model, batch), 1.0, knowledge=known)
        return _PROOFS * self._fastest(step)

    def _read(self) -> float:
        model = Classifier(self.encoder, 2, self.pooling).to(self.device).eval()
        batch = self._batch()

        def read() -> None:
            with torch.no_grad(), halves(self.device):
                model.features(batch)

        return self._fastest(read)

    def _batch(self) -> dict[str, Tensor]:
        words = int(self.encoder.config.vocab_size)
        ids = torch.arange(_TEXTS * self.tokens, device=self.device).reshape(_TEXTS, self.tokens)
        return {
            "input_ids": ids * 7 % words,
            "attention_mask": torch.ones_like(ids),
            "labels": torch.zeros(_TEXTS, dtype=torch.long, device=self.device),
        }

    def _fastest(self, work: Callable[[], object]) -> float:
        found: list[float] = []
        while len(found) < _TRIES and (len(found) < _LEAST_TRIES or sum(found) < _ENOUGH):
            start = time.perf_counter()
            work()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            found.append(time.perf_counter() - start)
        return min(found) / _TEXTS
