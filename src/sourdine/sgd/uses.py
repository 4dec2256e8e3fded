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

from collections import defaultdict, deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sourdine.sgd.gpu import add_halves, kernels
from sourdine.sgd.rounding import (
    FEATURE,
    LOST,
    ROUNDING,
    SCALED,
    add_product_,
    exactly,
    padded,
    plus,
    products,
    square,
    summed,
    times,
    wide,
)

_SMALL = 2**14  # numbers of an example
ALIGNED = 64  # features that a GPU's products of halves take at a time


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
        """Every example's gradient: (B, m, n), with the features of zeros that were added."""
        return wide(torch.bmm(self.left.transpose(1, 2), self.right.to(self.left.dtype)))

    def right_products(self, recent: Recent) -> Tensor:
        """right[i, t] . right[i, s]: (B, T, T)."""
        return recent.products(self.right)

    def add_sum_(self, into: Tensor, factors: Tensor) -> None:
        """into += sum_it factors[i] left[i, t] (x) right[i, t], as one matrix product."""
        left, right, scale = self.left, self.right, factors[:, None, None]
        if left.dtype != right.dtype or left.dtype not in SCALED:
            left, right = wide(left), wide(right)
        if left.shape[2] <= right.shape[2]:
            left = times(left, scale)
        else:
            right = times(right, scale)
        if all(x.stride(0) < x.stride(1) for x in (left, right)):  # time first: no copy in that order
            left, right = left.transpose(0, 1), right.transpose(0, 1)
        left, right, into = left.flatten(0, 1).t(), right.flatten(0, 1), into.view(len(into), -1)
        m, n = into.shape  # without features of zeros
        if left.dtype in SCALED and left.is_cuda and (m, n) == (len(left), right.shape[1]):
            add_halves(into, left, right)
        elif left.dtype in SCALED and left.is_cuda:  # cuBLAS is slower without those zeros
            into += torch.mm(left, right, out_dtype=torch.float32)[:m, :n]
        else:
            add_product_(into, wide(left)[:m], wide(right)[:, :n])

    def aligned(self) -> Outer:
        """With features of zeros, so that products of halves on a GPU run at full speed."""
        kind = self.left.dtype
        if not self.left.is_cuda or kind not in SCALED or self.right.dtype != kind:
            return self
        return Outer(
            *(x if x.shape[2] < ALIGNED else padded(x, ALIGNED) for x in (self.left, self.right))
        )

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
    memory = a.untyped_storage()._cdata == b.untyped_storage()._cdata  # also while a graph is traced
    seen = [(x.storage_offset(), x.shape, x.stride(), x.dtype) for x in (a, b)]
    return memory and seen[0] == seen[1]


@dataclass
class Products:
    """A squared norm that is made of inner products, not yet added up.

    Products may cancel, so what rounding can do to them is a share of the square of their length,
    sum_t |left_t| |right_t|, and not of the norm; half is the share of the length that scaling can add.
    """

    norms: Tensor  # (B, parts)
    length: Tensor  # (B,)
    share: float
    half: float


class Gradients:
    """The gradients that B examples give one parameter, by all its uses together."""

    def __init__(self, shape: torch.Size) -> None:
        self.shape = shape
        self.outers: list[Outer] = []
        self.lookups: list[Lookup] = []
        self.formed: Tensor | None = None
        self._merged = False

    def add(self, use: Outer | Lookup | Tensor) -> None:
        self._merged = False
        if isinstance(use, Outer):
            self.outers.append(use)
        elif isinstance(use, Lookup):
            self.lookups.append(use)
        else:
            flat = wide(use).flatten(1) if use.dim() > 1 else wide(use)[:, None]
            self.formed = flat if self.formed is None else self.formed + flat

    def _merge(self) -> tuple[Outer | None, Lookup | None]:
        """One use of each kind: uses of the same kind are one use with more positions."""
        if self._merged:
            return (*self.outers, None)[0], (*self.lookups, None)[0]
        if len(self.outers) > 1:
            lefts = [use.left[..., : self.shape[0]] for use in self.outers]  # without features of zeros
            rights = [use.right[..., : self.shape[1:].numel()] for use in self.outers]
            self.outers = [Outer(torch.cat(lefts, 1), torch.cat(rights, 1))]
        if len(self.lookups) > 1:
            ids, rights = [use.ids for use in self.lookups], [use.right for use in self.lookups]
            self.lookups = [Lookup(torch.cat(ids, 1), torch.cat(rights, 1))]
        self.lookups = [_joined(use) for use in self.lookups]
        form = self.formed is not None or (bool(self.outers) and self.outers[0].forming_pays)
        if self.outers and not self.lookups and form:
            self.add(self._form(self.outers.pop()))
        self.outers = [use.aligned() for use in self.outers]
        self._merged = True
        return (*self.outers, None)[0], (*self.lookups, None)[0]

    def _form(self, use: Outer) -> Tensor:
        return use.form()[:, : self.shape[0], : self.shape[1:].numel()]

    @property
    def small(self) -> bool:
        """Whether there is only a tensor of few numbers for each example, as for biases."""
        self._merge()
        formed = self.formed is not None and self.formed.shape[1] <= _SMALL
        return formed and not self.outers and not self.lookups

    @property
    def alone(self) -> Outer | None:
        """An outer use, where there is nothing else."""
        outer, lookup = self._merge()
        return outer if lookup is None and self.formed is None else None

    def products(self, recent: Recent) -> Products | None:
        """The norm by inner products, where there is nothing else but an outer use."""
        outer = self.alone
        return None if outer is None else self._products(outer, recent)

    def _products(self, outer: Outer, recent: Recent) -> Products:
        m, n = self.shape[0], self.shape[1:].numel()
        norms, length, off = _ghost(outer, m, n, recent)
        half = SCALED.get(outer.left.dtype, 0.0)  # scaling in half precision rounds once more
        return Products(norms, length, ROUNDING + (m + n) * FEATURE + off, half)

    def squares(self, recent: Recent | None = None) -> tuple[Tensor, Tensor | None]:
        """Squared norms (B,), rounded upwards, and squares that bound what scaling can do, if it does.

        What is formed here is also what is added up later; its own rounding does no harm.
        """
        outer, lookup = self._merge()
        several = lookup is not None and (outer is not None or self.formed is not None)
        total: Tensor | None = None
        length: Tensor | None = None
        half: Tensor | None = None
        share = ROUNDING
        if self.formed is not None:
            total = square(self.formed)
            length = total.sqrt() if several else None
        if lookup is not None:
            total = plus(total, square(lookup.right))
            if several:
                length = plus(length, torch.linalg.vector_norm(lookup.right, dim=2).sum(1))
        if outer is not None:
            found = self._products(outer, recent or Recent())
            total, length = plus(total, summed(found.norms)), plus(length, found.length)
            share = found.share
            half = (found.length * found.half).square() if found.half else None
            if lookup is not None:
                total = plus(total, 2 * _tied(outer, lookup))
        if lookup is not None and self.formed is not None:
            whole = self.formed.view(len(self.formed), self.shape[0], -1)
            rows = whole.gather(1, lookup.ids[..., None].expand(lookup.right.shape))
            total = plus(total, 2 * summed(rows * lookup.right))
            if outer is not None:
                _, m, n = whole.shape
                across = exactly(wide(outer.left[..., :m]), whole) * wide(outer.right[..., :n])
                total = plus(total, 2 * summed(across))
        if total is None:
            raise RuntimeError("a parameter without a use has no norm")
        if length is not None:
            total = total.clamp_min(0) + share * length.square()
        return total, half

    def add_sum_(self, into: Tensor, factors: Tensor) -> None:
        """Adds sum_i factors[i] g_i to `into`."""
        if not into.is_contiguous():  # channels last, say
            total = torch.zeros(into.shape, dtype=into.dtype, device=into.device)
            self.add_sum_(total, factors)
            into += total
            return
        for use in self.outers:
            use.add_sum_(into, factors)
        for found in self.lookups:
            scaled = wide(found.right) * factors[:, None, None]
            into.view(len(into), -1).index_add_(0, found.ids.flatten(), scaled.flatten(0, 1))
        if self.formed is not None:
            add_product_(into.view(-1, 1), self.formed.t(), factors[:, None])

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
        parts = [self._form(use).flatten(1) for use in self.outers]
        for found in self.lookups:
            right = wide(found.right)
            rows = found.ids[..., None].expand(right.shape)
            whole = right.new_zeros(len(right), self.shape[0], right.shape[2])
            parts.append(whole.scatter_add_(1, rows, right).flatten(1))
        if self.formed is not None:
            parts.append(self.formed)
        return sum(parts[1:], start=parts[0]).view(-1, *self.shape)


def _ghost(use: Outer, m: int, n: int, recent: Recent) -> tuple[Tensor, Tensor, float]:
    """The squared norm of an outer use of m by n features, from inner products only, in parts.

    Also its length, and what the parts can be off by, as a share of the length's square.
    """
    off = 0.0
    if use.left.shape[1] == 1:
        left, right = square(wide(use.left))[:, None], square(wide(use.right))[:, None]
        norms = left * right
    else:
        lefts, rights = recent.products(use.left), use.right_products(recent)
        if lefts.dtype == torch.float32 and (quick := kernels(lefts)):
            norms, lengths = quick.contracted(lefts, rights, m * LOST, n * LOST)
            off = quick.additions(lefts.shape[1]) * 2.0**-24
            return norms, lengths.sum(1) * (1 + off), off
        left, right = lefts.diagonal(dim1=1, dim2=2), rights.diagonal(dim1=1, dim2=2)
        norms = summed(lefts * rights)[:, None]  # torch's sum is exact enough, its matrix product not
    lengths = left.clamp_min(m * LOST).sqrt() * right.clamp_min(n * LOST).sqrt()
    return norms, lengths.sum(1), off


def at_once(found: Mapping[str, Gradients]) -> dict[str, Products]:
    """Norms by inner products of parameters that are used alike, where a kernel makes many at once."""
    alike = defaultdict[Hashable, list[tuple[str, Outer]]](list)
    for name, grads in found.items():
        outer = grads.alone
        if outer is not None and (quick := kernels(outer.left)) and quick.fits(outer.left, outer.right):
            alike[grads.shape, outer.left.shape, outer.right.shape].append((name, outer))
    made = dict[str, Products]()
    for group in alike.values():
        quick = kernels(group[0][1].left)
        for start in range(0, len(group), quick.GHOSTS):
            names, uses = zip(*group[start : start + quick.GHOSTS], strict=True)
            shape, steps = found[names[0]].shape, uses[0].left.shape[1]
            m, n = shape[0], shape[1:].numel()
            given = [use.left for use in uses], [use.right for use in uses]
            norms, lengths = quick.ghosts(*given, m * LOST, n * LOST)
            off = quick.ghost_additions(steps) * 2.0**-24
            share, half = ROUNDING + (m + n) * FEATURE + off, SCALED[uses[0].left.dtype]
            lengths = lengths.sum(2) * (1 + off)
            parts = zip(names, norms.unbind(1), lengths.unbind(1), strict=True)
            made |= {name: Products(norm, length, share, half) for name, norm, length in parts}
    return made


def _joined(use: Lookup) -> Lookup:
    """Adds up what goes to the same row, so that distinct rows are left; the rest is zero."""
    return Lookup(*joined(use.ids, wide(use.right)))


# One operation for compilers, which would spend minutes on a sort.
@torch.library.custom_op("sourdine::joined", mutates_args=())
def joined(ids: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct ids of each example, and the sums of their rows."""
    examples, steps = ids.shape
    in_order, order = ids.contiguous().sort(dim=1)
    group = torch.zeros_like(order)
    group[:, 1:] = (in_order[:, 1:] != in_order[:, :-1]).cumsum(1)
    place = torch.empty_like(order).scatter_(1, order, group)
    place += torch.arange(examples, device=place.device)[:, None] * steps
    flat = right.contiguous().flatten(0, 1)
    sums = torch.zeros_like(flat).index_add_(0, place.flatten(), flat)
    return torch.zeros_like(in_order).scatter_(1, group, in_order), sums.view(right.shape)


@joined.register_fake
def _(ids: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty(ids.shape, dtype=ids.dtype, device=ids.device), torch.empty(
        right.shape, dtype=right.dtype, device=right.device
    )


def _tied(outer: Outer, lookup: Lookup) -> Tensor:
    """<outer, lookup> = sum_ts left[s, ids[t]] <right_s, right'_t>: an embedding tied to a head."""
    size = (-1, outer.left.shape[1], -1)
    chosen = outer.left.gather(2, lookup.ids[:, None, :].expand(size))
    right = wide(outer.right[..., : lookup.right.shape[2]])
    return summed(wide(chosen) * products(right, lookup.right))
