"""Where the clipped sums of a lot are added up.

`.grad` of every trained parameter is a part of one stretch of memory: noise, division and the exchange
between processes are one operation each. Graphs use the same stretch from lot to lot, as what was
recorded on a GPU (sgd/replay.py) has to find its sums again; otherwise every lot has its own.

Guarantee: noise is added to all of this stretch, and the optimizer gets nothing else: `whole` says
whether `.grad` is still a part of it, and `kept_by` whether an optimizer has kept a part, in which it
would see the sums of the next lot before their noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sourdine.errors import InputError

_PLAIN = (type(None), bool, int, float, str)
_COLUMNS = 4096
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Sums:
    """`flats`, one for each device, in the order of the parameters; `parts` has a part for each."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.parameters = list(parameters)
        for x in self.parameters:
            if x.dtype != torch.float32:
                raise InputError(
                    f"what is trained must be float32, and a parameter is {str(x.dtype)[6:]}; keep "
                    "float32 weights, and compute in half precision by torch.autocast."
                )
        self.flats: list[Tensor] = []
        self._shown = False
        found: dict[int, Tensor] = {}
        for device in dict.fromkeys(x.device for x in self.parameters):
            own = [x for x in self.parameters if x.device == device]
            flat = torch.zeros(sum(x.numel() for x in own), device=device)
            self.flats.append(flat)
            split = flat.split([x.numel() for x in own])
            found |= {id(x): _shaped(part, x) for x, part in zip(own, split, strict=True)}
        self.parts = [found[id(x)] for x in self.parameters]

    def whole(self) -> bool:
        """Whether `.grad` of every parameter is where it was put."""
        return not self._shown or all(
            x.grad is not None
            and (x.grad.data_ptr(), x.grad.shape, x.grad.stride())
            == (part.data_ptr(), part.shape, part.stride())
            for x, part in zip(self.parameters, self.parts, strict=True)
        )

    def kept_by(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the optimizer's state holds on to this memory."""
        own = {flat.untyped_storage()._cdata for flat in self.flats}
        left: list[Any] = [{**group, "params": None} for group in optimizer.param_groups]
        left += optimizer.state.values()
        while left:
            x = left.pop()
            if isinstance(x, Tensor):
                if x.untyped_storage()._cdata in own:
                    return True
            elif isinstance(x, dict):
                left += x.values()
            elif type(x) not in _PLAIN:
                left += [y for y in pytree.tree_leaves(x) if isinstance(y, Tensor)]
        return False

    def begin(self, shown: bool = True) -> None:
        """Sums of zero, in `.grad`, or there only when somebody asks to `show` them."""
        self.clear()  # even after a step that left zeros: somebody may have kept a view, and written
        self._shown = False
        if shown:
            self.show()

    def show(self) -> None:
        """In `.grad`, in the place of all that is there."""
        if not self._shown:
            for x, part in zip(self.parameters, self.parts, strict=True):
                x.grad = part.detach()  # another view: what somebody does to the last one is over
            self._shown = True

    def clear(self) -> None:
        """Nothing is left of what was added up."""
        for flat in self.flats:
            flat.zero_()

    def hide(self) -> None:
        """Out of `.grad`, where somebody might look at sums that have no noise yet."""
        for x in self.parameters:
            x.grad = None
        self._shown = False


def fingerprint(sums: Sequence[Tensor]) -> bytes:
    """A hash of tensors to the bit: of the sums, as whole numbers, of every 4096th of their numbers.

    They are added up where they are, so that a GPU need not hand all of them over. Two that differ by
    what a run does otherwise have the same hash only if their differences cancel in all 4096 sums.
    """
    found = hashlib.blake2b(digest_size=32)
    for given in sums:
        x = torch.view_as_real(given.detach()) if given.is_complex() else given.detach()
        bits = x.flatten().view(_BITS[x.itemsize])
        many = len(bits) // _COLUMNS * _COLUMNS
        columns = bits[:many].view(-1, _COLUMNS).sum(0, dtype=torch.int64)
        found.update(torch.cat([columns, bits[many:].long()]).cpu().numpy().tobytes())
    return found.digest()


def _shaped(part: Tensor, like: Tensor) -> Tensor:
    """In the shape of a parameter, and in its order of memory, which fused optimizers rely on."""
    strides = torch.empty_like(like, device="meta").stride()
    return part.as_strided(like.shape, strides, part.storage_offset())
