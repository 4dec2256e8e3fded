"""The planner's choices: what they depend on, and what keeps its size when others change."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tiny import encoder, torch

from sourdine.budget import Budget
from sourdine.errors import InputError
from sourdine.text.models import load_encoder
from sourdine.text.plan import Situation, plan
from sourdine.text.strategies import STRATEGIES, Head, LoRA

GPU = Situation(8000, Budget(3, 1e-6), True, 22_700_000, 512, True, device="cuda")


def test_what_trains_follows_from_the_machine() -> None:
    assert plan(GPU).strategy == LoRA()
    assert plan(replace(GPU, device="cpu")).strategy == Head()
    assert plan(replace(GPU, pretrained=False)).strategy.name == "all"


@pytest.mark.parametrize("parameters", [2e6, 2.27e7, 1.1e8, 1e9])
def test_lots_are_cut_into_equal_parts_that_fit_a_gpu(parameters: float) -> None:
    """Small models take larger batches; a lot that is a little larger than planned needs no other."""
    own = plan(replace(GPU, parameters=int(parameters)))
    tokens = own.batch_size * own.max_length
    assert tokens <= 65_536 * (4 if parameters < 2.5e7 else 1) + own.max_length
    parts = math.ceil(own.lot_size / own.batch_size)
    spread = 3 * math.sqrt(own.lot_size * (1 - own.lot_size / GPU.units))
    assert parts * own.batch_size >= own.lot_size + spread
    assert own.batch_size > 0.8 * min(own.lot_size, tokens / own.max_length)


@pytest.mark.parametrize("name", STRATEGIES)
def test_other_steps_move_the_weights_as_far(name: str) -> None:
    chosen = STRATEGIES[name]()
    own = plan(GPU, chosen)
    for steps in (50, 800):
        other = plan(GPU, chosen, steps=steps)
        assert other.steps == steps
        assert other.learning_rate * math.sqrt(steps) == pytest.approx(
            own.learning_rate * math.sqrt(own.steps)
        )
        assert other.with_(learning_rate=0.5).learning_rate == 0.5
    for steps in (0, -1, 1.5):
        with pytest.raises(InputError, match="steps"):
            plan(GPU, chosen, steps=steps)  # type: ignore[arg-type]


def test_a_small_budget_gets_fewer_steps() -> None:
    small, large = plan(replace(GPU, budget=Budget(0.5, 1e-6))), plan(GPU)
    assert small.steps < large.steps and small.learning_rate > large.learning_rate


@pytest.mark.parametrize("name", STRATEGIES)
def test_without_privacy_lots_are_small_and_rates_too(name: str) -> None:
    private, plain = (plan(replace(GPU, private=kind), STRATEGIES[name]()) for kind in (True, False))
    if name == "head":  # features are there: every text in every other lot costs nothing
        assert plain.lot_size == private.lot_size
        return
    assert plain.lot_size == 32 and plain.learning_rate < private.learning_rate
    assert plain.steps * plain.lot_size == pytest.approx(3 * 0.9 * GPU.units, rel=0.01)


def test_a_model_in_half_precision_is_trained_in_single(tmp_path) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer, _ = load_encoder(encoder(tmp_path / "whole"))
    model.half().save_pretrained(tmp_path / "half")
    tokenizer.save_pretrained(tmp_path / "half")
    again, _, _ = load_encoder(str(tmp_path / "half"))
    assert {x.dtype for x in again.parameters()} == {torch.float32}
