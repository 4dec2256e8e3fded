"""A program of fixed shapes, recorded once on a GPU and replayed from then on (CUDA graphs).

A step of a language model starts thousands of kernels; the processor that starts them is slower than
the GPU that runs them. A recording is started as one.

Guarantee: a replay reads what is in the program's inputs at that moment and draws dropout from torch's
generator as it then is. It reads and writes the very memory it was recorded with: whoever replays makes
sure that parameters and sums have not moved (the key of a graph holds where they are; sgd/graphs.py).
What it returns is overwritten by the next replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class Place:
    """Where recordings that take turns are made: they share their memory, so they share a stream."""

    def __init__(self, device: torch.device) -> None:
        self.stream, self.pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()


class Replay:
    """program(owned, data, weights, sums), with owned and sums where they are now.

    What would ask the GPU for an answer raises an error before anything is recorded: a recording that
    breaks off leaves torch's generators and memory in disorder.
    """

    def __init__(
        self,
        program: Callable[..., Any],
        owned: list[Tensor],
        data: Any,
        weights: Tensor,
        sums: list[Tensor],
        place: Place,
    ) -> None:
        self._read = (program, owned, sums)  # what was recorded reads their memory, constants included
        leaves, structure = pytree.tree_flatten((data, weights))
        self._leaves = [x.clone() if isinstance(x, Tensor) else x for x in leaves]
        data, weights = pytree.tree_unflatten(self._leaves, structure)
        with torch.cuda.device(weights.device):
            before = torch.cuda.current_stream()
            place.stream.wait_stream(before)
            with torch.cuda.stream(place.stream):  # kernels are chosen and compiled beforehand
                program(owned, data, weights, sums)
                with _no_questions():
                    program(owned, data, weights, sums)
            before.wait_stream(place.stream)
            self._graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(self._graph, pool=place.pool, stream=place.stream):
                    self._answer = program(owned, data, weights, sums)
            except BaseException:
                torch.cuda.set_stream(before)  # which torch leaves undone
                raise

    def __call__(self, owned: list[Tensor], data: Any, weights: Tensor, sums: list[Tensor]) -> Any:
        for own, new in zip(self._leaves, pytree.tree_leaves((data, weights)), strict=True):
            if isinstance(new, Tensor):
                own.copy_(new, non_blocking=True)
        self._graph.replay()
        return self._answer


@contextmanager
def _no_questions() -> Iterator[None]:
    """Whatever waits for an answer of the GPU raises an error."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
