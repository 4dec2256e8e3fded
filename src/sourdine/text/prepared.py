"""What is settled about a run before anything is charged: its records, its model, its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sourdine.data.corpus import Corpus
from sourdine.data.fetch import fetched
from sourdine.data.owner import Findings
from sourdine.errors import InputError
from sourdine.text.models import BYTES, Pooling
from sourdine.text.plan import Plan, Situation


@dataclass(frozen=True)
class Prepared:
    """All that is settled before anything is charged."""

    train: Corpus
    test: Corpus | None
    findings: Findings
    encoder: Any
    tokenizer: Any
    pooling: Pooling
    plan: Plan
    units: int
    situation: Situation


def default_model() -> str:
    """The fetched MiniLM if it is there, else the built-in model on bytes; never a download."""
    found = fetched("minilm")
    return BYTES if found is None else str(found)


def device_of(name: str | None) -> torch.device:
    """A device that is there."""
    try:
        found = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=found)
    except (RuntimeError, AssertionError):
        raise InputError(f"there is no device {name!r} on this machine; cpu always is.") from None
    return found


def units_of(corpus: Corpus) -> int:
    """How many records there are, or persons where they are known."""
    return len(corpus) if corpus.users is None else len(set(corpus.users))
