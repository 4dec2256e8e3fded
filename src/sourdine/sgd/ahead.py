"""Lots, and the next one while a GPU is at work on this one.

A step by graphs waits for the GPU once, to hear whether its sums may be used; what the host does after
that keeps the GPU idle. Here the next lot is drawn and its first batch collated before.

Guarantee: a lot is drawn from the stream of its own step, whenever that is, so it is the same lot. Who
is in it is known to the process a step earlier than before and to nobody else; all lots of the plan
were charged before the first. None is drawn past a save (sgd/resuming.py).
"""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from sourdine.rng import Streams
from sourdine.sgd.batches import Batch
from sourdine.sgd.sampling import Indices


class Lot:
    """The units of one step. Who they are is secret: knowing it voids the amplification."""

    __slots__ = ("_begun", "_canaries", "_units", "step")

    def __init__(self, step: int, units: Indices, canaries: Indices | None = None) -> None:
        self.step, self._units = step, units
        self._canaries = units[:0] if canaries is None else canaries
        self._begun: tuple[int, Iterator[Batch] | None] = (0, None)  # batches of at most that size

    def __repr__(self) -> str:
        return f"<lot of step {self.step}>"

    def begun(self, size: int) -> Iterator[Batch] | None:
        """Its batches of at most `size` examples, once, if the first of them was made ahead."""
        (largest, found), self._begun = self._begun, (0, None)
        return found if largest == size else None


class Ahead:
    """The lots of a run, each drawn once; `draw` draws one and `cut` makes its batches."""

    def __init__(
        self,
        draw: Callable[[int], Lot],
        cut: Callable[[Lot], Iterator[Batch]],
        device: torch.device,
    ) -> None:
        self._draw, self._cut, self._device = draw, cut, device
        self._next: tuple[Streams | None, Lot | None] = (None, None)

    def lot(self, step: int, streams: Streams) -> Lot:
        """The lot of a step, perhaps drawn before from the same streams."""
        (before, lot), self._next = self._next, (None, None)
        same = before is streams and lot is not None and lot.step == step
        return lot if same and lot is not None else self._draw(step)

    def look(self, step: int, streams: Streams, size: int) -> None:
        """Draws the lot of a step that comes, and collates its first batch of at most `size`.

        What a collate function draws from the generators of torch, numpy or Python belongs to its own
        step, and so does what it raises: then it is called again when its time has come.
        """
        lot = self.lot(step, streams)
        self._next = (streams, lot)
        if lot._begun[1] is not None:
            return
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            before, found = self._generators(), self._cut(lot)
            plain, numbers = random.getstate(), np.random.get_state()
            try:
                first = list(itertools.islice(found, 1))
            except Exception:
                return
            if all(map(torch.equal, before, self._generators())):
                lot._begun = (size, itertools.chain(first, found))
            random.setstate(plain)
            np.random.set_state(numbers)

    def _generators(self) -> list[Tensor]:
        """The states of all generators that a collate function may draw from."""
        cuda = self._device.type == "cuda"
        own = [torch.cuda.get_rng_state(self._device)] if cuda else []
        plain = torch.tensor([hash(random.getstate()), hash(pickle.dumps(np.random.get_state()))])
        return [torch.get_rng_state(), *own, plain]
