"""The planner: how to train, chosen without looking at a record.

It sees the number of units (public under zero-out, declared under add-remove), the budget, the model
and the machine. Its rules come from the figures in benchmarks/text and from published recipes; every
choice carries its reason and can be overridden.

What the rules rest on: at a given budget the noise in an averaged gradient is about

    clip * sqrt(steps) / (mu * units)        (mu: of the Gaussian trade-off that the budget buys),

whatever the lot size. So lots are as large as the time allows, steps are few hundreds, and learning
rates about ten times as large as without noise (Li et al. 2022; De et al. 2022).

Where time is short, it buys a number of passes: texts that a step reads, added up over all steps. They
are spread over about half as many steps as the square root of their number, the best of the splits
that were tried on SST-2 between 20,000 and 100,000 passes (benchmarks/text).

A run without privacy, which others are held against, gets what suits it: small lots, three times
through the records.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from sourdine import checks
from sourdine.budget import Budget
from sourdine.errors import InputError
from sourdine.sgd.sampling import usual_most
from sourdine.text.strategies import Everything, Head, LoRA, Strategy

_LABEL_SHARE = 1e-2
"""Of delta, for labels that nobody declared."""


@dataclass(frozen=True)
class Situation:
    """What the planner may know."""

    units: int
    budget: Budget
    pretrained: bool
    parameters: int
    longest: int
    """Tokens that the model can read at most."""
    declared: bool
    """Whether the labels are declared."""
    device: str = "cpu"
    private: bool = True
    minutes: float | None = None
    """Time that training may take; None for as long as it takes."""
    seconds_a_text: Callable[[Strategy], float] | None = None
    """Measures one private training step on made-up texts (text/timing.py), where minutes are given."""

    def passes(self, strategy: Strategy) -> int | None:
        """How many texts can be trained on in that time, each step counted; None for any number."""
        if self.minutes is None or self.seconds_a_text is None:
            return None
        return int(_TRAINING_SHARE * 60 * self.minutes / self.seconds_a_text(strategy))


@dataclass(frozen=True)
class Plan:
    """One way to train; `reasons` says why."""

    strategy: Strategy
    lot_size: int
    steps: int
    clip: float
    learning_rate: float
    head_factor: float
    """The head learns so many times faster than what is pretrained."""
    scale: float
    """The norm of the features that the head sees."""
    max_length: int
    batch_size: int
    held_out: float
    """Share of the units that the model is tested on."""
    label_noise: float
    """Deviation of the noise on label counts, over what a unit contributes; 0 if declared."""
    label_delta: float
    reasons: dict[str, str]
    """Why, by the name of the choice."""

    def with_(self, **changes: Any) -> Plan:
        """The same plan with other choices, checked; each change is named among the reasons."""
        known = {field.name for field in fields(self)} - {"reasons"}
        stated = {name: value for name, value in changes.items() if value is not None}
        for name in stated:
            if name not in known:
                raise InputError(f"a plan has no {name!r}; it has {', '.join(sorted(known))}.")
        said = {name: f"{name.replace('_', ' ')} {value}: as stated." for name, value in stated.items()}
        plan = replace(self, **stated, reasons={**self.reasons, **said})
        for name in ("lot_size", "steps", "max_length", "batch_size"):
            checks.whole(name, getattr(plan, name))
        for name in ("clip", "learning_rate", "head_factor", "scale"):
            checks.positive(name, getattr(plan, name))
        _check_share(plan.held_out)
        return plan

    def fitted(self, units: int, epochs: float | None) -> Plan:
        """The same plan for so many units: no lot is larger, and epochs become steps."""
        lot, reasons = min(self.lot_size, units), dict(self.reasons)
        if lot < self.lot_size:
            reasons["lot_size"] = f"Lots of {lot}: there are no more units to train on."
        steps = self.steps if epochs is None else max(1, round(epochs * units / lot))
        if epochs is not None:
            reasons["steps"] = f"{steps} steps make the {epochs:g} epochs that were stated."
        return replace(self, lot_size=lot, steps=steps, reasons=reasons)

    def beside(self, canaries: int, units: int) -> Plan:
        """The same plan with canaries among the units: everyone is drawn at the rate of before."""
        lot = round(self.lot_size * (units + canaries) / units)
        reason = (
            f"Lots of {lot}: {self.lot_size} of {units:,} units, and as many of {canaries:,} canaries."
        )
        return replace(self, lot_size=lot, reasons={**self.reasons, "lot_size": reason})


@dataclass(frozen=True)
class _Recipe:
    """What was measured to work for one way to train (benchmarks/text)."""

    learning_rate: float
    head_factor: float
    clip: float
    steps: int
    share: float
    """Of the units in a lot."""


_RECIPES = {
    "head": _Recipe(0.1, 1.0, 1.0, 40, 0.5),
    "bitfit": _Recipe(5e-3, 10.0, 0.1, 200, 0.3),
    "lora": _Recipe(4e-3, 15.0, 0.1, 200, 0.3),
    "prompt": _Recipe(1e-2, 6.0, 0.1, 200, 0.3),
    "all": _Recipe(2e-3, 15.0, 0.1, 200, 0.3),
}
_PLAIN_RATES = {"head": 0.3, "bitfit": 1e-3, "lora": 5e-4, "prompt": 5e-3, "all": 1e-4}
_PLAIN_LOT, _PLAIN_EPOCHS = 32, 3
_MOST_IN_LOT = 4096
_FEWEST_TO_SPLIT = 500
_TRAINING_SHARE = 0.85
"""Share of the minutes that steps may take; the rest is for reading, the test and the report."""
_LEAST_PASSES = 16_000
"""Below that the head on frozen features learnt as much from SST-2 as low-rank additions did."""


def plan(
    situation: Situation,
    strategy: Strategy | None = None,
    *,
    steps: int | None = None,
    held_out: float | None = None,
) -> Plan:
    """The planner's choice; a strategy, a number of steps and a share held out that are given stand."""
    reasons: dict[str, str] = {}
    chosen = strategy or _strategy(situation, reasons)
    recipe = _RECIPES[chosen.name]
    share = _held_out(situation.units, reasons) if held_out is None else _check_share(held_out)
    units = round(situation.units * (1 - share))
    pace = _pace if situation.private or chosen.name == "head" else _plain_pace
    lot, steps, rate = pace(situation, chosen, units, steps, reasons)
    length = min(situation.longest, 128 if situation.pretrained else 256)
    reasons["max_length"] = (
        f"Texts are cut after {length} tokens; the length is fixed here and not read off the data."
    )
    label_noise = 0.0 if situation.declared else _label_noise(situation.budget)
    if not situation.declared:
        reasons["labels"] = (
            "The labels were not declared: a noisy count tells those that many units have, and the "
            "others are left out; --labels saves its cost."
        )
    batch = _batch(situation, chosen, lot, length)
    return Plan(
        chosen,
        lot,
        steps,
        recipe.clip,
        rate,
        recipe.head_factor,
        1.0 if chosen.name == "head" else 2.0,
        length,
        batch,
        share,
        label_noise,
        situation.budget.delta * _LABEL_SHARE,
        reasons,
    )


def _pace(
    situation: Situation, strategy: Strategy, units: int, asked: int | None, reasons: dict[str, str]
) -> tuple[int, int, float]:
    """Lot size, steps and learning rate under noise."""
    name = strategy.name
    recipe = _RECIPES[name]
    lot = max(1, min(_MOST_IN_LOT if name != "head" else units, round(recipe.share * units)))
    short = name != "head" and units * situation.budget.epsilon < 7_000
    steps = asked if asked is not None else recipe.steps // 2 if short else recipe.steps
    steps = checks.whole("steps", steps)
    passes = None if name == "head" else situation.passes(strategy)
    hurried = passes is not None and lot * steps > passes
    if passes is not None and hurried:
        if asked is None:
            steps = min(steps, max(1, round(math.sqrt(passes) / 2)))
        lot = max(1, min(lot, passes // steps))
    reasons["lot_size"] = f"Lots of {lot}, {lot / units:.0%} of {units:,} units" + (
        f": {lot} x {steps} texts can be trained on in {situation.minutes:g} minutes (--minutes)."
        if hurried
        else ": at one budget the noise in an average does not depend on the lot, and larger lots vary "
        "less."
    )
    reasons["steps"] = (
        f"{steps} steps: each adds noise, which grows with the square root of their number."
    )
    # Adam divides by the noise, so a step's noise moves a weight by the rate, and what is learnt by the
    # rate over sqrt(steps): all of them together by rate * sqrt(steps), which is kept.
    rate = recipe.learning_rate * math.sqrt(recipe.steps / steps)
    return lot, steps, rate if situation.private else _PLAIN_RATES[name]


def _plain_pace(
    situation: Situation, strategy: Strategy, units: int, asked: int | None, reasons: dict[str, str]
) -> tuple[int, int, float]:
    """Lot size, steps and learning rate without noise: what is usual for fine-tuning."""
    lot = min(units, _PLAIN_LOT)
    steps = math.ceil(_PLAIN_EPOCHS * units / lot) if asked is None else asked
    if asked is None and (passes := situation.passes(strategy)) is not None:
        steps = max(1, min(steps, passes // lot))
    reasons["lot_size"] = f"Lots of {lot}: without noise, small ones learn more from as many texts."
    reasons["steps"] = f"{steps} steps, {steps * lot / units:.1f} times through {units:,} units."
    return lot, checks.whole("steps", steps), _PLAIN_RATES[strategy.name]


def situation_of(
    units: int,
    budget: Budget,
    encoder: Any,
    *,
    pretrained: bool,
    declared: bool,
    device: torch.device,
    private: bool = True,
    minutes: float | None = None,
    seconds_a_text: Callable[[Strategy], float] | None = None,
) -> Situation:
    """What a model and this machine are like."""
    config = encoder.config
    longest = getattr(config, "max_position_embeddings", None) or 2048
    return Situation(
        units,
        budget,
        pretrained,
        sum(parameter.numel() for parameter in encoder.parameters()),
        int(longest),
        declared,
        device.type,
        private,
        minutes,
        seconds_a_text,
    )


def _strategy(situation: Situation, reasons: dict[str, str]) -> Strategy:
    if not situation.pretrained:
        reasons["strategy"] = "All weights train: nothing in this model is pretrained."
        return Everything(words=True)
    if situation.device == "cuda":
        reasons["strategy"] = (
            "Low-rank additions train (LoRA): they learnt more than all weights did, and as much "
            "without noise."
        )
        return LoRA()
    passes = situation.passes(LoRA())
    if passes is not None and passes >= _LEAST_PASSES:
        reasons["strategy"] = (
            f"Low-rank additions train (LoRA): in {situation.minutes:g} minutes (--minutes) they can "
            f"be trained on {passes:,} texts, each step counted, and from {_LEAST_PASSES:,} on they "
            "learnt more than the head alone."
        )
        return LoRA()
    reasons["strategy"] = (
        "The head trains on frozen features: every text is read once, and few weights need little "
        "noise in all. "
        + (
            f"In {situation.minutes:g} minutes LoRA could be trained on {passes:,} texts only; more "
            "--minutes allow it."
            if passes is not None
            else "--trains lora takes longer and learns more."
        )
    )
    return Head()


def _check_share(held_out: float) -> float:
    if not 0 <= held_out <= 0.5:
        raise InputError(f"held_out is {held_out}, but it must lie between 0 and 0.5.")
    return held_out


def _held_out(units: int, reasons: dict[str, str]) -> float:
    if units < _FEWEST_TO_SPLIT:
        reasons["held_out"] = (
            f"No units are held out: with fewer than {_FEWEST_TO_SPLIT}, a test on a share of "
            f"{units:,} would be too small to say much, above all with noise, and training needs them "
            "all."
        )
        return 0.0
    share = 0.1 if units >= 5_000 else 0.2
    reasons["held_out"] = (
        f"{share:.0%} of the units are held out, by a hash of each, for a noisy test. It costs nothing "
        "more: one unit is either trained on or tested on."
    )
    return share


def _label_noise(budget: Budget) -> float:
    """Noise on the label counts that takes about a twentieth of the budget's Gaussian."""
    return max(4.0, 20.0 / budget.epsilon)


def _batch(situation: Situation, strategy: Strategy, lot: int, length: int) -> int:
    """On a GPU a whole lot, or an equal part of it: as many tokens as a small model leaves room for."""
    if strategy.name == "head":
        return 8192
    if situation.device != "cuda":
        return max(1, min(512, 4_096 // length))
    tokens = 65_536 * min(4.0, max(1.0, 1e8 / situation.parameters))
    rows = usual_most(lot, situation.units)
    return math.ceil(rows / math.ceil(rows * length / tokens))
