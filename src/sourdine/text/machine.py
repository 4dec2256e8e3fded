"""The machine that a run trains on, and the settings under which it can be repeated there.

A run that was killed goes on from its last checkpoint: the steps since then are run again with the same
lots and the same noise. They cost nothing only if they are the same to the last bit (sgd/agreement.py).
A CPU repeats itself; a GPU has to be told to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from sourdine.errors import InputError
from sourdine.sgd.graphs import Compiler, unchanging
from sourdine.sgd.precision import fast_products


def device_of(name: str | None) -> torch.device:
    """A device that is there."""
    try:
        found = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=found)
    except (RuntimeError, AssertionError):
        raise InputError(f"there is no device {name!r} on this machine; cpu always is.") from None
    return found


def graphs_on(device: torch.device) -> Compiler | None:
    """How batches are made there: by graphs on a GPU, which starts kernels slower than it runs them.

    As they are traced: a compiler would take longer than most runs, and could not be repeated.
    """
    return unchanging if device.type == "cuda" else None


def computed_on(device: torch.device) -> str:
    """How the clipped sums of a run are made there, for its certificate."""
    how = "operation by operation" if graphs_on(device) is None else "by one graph a batch, as traced"
    return f"{how}, on {device.type}"


def multiplies_halves(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 faster than single precision."""
    if device.type != "cpu":
        return device.type == "cuda"
    known = getattr(torch.cpu, "_is_avx512_bf16_supported", None)  # torch has no public name for it
    return bool(known is not None and known())


def halves(device: torch.device) -> AbstractContextManager[None]:
    """Layers run in bfloat16 where that is faster; norms and sums keep single precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=multiplies_halves(device))


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """On a GPU: algorithms that repeat themselves, and fast products of matrices.

    Norms and clipped sums keep full precision whatever is set here (sgd/clipped.py). What torch was
    told before, for the whole process, is put back afterwards.
    """
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch asks for it
    asked = torch.are_deterministic_algorithms_enabled()
    mild = torch.is_deterministic_algorithms_warn_only_enabled()
    filling = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    chosen, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
    torch.use_deterministic_algorithms(True)
    # A help for finding mistakes, at a price: nothing here reads memory before it is written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        with fast_products():
            yield
    finally:
        torch.backends.cudnn.benchmark = chosen
        torch.use_deterministic_algorithms(asked, warn_only=mild)
        torch.utils.deterministic.fill_uninitialized_memory = filling  # type: ignore[attr-defined]
