"""A program of fixed shapes, recorded once on a GPU and replayed from then on (CUDA graphs).

A step of a language model starts thousands of kernels; the processor that starts them is slower than
the GPU that runs them. A recording is started as one.

Guarantee: a replay reads what is in the program's inputs at that moment and draws dropout from torch's
generator as it then is. It reads and writes the very memory it was recorded with: whoever replays makes
sure that parameters and sums have not moved (the key of a graph holds where they are; sgd/graphs.py).
What it returns is overwritten by the next replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class Replay:
    """program(owned, data, weights, sums), with owned and sums where they are now."""

    def __init__(
        self,
        program: Callable[..., Any],
        owned: list[Tensor],
        data: Any,
        weights: Tensor,
        sums: list[Tensor],
        pool: Any,
    ) -> None:
        self._read = (program, owned, sums)  # what was recorded reads their memory, constants included
        leaves, structure = pytree.tree_flatten((data, weights))
        self._leaves = [x.clone() if isinstance(x, Tensor) else x for x in leaves]
        data, weights = pytree.tree_unflatten(self._leaves, structure)
        with torch.cuda.device(weights.device):
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):  # kernels are chosen and compiled before it is recorded
                program(owned, data, weights, sums)
            torch.cuda.current_stream().wait_stream(aside)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, pool=pool):
                self._answer = program(owned, data, weights, sums)

    def __call__(self, owned: list[Tensor], data: Any, weights: Tensor, sums: list[Tensor]) -> Any:
        for own, new in zip(self._leaves, pytree.tree_leaves((data, weights)), strict=True):
            if isinstance(new, Tensor):
                own.copy_(new, non_blocking=True)
        self._graph.replay()
        return self._answer
