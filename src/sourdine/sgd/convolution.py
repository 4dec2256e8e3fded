"""Convolutions: linear maps on the patches that the kernel sees.

The weight of a convolution gets sum_t G_t (x) patch_t from each example. Patches are as many times as
large as the input as the kernel is wide, so they are made only where they must be:

- norms need patch_t . patch_s = sum_j x[t a + j b] . x[s a + j b] (in one dimension, with stride a and
  dilation b): sums of a few entries of the inner products of the input with itself,
- the clipped sum is torch's own weight gradient, of gradients scaled by the clip factors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sourdine.sgd.layout import Layout
from sourdine.sgd.rounding import wide
from sourdine.sgd.rules import Kwargs, signature, write
from sourdine.sgd.tape import Function, Tape, Use, rule
from sourdine.sgd.uses import Outer, Recent

Pair = tuple[int, int]


class Patches(Outer):
    """An outer use whose right side, the patches, is made only when it is asked for.

    x (N, inputs, *places), padded already; left (N, positions, outputs).
    """

    def __init__(self, left: Tensor, x: Tensor, kernel: Pair, stride: Pair, dilation: Pair) -> None:
        self.left, self.x = left, x
        self.kernel, self.stride, self.dilation = kernel, stride, dilation
        self.inputs = x.shape[1] * kernel[0] * kernel[1]

    @cached_property
    def right(self) -> Tensor:  # type: ignore[override]
        x = self.x.unsqueeze(2) if self.x.dim() == 3 else self.x
        seen = functional.unfold(x, self.kernel, dilation=self.dilation, stride=self.stride)
        return seen[..., : self.left.shape[1]].transpose(1, 2)

    @property
    def forming_pays(self) -> bool:
        steps, m, n = self.left.shape[1], self.left.shape[2], self.inputs
        return steps > 1 and 2 * steps * steps >= m * n

    def right_products(self, recent: Recent) -> Tensor:
        if self.x.dim() == 4:
            return super().right_products(recent)
        steps, (_, stride), (_, dilation) = self.left.shape[1], self.stride, self.dilation
        whole = recent.products(self.x.transpose(1, 2))
        last = (steps - 1) * stride + 1
        total = whole[:, :last:stride, :last:stride].clone()
        for start in range(dilation, dilation * self.kernel[1], dilation):
            end = start + last
            total += whole[:, start:end:stride, start:end:stride]
        return total

    def add_sum_(self, into: Tensor, factors: Tensor) -> None:
        flat = self.x.dim() - 2
        left = wide(self.left) * factors[:, None, None]
        x = wide(self.x)
        kernel = self.kernel[-flat:]
        places = [
            (size - step * (width - 1) - 1) // jump + 1
            for size, width, step, jump in zip(
                x.shape[2:], kernel, self.dilation[-flat:], self.stride[-flat:], strict=True
            )
        ]
        gradient = left.transpose(1, 2).reshape(len(x), -1, *places)
        weight = into.view(into.shape[0], x.shape[1], *kernel)
        more: Tensor = torch.ops.aten.convolution_backward(
            gradient, x, weight, None, self.stride[-flat:], (0,) * flat, self.dilation[-flat:],
            False, (0,) * flat, 1, (False, True, False),
        )[1]  # fmt: skip
        into += more.view_as(into)

    def drop(self, rows: Tensor) -> None:
        self.left = self.left.masked_fill(rows, 0)
        self.x = self.x.masked_fill(rows.view(-1, *[1] * (self.x.dim() - 1)), 0)
        self.__dict__.pop("right", None)


@rule(torch.conv1d, torch.conv2d)
def _convolution(tape: Tape, func: Function, args: Sequence[Any], kwargs: Kwargs) -> Any:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    x, weight, bias, stride, padding, dilation, groups = signature(names, args, kwargs)
    if tape.tracks(x) or x.dim() != weight.dim():
        return NotImplemented
    flat, padding, groups = weight.dim() - 2, padding or 0, groups or 1
    steps, gaps = _pair(stride or 1, flat), _pair(dilation or 1, flat)

    def run() -> Tensor:
        given = (x, tape.free(weight), tape.free(bias), steps[-flat:], padding, gaps[-flat:], groups)
        result: Tensor = func(*given)
        return result

    def uses(gradient: Tensor, layout: Layout) -> Iterable[tuple[Tensor, Use]]:
        examples = tape.examples or 1
        g = gradient.flatten(2)  # (N, outputs, positions)
        if tape.tracks(weight):
            padded = _padded(x.detach().to(g.dtype), weight, padding, gaps)
            kernel = (1, *weight.shape[2:])[-2:]
            use: Outer = Patches(g.transpose(1, 2), padded, kernel, steps, gaps)
            if groups > 1:
                seen = use.right.transpose(1, 2)
                parts = torch.matmul(g.unflatten(1, (groups, -1)), seen.unflatten(1, (groups, -1)).mT)
                yield weight, layout.rows(parts, examples, 3).sum(1).view(examples, *weight.shape)
            elif layout == Layout() and len(x) == examples:
                yield weight, use
            else:
                yield weight, Outer(*(layout.rows(y, examples) for y in (use.left, use.right)))
        if bias is not None and tape.tracks(bias):
            yield bias, layout.rows(g.sum(2), examples).sum(1)

    call = (func, args, kwargs)
    return write(tape, call, run, x, (weight, bias), uses, features=x.dim() - 1)


def _padded(x: Tensor, weight: Tensor, padding: Any, dilation: Pair) -> Tensor:
    """The input with its zeros around it."""
    sizes = weight.shape[2:]
    if padding == "same":
        total = [step * (size - 1) for step, size in zip(dilation[-len(sizes) :], sizes, strict=True)]
        sides = [(both // 2, both - both // 2) for both in total]
    else:
        ends = _pair(0 if padding == "valid" else padding, len(sizes))[-len(sizes) :]
        sides = [(end, end) for end in ends]
    flat = [end for side in reversed(sides) for end in side]
    return functional.pad(x, flat) if any(flat) else x


def _pair(value: Any, dims: int) -> Pair:
    """A setting of a convolution for two dimensions; in one dimension the first is 1 and not used."""
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    values = values * dims if len(values) < dims else values
    return (1, values[0]) if dims == 1 else (values[0], values[1])
