"""Whether the kernels of sgd/kernels.py can be run: they need a GPU of CUDA, and Triton."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

import torch
from torch import Tensor


def kernels(x: Tensor) -> Any:
    """The module sgd/kernels.py, if it works where this tensor is, or None."""
    return _kernels() if x.device.type == "cuda" else None


@functools.cache
def _kernels() -> Any:
    there = torch.version.cuda is not None and importlib.util.find_spec("triton") is not None
    return importlib.import_module("sourdine.sgd.kernels") if there else None
