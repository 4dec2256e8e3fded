"""Activation checkpointing, under which layers would run a second time, unseen: here they run once.

What it saves, the sums of sgd/clipped.py need in any case: the inputs of all layers are kept for them,
next to the gradients of all their outputs; what else autograd keeps is let go before those are all
there. So a checkpointed part of a model is run like any other, and its result is the same. (Parameters
of a part none of whose inputs needs a gradient get none from torch if use_reentrant; here they do.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

from torch.utils import checkpoint

_HERE = ContextVar("checkpointed parts run once", default=False)
_LOCK, _ENTERED = Lock(), [0]  # threads that are within
_AGAIN: Any = checkpoint.CheckpointFunction
_AROUND: Callable[..., Iterator[None]] = checkpoint._checkpoint_without_reentrant_generator


class _Once:
    """In the place of the function that runs a part again in the backward pass (use_reentrant=True)."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return function(*args) if _HERE.get() else _AGAIN.apply(function, preserve, *args)


def _around(
    function: Any, preserve: bool, context_fn: Any, *args: Any, **kwargs: Any
) -> Iterator[None]:
    """In the place of what is done before and after a part of the model (use_reentrant=False)."""
    if _HERE.get():
        return _plainly(context_fn)
    return _AROUND(function, preserve, context_fn, *args, **kwargs)


def _plainly(context_fn: Any) -> Iterator[None]:
    forward, _ = context_fn()
    with forward:
        yield


@contextmanager
def run_once() -> Iterator[None]:
    """Within, in this thread, torch.utils.checkpoint runs what it is given as any other part."""
    own: Any = checkpoint
    with _LOCK:
        _ENTERED[0] += 1
        own.CheckpointFunction, own._checkpoint_without_reentrant_generator = _Once, _around
    token = _HERE.set(True)
    try:
        yield
    finally:
        _HERE.reset(token)
        with _LOCK:
            _ENTERED[0] -= 1
            if not _ENTERED[0]:
                own.CheckpointFunction, own._checkpoint_without_reentrant_generator = _AGAIN, _AROUND
