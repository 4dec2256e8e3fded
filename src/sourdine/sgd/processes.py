"""Several processes that train one model, under torchrun.

Every process holds the whole model and its own share of the units, places rank, rank + count, ... It
draws its own Poisson lots, clips locally and adds up with the others by one all-reduce. Units enter
independently of each other, so lots drawn share by share have the law of one lot drawn from all.

The noise is drawn by process 0 alone and added to its sum before the all-reduce: exactly once in total.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from sourdine.errors import InputError
from sourdine.rng import Source
from sourdine.sgd.sampling import Indices, Lots, PoissonLots


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

    def draw(self, lots: Lots, units: int, step: int, source: Source) -> Indices:
        """This process's share of a lot out of so many units."""
        if not isinstance(lots, PoissonLots):
            return lots.draw(step, source)
        own = len(range(self.rank, units, self.count))
        if own == 0:
            return PoissonLots(1, 1).draw(step, source)[:0]
        share = PoissonLots(own, lots.rate * own)  # at the planned rate, however many there are
        return share.draw(step, source) * self.count + self.rank

    def same_start(self, tensors: Sequence[Tensor]) -> None:
        """Everyone takes what process 0 has."""
        if self.count > 1:
            for x in tensors:
                dist.broadcast(x, 0)

    def add_up_(self, tensors: Sequence[Tensor]) -> None:
        """Replaces tensors by their sum over all processes, in one exchange."""
        if self.count == 1:
            return
        flat = torch.cat([x.flatten() for x in tensors])
        dist.all_reduce(flat)
        for x, total in zip(tensors, flat.split([x.numel() for x in tensors]), strict=True):
            x.copy_(total.view_as(x))

    def tell(self, value: object) -> object:
        """What process 0 says, told to all."""
        if self.count == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, 0)
        return box[0]
