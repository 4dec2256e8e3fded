"""Several processes that train one model, under torchrun.

Every process holds the whole model and its own share of the units, places rank, rank + count, ... It
draws its own Poisson lots and clips locally. Units enter independently of each other, so lots drawn
share by share have the law of one lot drawn from all.

The sums are added up at process 0, which alone draws the noise, adds it once, rounds, and hands the
result to all. Noise goes onto the whole sum and not onto a part of it: what is added after the rounding
would show in the bits below it.

What fails in process 0 on behalf of all (the ledger, the folder) is raised in all. A process that ends
in any other way ends the others too, at their next exchange: at once where the connection breaks
(gloo), else after the timeout of init_process_group; torchrun stops what is left. What was reserved
stays charged, and the run goes on from its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from sourdine import rng
from sourdine.errors import InputError, SourdineError
from sourdine.sgd.sampling import Indices, Lots, PoissonLots

T = TypeVar("T")


class Processes:
    """The processes that train together; alone if torch.distributed was not set up."""

    def __init__(self) -> None:
        together = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if together else 0
        self.count = dist.get_world_size() if together else 1

    @property
    def first(self) -> bool:
        """Whether this is the process that charges, draws the noise and writes."""
        return self.rank == 0

    def check(self, lots: Lots) -> None:
        if self.count > 1 and not isinstance(lots, PoissonLots):
            raise InputError(
                "several processes draw Poisson lots only; leave lots= out, or use one process."
            )

    def streams(self, source: rng.Source | None) -> rng.Streams:
        """Streams of this process's own: with those of another it would draw the same lots."""
        own = [rng.streams(source) for _ in range(self.rank + 1)]  # a seeded source is alike in all
        return own[-1]

    def draw(self, lots: Lots, units: int, step: int, source: rng.Source) -> Indices:
        """This process's share of a lot out of so many units."""
        if not isinstance(lots, PoissonLots):
            return lots.draw(step, source)
        own = len(range(self.rank, units, self.count))
        if own == 0:
            return PoissonLots(1, 1).draw(step, source)[:0]
        share = PoissonLots(own, lots.rate * own)  # at the planned rate, however many there are
        return share.draw(step, source) * self.count + self.rank

    def add_up_(self, tensors: Sequence[Tensor]) -> None:
        """At process 0: replaces tensors by their sum over all processes, in one exchange."""
        self._exchange(tensors, lambda flat: dist.reduce(flat, 0))

    def share_(self, tensors: Sequence[Tensor]) -> None:
        """Everyone takes what process 0 has."""
        kinds = dict.fromkeys(x.dtype for x in tensors)
        for kind in kinds:
            own = [x for x in tensors if x.dtype == kind]
            self._exchange(own, lambda flat: dist.broadcast(flat, 0))

    def _exchange(self, tensors: Sequence[Tensor], exchange: Callable[[Tensor], object]) -> None:
        if self.count == 1 or not tensors:
            return
        with torch.no_grad():
            flat = torch.cat([x.flatten() for x in tensors])
            exchange(flat)
            for x, result in zip(tensors, flat.split([x.numel() for x in tensors]), strict=True):
                x.copy_(result.view_as(x))

    def once(self, work: Callable[[], T]) -> T:
        """Process 0 does it; all get what it returned, or raise what it raised."""
        if self.count == 1:
            return work()
        answer: T | None = None
        failure: Exception | None = None
        if self.first:
            try:
                answer = work()
            except Exception as error:  # the others wait for an answer
                failure = error
        told = failure if isinstance(failure, SourdineError) else None
        if failure is not None and told is None:
            told = SourdineError(f"process 0 failed: {failure!r}")
        box: list[object] = [answer, told]
        dist.broadcast_object_list(box, 0)
        if failure is not None:
            raise failure
        if isinstance(box[1], SourdineError):
            raise box[1]
        return box[0]  # type: ignore[return-value]

    def hear(self, value: T) -> list[T]:
        """What every process says, told to all."""
        if self.count == 1:
            return [value]
        heard: list[T] = [value] * self.count
        dist.all_gather_object(heard, value)
        return heard
