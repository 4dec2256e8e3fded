"""Per-example gradients of one parameter, without forming them where that is cheaper.

A parameter is used in a few ways, and each use gives every example i a gradient of a known form:

- `Outer`:  g_i = sum_t  left[i, t] (x) right[i, t]         a linear map, a convolution
- `Lookup`: g_i = sum_t  e(ids[i, t]) (x) right[i, t]       an embedding; e(k) is the k-th unit vector
- `Formed`: g_i, as a tensor                                a bias, a scale, anything else

`Gradients` holds all uses of one parameter. Its squared norm is that of their *sum*: a weight that is
used twice, or tied to another layer, has cross terms, and counting the uses one by one would let an
example contribute more than the clip. <Outer, Outer'> = sum_ts <left_t, left'_s> <right_t, right'_s>
(the ghost norm of Li et al. 2022); the other products follow in the same way.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

# Relative rounding of a sum of products in single precision, as a share of the sum of their absolute
# values. 2^-24 a step; blocked sums of the lengths met here stay far below this.
ROUNDING = 2.0**-22
_HALF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


@dataclass
class Outer:
    """g_i = sum_t left[i, t] (x) right[i, t], for left (B, T, m) and right (B, T, n)."""

    left: Tensor
    right: Tensor

    @property
    def forming_pays(self) -> bool:
        """Whether m n numbers an example cost less than two T x T matrices of inner products."""
        steps, m, n = self.left.shape[1], self.left.shape[2], self.right.shape[2]
        return steps > 1 and 2 * steps * steps >= m * n

    def form(self) -> Tensor:
        """Every example's gradient: (B, m, n)."""
        return wide(torch.bmm(self.left.transpose(1, 2), self.right.to(self.left.dtype)))

    def right_products(self, recent: Recent) -> Tensor:
        """right[i, t] . right[i, s]: (B, T, T)."""
        return recent.products(self.right)

    def add_sum_(self, into: Tensor, factors: Tensor) -> None:
        """into += sum_it factors[i] left[i, t] (x) right[i, t], as one matrix product."""
        left, right, scale = self.left, self.right, factors[:, None, None]
        if left.dtype != right.dtype:
            left, right = wide(left), wide(right)
        if left.shape[2] <= right.shape[2]:
            left = left * scale.to(left.dtype)
        else:
            right = right * scale.to(right.dtype)
        if all(x.stride(0) < x.stride(1) for x in (left, right)):  # time first: no copy in that order
            left, right = left.transpose(0, 1), right.transpose(0, 1)
        left, right, into = left.flatten(0, 1).t(), right.flatten(0, 1), into.view(len(into), -1)
        if left.dtype in _HALF and left.is_cuda:
            into += torch.mm(left, right, out_dtype=torch.float32)
        else:
            into.addmm_(wide(left), wide(right))

    def drop(self, rows: Tensor) -> None:
        """Makes rows (B, 1, 1) of examples zero, whatever they hold."""
        self.left, self.right = self.left.masked_fill(rows, 0), self.right.masked_fill(rows, 0)


@dataclass
class Lookup:
    """g_i = sum_t e(ids[i, t]) (x) right[i, t], for ids (B, T) and right (B, T, n)."""

    ids: Tensor
    right: Tensor


class Recent:
    """Inner products of a tensor with itself, kept for the next few uses: neighbours share tensors.

    Queries, keys and values of an attention have one input; both weights of an LSTM have one gradient.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[Tensor, Tensor]] = deque(maxlen=2)

    def products(self, x: Tensor) -> Tensor:
        for known, result in self._kept:
            if known is x or _same(known, x):
                return result
        result = products(x, x)
        self._kept.append((x, result))
        return result


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors, both alive, are the same stretch of memory seen in the same way."""
    place, shape = a.data_ptr() == b.data_ptr(), a.shape == b.shape
    return place and shape and a.stride() == b.stride() and a.dtype == b.dtype


class Gradients:
    """The gradients that B examples give one parameter, by all its uses together."""

    def __init__(self, shape: torch.Size) -> None:
        self.shape = shape
        self.outers: list[Outer] = []
        self.lookups: list[Lookup] = []
        self.formed: Tensor | None = None

    def add(self, use: Outer | Lookup | Tensor) -> None:
        if isinstance(use, Outer):
            self.outers.append(use)
        elif isinstance(use, Lookup):
            self.lookups.append(use)
        else:
            flat = wide(use).flatten(1) if use.dim() > 1 else wide(use)[:, None]
            self.formed = flat if self.formed is None else self.formed + flat

    def _merge(self) -> tuple[Outer | None, Lookup | None]:
        """One use of each kind: uses of the same kind are one use with more positions."""
        if len(self.outers) > 1:
            lefts, rights = zip(*((use.left, use.right) for use in self.outers), strict=True)
            self.outers = [Outer(torch.cat(lefts, 1), torch.cat(rights, 1))]
        if len(self.lookups) > 1:
            ids, rights = zip(*((use.ids, use.right) for use in self.lookups), strict=True)
            self.lookups = [Lookup(torch.cat(ids, 1), torch.cat(rights, 1))]
        form = self.formed is not None or (bool(self.outers) and self.outers[0].forming_pays)
        if self.outers and not self.lookups and form:
            self.add(self.outers.pop().form())
        return (*self.outers, None)[0], (*self.lookups, None)[0]

    def squares(self, recent: Recent | None = None) -> tuple[Tensor, Tensor]:
        """Squared norms (B,), rounded upwards, and the squares that bound what rounding can do.

        The second is (sum_t |left_t| |right_t|)^2 of the uses that are never formed: their products
        may cancel, so their error is relative to this and not to the norm.
        """
        outer, lookup = self._merge()
        total: Tensor | None = None
        spread: Tensor | None = None
        if self.formed is not None:
            total = square(self.formed)
        if lookup is not None:
            total = plus(total, square(_joined(lookup)))
        if outer is not None:
            product, spread = _ghost(outer, recent or Recent())
            total = plus(total, product)
            if lookup is not None:
                total = plus(total, 2 * _tied(outer, lookup))
        if lookup is not None and self.formed is not None:
            whole = self.formed.view(len(self.formed), self.shape[0], -1)
            rows = whole.gather(1, lookup.ids[..., None].expand(lookup.right.shape))
            total = plus(total, 2 * (rows * wide(lookup.right)).sum((1, 2)))
            if outer is not None:
                across = torch.bmm(wide(outer.left), whole) * wide(outer.right)
                total = plus(total, 2 * across.sum((1, 2)))
        if total is None:
            raise RuntimeError("a parameter without a use has no norm")
        if spread is None:
            spread = torch.zeros_like(total)
        return total.clamp_min(0) + ROUNDING * spread, spread * self._half()

    def _half(self) -> float:
        """Scaling in half precision rounds once more; its square, as a share of the spread."""
        return max((_HALF.get(use.left.dtype, 0.0) for use in self.outers), default=0.0) ** 2

    def add_sum_(self, into: Tensor, factors: Tensor) -> None:
        """Adds sum_i factors[i] g_i to `into`."""
        for use in self.outers:
            use.add_sum_(into, factors)
        for found in self.lookups:
            scaled = wide(found.right) * factors[:, None, None]
            into.view(len(into), -1).index_add_(0, found.ids.flatten(), scaled.flatten(0, 1))
        if self.formed is not None:
            into.view(-1).addmv_(self.formed.t(), factors)

    def drop(self, bad: Tensor) -> None:
        """Makes the gradients of some examples zero, whatever they were (they may be infinite)."""
        rows = bad[:, None, None]
        for use in self.outers:
            use.drop(rows)
        for found in self.lookups:
            found.right = found.right.masked_fill(rows, 0)
        if self.formed is not None:
            self.formed = self.formed.masked_fill(bad[:, None], 0)

    def each(self) -> Tensor:
        """All gradients, formed: (B, *shape). For checks, and for parameters made of parameters."""
        parts = [use.form().flatten(1) for use in self.outers]
        for found in self.lookups:
            right = wide(found.right)
            rows = found.ids[..., None].expand(right.shape)
            whole = right.new_zeros(len(right), self.shape[0], right.shape[2])
            parts.append(whole.scatter_add_(1, rows, right).flatten(1))
        if self.formed is not None:
            parts.append(self.formed)
        return sum(parts[1:], start=parts[0]).view(-1, *self.shape)


def wide(x: Tensor) -> Tensor:
    """At least single precision: norms and sums are never taken in half."""
    return x.float() if x.dtype in _HALF else x


def square(x: Tensor) -> Tensor:
    """Squared norms of the rows."""
    norms: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1)
    return norms.square()


def plus(total: Tensor | None, more: Tensor) -> Tensor:
    """A sum that may not have begun."""
    return more if total is None else total + more


def products(a: Tensor, b: Tensor) -> Tensor:
    """Inner products a[i, t] . b[i, s], in single precision: (B, T, S)."""
    if a.dtype in _HALF and b.dtype == a.dtype and a.is_cuda:
        return torch.bmm(a, b.transpose(1, 2), out_dtype=torch.float32)
    return torch.bmm(wide(a), wide(b).transpose(1, 2))


def _ghost(use: Outer, recent: Recent) -> tuple[Tensor, Tensor]:
    """The squared norm of an outer use, and its spread, from inner products only."""
    if use.left.shape[1] == 1:
        norm = square(wide(use.left)) * square(wide(use.right))
        return norm, torch.zeros_like(norm)
    lefts, rights = recent.products(use.left), use.right_products(recent)
    lengths = (lefts.diagonal(dim1=1, dim2=2) * rights.diagonal(dim1=1, dim2=2)).clamp_min(0).sqrt()
    norm = torch.bmm(lefts.flatten(1)[:, None], rights.flatten(1)[..., None])[:, 0, 0]
    return norm, lengths.sum(1).square()


def _joined(use: Lookup) -> Tensor:
    """Adds up what goes to the same row, so that distinct rows are left: (B, T, n), rest zero."""
    examples, steps = use.ids.shape
    in_order, order = use.ids.sort(dim=1)
    group = torch.zeros_like(order)
    group[:, 1:] = (in_order[:, 1:] != in_order[:, :-1]).cumsum(1)
    place = torch.empty_like(order).scatter_(1, order, group)
    place += torch.arange(examples, device=place.device)[:, None] * steps
    right = wide(use.right)
    sums = torch.zeros_like(right.flatten(0, 1)).index_add_(0, place.flatten(), right.flatten(0, 1))
    return sums.view(right.shape)


def _tied(outer: Outer, lookup: Lookup) -> Tensor:
    """<outer, lookup> = sum_ts left[s, ids[t]] <right_s, right'_t>: an embedding tied to a head."""
    size = (-1, outer.left.shape[1], -1)
    chosen = outer.left.gather(2, lookup.ids[:, None, :].expand(size))
    return (wide(chosen) * products(outer.right, lookup.right.to(outer.right.dtype))).sum((1, 2))
