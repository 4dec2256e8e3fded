"""What the planner goes by beside the data: the minutes, how long texts usually are, what was chosen.

The choice of what trains, of lots and of steps is released. So it may depend on the number of units,
on public texts and on the speed of this machine, and never on the lengths of the private texts. Those
enter the estimate of time that the owner sees (privately=True), which nobody else gets.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from sourdine import checks
from sourdine.data.corpus import Corpus, read_corpus
from sourdine.errors import InputError
from sourdine.sgd.processes import Processes
from sourdine.text.examples import lengths
from sourdine.text.plan import Plan
from sourdine.text.prepared import Prepared
from sourdine.text.progress import Progress
from sourdine.text.strategies import STRATEGIES

MINUTES = 10.0
USUAL = 32
"""Tokens of a text, where nothing is known of them."""
_SAMPLE = 500
_AS_TOKENS = 16
"""What a text costs beside its tokens, in tokens: measured with MiniLM on a CPU."""
_BESIDE = 15.0
"""Seconds for all but training and reading: imports, comparisons with brute force, the report."""


def limit(minutes: float | None, device: torch.device) -> float | None:
    """Minutes that the planner keeps to; None for no limit."""
    if minutes is None:
        return MINUTES if device.type == "cpu" else None
    if minutes == math.inf:
        return None
    return checks.positive("minutes", minutes)


def read_public(given: Any, like: Corpus) -> Corpus:
    """Public texts of the same columns as the records."""
    found = read_corpus(given, text=list(like.text), label=None, labelled=False)
    if not found.texts[0]:
        raise InputError("there are no texts in public= (--public); leave it out.")
    return found


def usual_length(
    tokenizer: Any, encoder: Any, most: int | None, public: Sequence[Sequence[str]] | None
) -> int:
    """Tokens that the planner takes a text to have: known without the records."""
    usual = USUAL if public is None else int(statistics.median(lengths(tokenizer, public)))
    longest = getattr(encoder.config, "max_position_embeddings", None) or usual
    return max(1, min(usual, most or usual, int(longest)))


def chosen_by_speed(plan: Plan) -> dict[str, Any]:
    """The choices that depend on the machine's speed, as JSON keeps them for a run that goes on."""
    return {
        "trains": [plan.strategy.name, asdict(plan.strategy)],  # type: ignore[call-overload]
        "lot_size": plan.lot_size,
        "steps": plan.steps,
        "learning_rate": plan.learning_rate,
    }


def noted(folder: Path | None) -> dict[str, Any]:
    """What was chosen when the run in this folder began; a busier machine would get another plan."""
    found = {} if folder is None else dict(Progress(folder, Processes()).state.get("plan", {}))
    if found:
        name, fields = found["trains"]
        found["trains"] = STRATEGIES[name](**fields)
    return found


def expected_seconds(ready: Prepared, tested: int, *, privately: bool = False) -> float:
    """How long the run takes on this machine, about.

    tested: how many test records were given. privately: by the lengths of the records, for the owner
    alone; else by those that the planner takes texts to have.
    """
    plan, units, longer = ready.plan, ready.situation.units, 1.0
    if privately:
        sample = ready.train.take(range(0, len(ready.train), max(1, len(ready.train) // _SAMPLE)))
        found = lengths(ready.tokenizer, sample.texts)
        tokens = sum(min(x, plan.max_length) for x in found) / len(found)
        longer = (tokens + _AS_TOKENS) / (ready.watch.tokens + _AS_TOKENS)
    read = plan.held_out * units + tested  # by the share: how many are held out is private
    trained = 0.0
    if plan.strategy.name == "head":
        read += (1 - plan.held_out) * units
    else:
        trained = plan.steps * plan.lot_size * ready.watch.training(plan.strategy)
    return _BESIDE + longer * (trained + read * ready.watch.reading())
