"""Where the clipped sums of a lot are added up.

`.grad` of every trained parameter is a part of one stretch of memory, which stays where it is from lot
to lot: noise, division and the exchange between processes are one operation each, and what was recorded
on a GPU (sgd/replay.py) finds its sums again.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from sourdine.errors import InputError


class Sums:
    """`flats`, one for each device, in the order of the parameters; `parts` has a part for each."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = list(parameters)
        for x in self._parameters:
            if x.dtype != torch.float32:
                raise InputError(
                    f"what is trained must be float32, and a parameter is {str(x.dtype)[6:]}; keep "
                    "float32 weights, and compute in half precision by torch.autocast."
                )
        self.flats: list[Tensor] = []
        found: dict[int, Tensor] = {}
        for device in dict.fromkeys(x.device for x in self._parameters):
            own = [x for x in self._parameters if x.device == device]
            flat = torch.zeros(sum(x.numel() for x in own), device=device)
            self.flats.append(flat)
            split = flat.split([x.numel() for x in own])
            found |= {id(x): part.view(x.shape) for x, part in zip(own, split, strict=True)}
        self.parts = [found[id(x)] for x in self._parameters]

    def begin(self) -> None:
        """Sums of zero, in `.grad`."""
        for flat in self.flats:
            flat.zero_()
        for x, part in zip(self._parameters, self.parts, strict=True):
            x.grad = part
