"""Which rows of a tensor belong to which example.

A layer sees rows, not examples: (B, T, d) with the examples first, (T, B, d) with time first, or
(B T, d) flattened either way. A `Layout` turns such a tensor into (B, T, d). More than one may fit the
sizes of a tensor, above all when B = T; then they are told apart by `belongs`, which is exact:

    Let G be the gradient of sum_i losses[i] with respect to the tensor, and G' that of
    sum_i v_i losses[i], for weights v_i = +-2^k drawn at random. If each row reaches the loss of its
    own example only, then G' = v G row by row, without any rounding, as powers of two are exact.
    Conversely, a row that reaches another loss j has a part of G' scaled by v_j: that shows unless
    v_j = v_i, which a fresh draw in the next proof makes ever less likely, or gradients cancel.

This proves the batch at hand; sgd/proofs.py says when it is proved again, and how that is done where
gradients go through float16, in which powers of two are not always exact. The same comparison finds
losses that mix examples, for which no layout is right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sourdine import rng

_PROPORTION = 1e6


@dataclass(frozen=True)
class Layout:
    """Where the examples are: in dimension `dim`; `outer` positions come before them in that dimension.

    dim 0, outer 1: (B, ...), also flattened (B T, ...). dim 1, outer 1: (T, B, ...). dim 0, outer T:
    flattened (T B, ...).
    """

    dim: int = 0
    outer: int = 1

    def rows(self, x: Tensor, examples: int, features: int = 1) -> Tensor:
        """(B, T, d), where the last `features` dimensions of x make up d."""
        d = math.prod(x.shape[x.dim() - features :])
        if self.outer > 1:
            x = x.reshape(self.outer, examples, *x.shape[1:]).movedim(1, 0)
        elif self.dim:
            x = x.movedim(self.dim, 0)
        return x.reshape(examples, -1, d)

    def split(self, x: Tensor, examples: int) -> Tensor:
        """(B, ...) where every example keeps all dimensions that a batch of one would have."""
        if self.outer > 1:
            return x.reshape(self.outer, examples, *x.shape[1:]).movedim(1, 0)
        if self.dim:
            return x.movedim(self.dim, 0).unsqueeze(self.dim + 1)
        return x.reshape(examples, -1, *x.shape[1:])

    def join(self, x: Tensor) -> Tensor:
        """The inverse of split."""
        if self.outer > 1:
            return x.movedim(0, 1).flatten(0, 1)
        if self.dim:
            return x.squeeze(self.dim + 1).movedim(0, self.dim)
        return x.flatten(0, 1)


def candidates(shape: torch.Size, examples: int, features: int = 1) -> tuple[Layout, ...]:
    """The layouts that fit a tensor whose last `features` dimensions are not rows, likeliest first."""
    lead = shape[: len(shape) - features]
    if not lead or math.prod(lead) == 0:
        return ()
    found = [Layout()] if lead[0] == examples else []
    found += [Layout(dim) for dim in range(1, len(lead)) if lead[dim] == examples and examples > 1]
    if not found or examples > 1:
        many, rest = divmod(lead[0], examples)
        if rest == 0 and many > 1:
            found += [Layout()] if examples == 1 else [Layout(), Layout(0, many)]
    return tuple(found)


def weights(examples: int, like: Tensor, *, powers: int = 64) -> Tensor:
    """Weights that tell examples apart: +-2^k with k below `powers`, dealt out anew for every proof.

    None is dealt twice before all were: up to 2 powers examples, all are different.
    """
    source = rng.secure()
    drawn: list[float] = []
    while len(drawn) < examples:
        deck = [sign * 2.0**k for k in range(powers) for sign in (1, -1)]
        dealt = [deck.pop(source.below(len(deck))) for _ in range(len(deck))]
        drawn += dealt[::-1] if drawn and dealt[0] == drawn[-1] else dealt  # neighbours differ
    return torch.tensor(drawn[:examples], dtype=like.dtype, device=like.device)


def belongs(plain: Tensor, weighted: Tensor, v: Tensor, *, half: bool = False) -> Tensor:
    """Whether G' = v G, for G and G' as (B, ...); see the top of this file.

    The bound on an example's error is relative to the norm of its gradient: 1e-4, and 0.05 where some
    layer runs in half precision, since some GPU kernels add up in a different order each time. Where
    gradients are next to nothing rounding prevails: they count as a share of the largest, but of one
    that is out of all proportion, behind which others could be mixed, as a share of a common one.
    """
    before = plain.reshape(len(v), -1).float()
    after = weighted.reshape(len(v), -1).float() / v[:, None].float()
    there = torch.isfinite(before)  # what is not finite will be dropped
    before, after = torch.where(there, before, 0.0), torch.where(there, after, 0.0)
    scale = before.abs().amax().clamp_min(1e-30)  # squares must be finite
    sizes, wrong = (before / scale).norm(dim=1), ((after - before) / scale).norm(dim=1)
    tolerance, floor = (5e-2, 1e-3) if half else (1e-4, 1e-7)
    some = sizes > 0
    place = (some.sum() - 1).clamp_min(0) // 2
    common = torch.where(some, sizes, torch.inf).sort().values.gather(0, place[None])
    least = torch.minimum(sizes.max(), _PROPORTION * common)
    kept: Tensor = wrong <= tolerance * sizes + floor * least
    return kept.all()
