"""What is settled about a run before anything is charged: its records, its model, its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sourdine.data.corpus import Corpus
from sourdine.data.fetch import fetched
from sourdine.data.owner import Findings
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


def units_of(corpus: Corpus) -> int:
    """How many records there are, or persons where they are known."""
    return len(corpus) if corpus.users is None else len(set(corpus.users))
