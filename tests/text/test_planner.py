"""What the planner chooses by the speed of the machine, and what it may not look at."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import encoder, records, torch

import sourdine as sd
from sourdine.budget import Budget
from sourdine.errors import BudgetError, InputError
from sourdine.text import learning, prepared
from sourdine.text.examples import Collate, cached_features, tokenized
from sourdine.text.models import Classifier, load_encoder
from sourdine.text.plan import Situation, plan
from sourdine.text.strategies import Everything, Head, LoRA
from sourdine.text.timing import Stopwatch

CPU = Situation(7000, Budget(3, 1e-5), True, 22_700_000, 512, True, minutes=10.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return encoder(tmp_path_factory.mktemp("planner") / "model")


def at(seconds: float, **changes: Any) -> Situation:
    return replace(CPU, seconds_a_text=lambda strategy: seconds, **changes)


def test_a_fast_machine_trains_lora_and_a_slow_one_the_head() -> None:
    assert plan(at(0.01)).strategy == LoRA()
    assert plan(at(0.05)).strategy == Head()
    assert plan(at(0.05, minutes=60.0)).strategy == LoRA()
    assert plan(replace(CPU, minutes=None)).strategy == Head()


@pytest.mark.parametrize("seconds", [0.004, 0.01, 0.02, 0.03])
def test_steps_times_lots_fit_into_the_minutes(seconds: float) -> None:
    free, found = plan(replace(CPU, minutes=None), LoRA()), plan(at(seconds))
    assert found.strategy == LoRA()
    spent = found.steps * found.lot_size * seconds
    assert spent <= 0.85 * 600
    assert spent > 0.8 * 600 or found.steps * found.lot_size == free.steps * free.lot_size
    assert found.steps <= free.steps and found.lot_size <= free.lot_size
    assert found.learning_rate * math.sqrt(found.steps) == pytest.approx(
        free.learning_rate * math.sqrt(free.steps)
    )


def test_stated_steps_stand_and_lots_make_up_for_them() -> None:
    found = plan(at(0.01), LoRA(), steps=400)
    assert found.steps == 400
    assert found.lot_size == 51_000 // 400


def test_all_weights_and_training_without_privacy_keep_to_the_minutes_too() -> None:
    slow = at(0.1, pretrained=False)
    assert plan(slow).strategy == Everything(words=True)
    assert plan(slow).steps * plan(slow).lot_size <= 5100
    plain = plan(at(0.03, private=False))
    assert plain.steps * plain.lot_size <= 17_000


def long(data: dict[str, list[str]]) -> dict[str, list[str]]:
    return {**data, "note": [f"{text} " * 30 for text in data["note"]]}


def test_the_lengths_of_private_texts_have_no_part_in_the_choice(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def seconds(watch: Stopwatch, strategy: Any) -> float:
        measured.append(watch.tokens)
        return 1e-4 * watch.tokens

    monkeypatch.setattr(Stopwatch, "training", seconds)
    monkeypatch.setattr(Stopwatch, "reading", lambda watch: 1e-5 * watch.tokens)
    data = records(600)
    asked: dict[str, Any] = {"model": model, "text": "note", "label": "mood", "labels": ["good", "bad"]}
    short, wordy = (sd.Trainer(x, Budget(3, 1e-6), **asked) for x in (data, long(data)))
    assert short.prepare().plan == wordy.prepare().plan
    assert set(measured) == {32}
    assert short.expected_seconds() == wordy.expected_seconds()
    assert short.expected_seconds(privately=True) < wordy.expected_seconds(privately=True)
    public = {"note": ["the film was a story"] * 20}  # and two tokens at the ends
    known = sd.Trainer(data, Budget(3, 1e-6), public=public, **asked)
    known.prepare()
    assert measured[-1] == 7
    capped = sd.Trainer(data, Budget(3, 1e-6), max_length=5, **asked)
    capped.prepare()
    assert measured[-1] == 5


def test_made_up_texts_are_timed(model: str) -> None:
    whole, _, pooling = load_encoder(model)
    watch = Stopwatch(whole, pooling, torch.device("cpu"), 16)
    before = [x.clone() for x in whole.parameters()]
    assert 0 < watch.reading() < 1
    assert 0 < watch.training(LoRA()) == watch.training(LoRA()) < 1
    assert all(torch.equal(x, y) for x, y in zip(before, whole.parameters(), strict=True))


def test_a_run_goes_on_with_what_was_chosen_when_it_began(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {
        **{"model": model, "text": "note", "label": "mood", "labels": ["good", "bad"]},
        **{"held_out": 0.0, "output_dir": tmp_path / "run"},
    }
    monkeypatch.setattr(Stopwatch, "training", lambda watch, strategy: 0.03)
    first = sd.Trainer(records(300), Budget(3, 1e-6), tell=stopped_at(3), **asked)
    with pytest.raises(KeyboardInterrupt):
        first.fit()
    began = first.prepare().plan
    assert began.strategy == LoRA()
    monkeypatch.setattr(Stopwatch, "training", lambda watch, strategy: 3.0)
    again = sd.Trainer(records(300), Budget(3, 1e-6), resume=True, **asked)
    later = again.prepare().plan
    assert (later.strategy, later.steps, later.lot_size) == (
        *(began.strategy, began.steps),
        began.lot_size,
    )
    assert later.learning_rate == began.learning_rate


def stopped_at(step: int) -> Any:
    def tell(stage: str, done: int, total: int, epsilon: float | None) -> None:
        if stage == "training" and done == step:
            raise KeyboardInterrupt

    return tell


@pytest.mark.parametrize("minutes", [0, -1, math.nan])
def test_odd_minutes_are_refused(minutes: float, model: str) -> None:
    with pytest.raises(InputError, match="minutes"):
        sd.Trainer(records(10), Budget(3, 1e-6), model=model, minutes=minutes)


# What is missing without a fetched encoder


def test_whoever_has_no_encoder_hears_of_it_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepared, "fetched", lambda name: None)
    prepared._say_what_is_missing.cache_clear()
    assert prepared.default_model() == prepared.default_model() == "bytes"
    heard = capsys.readouterr().err
    assert heard.count("sourdine fetch minilm") == 1
    monkeypatch.setattr(prepared, "fetched", lambda name: Path("there"))
    assert prepared.default_model() == "there"
    assert not capsys.readouterr().err


# Runs that are refused


def test_a_refused_run_leaves_nothing_behind(model: str, tmp_path: Path) -> None:
    shared = sd.Ledger(tmp_path / "shared.sqlite", Budget(1, 1e-6))
    asked: dict[str, Any] = {
        **{"model": model, "text": "note", "label": "mood", "labels": ["good", "bad"]},
        **{"held_out": 0.0, "output_dir": tmp_path / "run", "trains": "head", "steps": 2},
    }
    with pytest.raises(BudgetError):
        sd.Trainer(records(300), Budget(3, 1e-6), ledger=shared, **asked).fit()
    assert not (tmp_path / "run").exists()
    assert sd.Trainer(records(300), Budget(1, 1e-6), ledger=shared, **asked).fit().epsilon <= 1


# Half precision, and texts that are read once


def test_held_out_texts_are_read_once(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def counted(*given: Any, **named: Any) -> torch.Tensor:
        seen.append(len(given[1]))
        return cached_features(*given, **named)

    monkeypatch.setattr(learning, "cached_features", counted)
    monkeypatch.setattr(learning.loop, "predicted", lambda *given: pytest.fail("read again"))
    asked: dict[str, Any] = {"model": model, "text": "note", "label": "mood", "trains": "head"}
    sd.Trainer(
        records(700), Budget(8, 1e-6), labels=["good", "bad"], steps=2, held_out=0.3, **asked
    ).fit()
    assert len(seen) == 2 and sum(seen) == 700


@pytest.mark.parametrize("half", [False, True])
def test_a_text_is_the_same_whatever_stands_beside_it(model: str, half: bool) -> None:
    """Also in half precision, where torch's fused attention adds up longer rows in another order."""
    whole, words, pooling = load_encoder(model)
    network = Classifier(whole, 2, pooling)
    torch.nn.init.normal_(network.head.weight)
    LoRA(2).prepare(network)
    for name, parameter in network.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    trained = [x for x in network.parameters() if x.requires_grad]
    found = []
    for beside in ("dull", "the film was a dull story of people and places that one may see today"):
        rows = tokenized(words, (["a great film", beside],), [0, 1], 128)
        batch = Collate(0)(rows)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            score = network(batch)[0, 0]
        found.append(torch.cat([x.flatten() for x in torch.autograd.grad(score, trained)]))
    assert network.encoder.config._attn_implementation == "sdpa"
    assert (found[0] - found[1]).norm() <= 1e-5 * found[0].norm()
