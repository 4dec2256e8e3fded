"""Activation checkpointing, under which layers would run a second time, unseen: here they run once.

What it saves, the sums of sgd/clipped.py need in any case: the inputs of all layers are kept for them,
next to the gradients of all their outputs; what else autograd keeps is let go before those are all
there. So a checkpointed part of a model is run like any other, and its result is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils import checkpoint


class _Once:
    """In the place of the function that runs a part again in the backward pass (use_reentrant=True)."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return function(*args)


def _before_and_after(*args: Any, **kwargs: Any) -> Iterator[None]:
    """In the place of what is done before and after a part of the model (use_reentrant=False)."""
    yield


@contextmanager
def run_once() -> Iterator[None]:
    """Within, torch.utils.checkpoint runs what it is given, and keeps what autograd asks for."""
    places = {
        "CheckpointFunction": _Once,
        "_checkpoint_without_reentrant_generator": _before_and_after,
    }
    before = {name: getattr(checkpoint, name) for name in places}
    try:
        for name, instead in places.items():
            setattr(checkpoint, name, instead)
        yield
    finally:
        for name, own in before.items():
            setattr(checkpoint, name, own)
