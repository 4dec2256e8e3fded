"""Sums and products whose rounding is bounded, in single precision at least.

Norms of contributions are rounded upwards by a bound on what was lost (sgd/uses.py), so sums of squares
and of products are made in ways that have one: few additions for any term, none in half precision.
Matrix products (`exactly`, `products`) have that of ROUNDING and FEATURE, which is measured.

Where a compiler may take terms in any order (`any_order`), sums are taken by sixteens, whose bound
holds for every order (Higham 2002, chapter 4: n additions are off by at most n u of the sum of absolute
values, u = 2^-24).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

from sourdine.sgd.gpu import product

# Rounding of inner products and of sums of them in single precision, as a share of the sum of absolute
# values: 2^-22, and 2^-24 more for every 1024 features. The worst that was measured, all of them equal,
# stays below this and the margin of sgd/clipping.py together.
ROUNDING = 2.0**-22
FEATURE = 2.0**-34
# Squares below 2^-126 are lost, for each feature; a share ROUNDING of this makes up for it.
LOST = 2.0**-126 / ROUNDING
HALF = (torch.bfloat16, torch.float16)
# Scaling rounds once to bfloat16. Scaled down to float16, small gradients would fall among numbers with
# few digits: there everything is added up in single precision.
SCALED = {torch.bfloat16: 2.0**-8}
_STRETCH = 256
_MANY = 4096
_ANY_ORDER = ContextVar("any order", default=False)
_FEW = 16
_LEVEL = 2.0**-20  # of a level of sums by sixteens: 15 additions, each off by 2^-24 at most


@contextmanager
def any_order() -> Iterator[None]:
    """While a graph is traced: its compiler may add terms up one after the other, or as it likes."""
    token = _ANY_ORDER.set(True)
    try:
        yield
    finally:
        _ANY_ORDER.reset(token)


def wide(x: Tensor) -> Tensor:
    """At least single precision: norms and sums are never taken in half."""
    return x.float() if x.dtype in HALF else x


def square(x: Tensor) -> Tensor:
    """Squared norms of the rows.

    By short stretches: torch's kernel for the CPU adds one by one, and loses 1e-3 of 10^7 numbers.
    """
    flat = x.flatten(1)
    if _ANY_ORDER.get():
        return up(flat.square())
    whole = 0 if flat.is_cuda else flat.shape[1] // _STRETCH * _STRETCH
    total: Tensor = torch.linalg.vector_norm(flat[:, whole:], dim=1).square()
    if whole:
        stretches = flat[:, :whole].unflatten(1, (-1, _STRETCH))
        total += torch.linalg.vector_norm(stretches, dim=2).square().sum(1)
    return total


def summed(terms: Tensor) -> Tensor:
    """Sums of the terms of each row, rounded upwards where a compiler may take them in any order."""
    flat = terms.flatten(1)
    if not _ANY_ORDER.get():
        return flat.sum(1)
    # Positive parts less negative ones would cancel; sizes bound what any order can be off by.
    total, levels = _by_sixteens(flat)
    return total + levels * _LEVEL * up(flat.abs())


def up(terms: Tensor) -> Tensor:
    """The same for terms that are not negative."""
    if not _ANY_ORDER.get():
        return terms.sum(1)
    total, levels = _by_sixteens(terms)
    return total * (1 + levels * _LEVEL)


def _by_sixteens(x: Tensor) -> tuple[Tensor, int]:
    """Sums of rows by sixteens, and these by sixteens: no term goes through many additions."""
    levels = 0
    while x.shape[1] > 1:
        x = padded(x, _FEW).view(len(x), _FEW, -1).sum(1)
        levels += 1
    return x[:, 0], levels


def padded(x: Tensor, to: int) -> Tensor:
    """With zeros in the last dimension, up to a multiple."""
    more = -x.shape[-1] % to
    padded: Tensor = nn.functional.pad(x, (0, more)) if more else x
    return padded


def times(x: Tensor, scale: Tensor) -> Tensor:
    """x * scale, rounded once to what x is made of."""
    if _ANY_ORDER.get() and not x.is_contiguous():  # compilers lose the order of `out`
        return (wide(x) * scale).to(x.dtype)
    return torch.mul(x, scale, out=torch.empty_like(x))


def exactly(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in full precision: outside of graphs that is seen to around all of it (sgd/clipped.py)."""
    if _ANY_ORDER.get() and a.is_cuda:
        found: Tensor = product(a, b)
        return found
    return torch.matmul(a, b)


def add_product_(into: Tensor, a: Tensor, b: Tensor) -> None:
    """into += a @ b, in full precision."""
    if _ANY_ORDER.get() and a.is_cuda:
        into += exactly(a, b)
    else:
        into.addmm_(a, b)


def plus(total: Tensor | None, more: Tensor) -> Tensor:
    """A sum that may not have begun."""
    return more if total is None else total + more


def products(a: Tensor, b: Tensor) -> Tensor:
    """Inner products a[i, t] . b[i, s], in single precision: (B, T, S).

    Many features are taken in parts: matrix products may add them one by one.
    """
    many = a.shape[2] > _MANY
    parts = zip(a.split(_MANY, 2), b.split(_MANY, 2), strict=True) if many else iter([(a, b)])
    if a.dtype in HALF and b.dtype == a.dtype and a.is_cuda:
        found = (torch.bmm(x, y.transpose(1, 2), out_dtype=torch.float32) for x, y in parts)
    else:
        found = (exactly(wide(x), wide(y).transpose(1, 2)) for x, y in parts)
    total = next(found)
    for more in found:
        total += more
    return total
