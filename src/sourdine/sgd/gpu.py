"""What differs on a GPU: kernels (sgd/kernels.py) where Triton is, and products of known precision."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

import torch
from torch import Tensor

from sourdine.sgd.precision import single_precision


def kernels(x: Tensor) -> Any:
    """The module sgd/kernels.py, if it works where this tensor is, or None."""
    return _kernels() if x.device.type == "cuda" else None


@functools.cache
def _kernels() -> Any:
    there = torch.version.cuda is not None and importlib.util.find_spec("triton") is not None
    return importlib.import_module("sourdine.sgd.kernels") if there else None


@torch.library.custom_op("sourdine::product", mutates_args=())
def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, not in TF32, whatever torch was told: also inside a graph, whose other products may be."""
    with single_precision():
        return torch.matmul(a, b)


@product.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


@torch.library.custom_op("sourdine::add_halves", mutates_args=("into",))
def add_halves(into: Tensor, a: Tensor, b: Tensor) -> None:
    """into += a @ b for a and b in half precision: added up in single precision, in one pass."""
    if a.is_cuda:
        torch.ops.aten.addmm.dtype_out(into, a, b, torch.float32, out=into)
    else:
        into.addmm_(a.float(), b.float())


@add_halves.register_fake
def _(into: Tensor, a: Tensor, b: Tensor) -> None:
    return None
