"""Tuning: one charge for all trials, the best alone released, nothing told of the others."""

from __future__ import annotations

import json
import math
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tiny import encoder, records, torch

from sourdine.budget import Budget
from sourdine.certificate import verify
from sourdine.errors import BudgetError, InputError, SourdineError
from sourdine.events import GaussianEvent, ParallelEvent, SelectionEvent, compose
from sourdine.ledger import Ledger
from sourdine.mechanisms.selection import RandomTrials
from sourdine.rng import seeded
from sourdine.sgd.processes import Processes
from sourdine.text import loop
from sourdine.text.trials import grid
from sourdine.text.tuning import TUNING, Tuner

BUDGET = Budget(3, 1e-6)
LABELS = ["good", "bad"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return encoder(tmp_path_factory.mktemp("tuning") / "model")


@pytest.fixture(scope="module")
def data() -> dict[str, list[str]]:
    return records(400)


def tuner(data: Any, model: str, budget: Budget = BUDGET, **options: Any) -> Tuner:
    """Lots that hold everybody, if nothing else is said: their cost is found in no time."""
    defaults: dict[str, Any] = {
        **{"text": "note", "label": "mood", "labels": LABELS, "trains": "head", "steps": 2},
        **{"lot_size": 320, "trials": 2.0, "settings": "learning_rate=5,25"},
    }
    return Tuner(data, budget, model=model, **{**defaults, **options})


def always(monkeypatch: pytest.MonkeyPatch, trials: int) -> None:
    monkeypatch.setattr(RandomTrials, "number", lambda self, source=None: trials)


def scored(monkeypatch: pytest.MonkeyPatch, *scores: float) -> None:
    """Trials that have these scores, one after the other."""
    left = iter(scores)
    real = Tuner._metrics

    def metrics(self: Tuner, *given: Any) -> dict[str, Any]:
        found = real(self, *given)
        return {**found, "accuracy": {**found["accuracy"], "value": next(left)}}

    monkeypatch.setattr(Tuner, "_metrics", metrics)


def charges(folder: Path) -> list[Any]:
    return Ledger(folder / "ledger.sqlite").history()


def test_the_whole_way(data: Any, model: str, tmp_path: Path) -> None:
    settings = "learning_rate=5,25 max_length=8,16"
    run = tuner(
        data, model, output_dir=tmp_path / "out", settings=settings, lot_size=100, steps=1
    ).fit()
    verdict = verify(run.folder)
    assert verdict.passed, verdict.failed
    assert "Rényi" in next(c.sentence for c in verdict.checks if c.name == "second accountant")
    assert run.certificate is not None and 2.95 < run.epsilon <= 3
    stated = run.certificate.document
    selection = run.certificate.event
    assert isinstance(selection, SelectionEvent) and isinstance(selection.event, ParallelEvent)
    assert selection.expected == pytest.approx(2.0)
    assert stated["sampling"]["executed"].endswith("1 steps")
    tuned = json.loads((run.folder / TUNING).read_text())
    assert tuned["setting"] in tuned["settings"] and len(tuned["settings"]) == 4
    assert tuned["setting"]["learning_rate"] == stated["training"]["learning_rate"]
    for name in ("accuracy", "largest_class", "matthews"):
        assert tuned["score"][name] == run.metrics[name]["value"]
    training = stated["training"]
    assert training["computed"] == "operation by operation, on cpu"
    assert len(training["tuning_settings"]) == 4 and training["tuning_expected_trials"] > 1.9
    assert any("random number of trials" in use["what"] for use in stated["accesses"])
    assert any("how long" in limit for limit in stated["not_covered"])
    assert "every model on the way" not in stated["released"]["to"]
    assert "the score is optimistic" in run.metrics["how"]
    assert run.predict(["a great film"])[0] in LABELS


def test_nothing_in_the_folder_tells_how_long_it_took(
    data: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    always(monkeypatch, 3)
    real = loop.train_privately

    def slowly(*given: Any, **named: Any) -> Any:
        time.sleep(0.3)
        return real(*given, **named)

    monkeypatch.setattr(loop, "train_privately", slowly)
    heard: list[str] = []
    out = tmp_path / "out"
    run = tuner(data, model, output_dir=out, tell=lambda stage, *rest: heard.append(stage)).fit()
    (entry,) = charges(out)
    began = datetime.fromisoformat(entry.at).timestamp()
    assert run.certificate is not None and run.certificate.document["made"] == entry.at
    for path in (out, *out.rglob("*")):
        assert path.stat().st_mtime == pytest.approx(began, abs=1e-3)
    text = "".join(path.read_text() for path in out.glob("*.json")) + (out / "README.md").read_text()
    assert not (out / "lock").exists() and f"{datetime.now():%H:%M:%S}" not in text
    assert set(heard) <= {"reading"}
    assert capfd.readouterr() == ("", "")
    assert verify(out).passed


def test_the_charge_comes_before_the_number_of_trials(
    data: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    seen: list[int] = []

    def stop(self: Any, *given: Any, **named: Any) -> Any:
        seen.append(len(charges(out)))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RandomTrials, "release", stop)
        with pytest.raises(KeyboardInterrupt):
            tuner(data, model, output_dir=out).fit()
    assert seen == [1]
    # It neither goes on nor begins again on the same budget.
    with pytest.raises(BudgetError, match="never goes on"):
        tuner(data, model, output_dir=out).fit()
    assert [type(entry.event) for entry in charges(out)] == [SelectionEvent]
    assert not list(out.glob("*.safetensors"))


def test_the_best_trial_is_released(
    data: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always(monkeypatch, 4)
    scored(monkeypatch, 0.3, 0.9, 0.7, 0.9)
    trained: list[Any] = []
    real = Tuner._trained

    def watched(self: Tuner, ready: Any, *given: Any) -> Any:
        network = real(self, ready, *given)
        trained.append((network.head.weight.detach().clone(), ready.plan.learning_rate))
        return network

    monkeypatch.setattr(Tuner, "_trained", watched)
    made = tuner(data, model, output_dir=tmp_path / "out")
    run = made.fit()
    weights, rate = trained[2]  # the first is the rehearsal
    assert len(trained) == 5
    assert torch.equal(run.model.network.head.weight, weights)
    tuned = json.loads((run.folder / TUNING).read_text())
    assert tuned["score"]["accuracy"] == 0.9 and tuned["setting"] == {"learning_rate": rate}
    own = [weight for weight, _ in trained]
    assert not any(torch.equal(own[i], own[k]) for i in range(5) for k in range(i))
    # None of the weights that lost is in the folder.
    stored = b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir())
    found = [weight.numpy().tobytes()[:32] in stored for weight in own]
    assert found == [False, False, True, False, False]


def test_trials_share_one_charge_and_one_noise(
    data: Any, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    always(monkeypatch, 6)
    ran: list[Any] = []
    real = loop.train_privately

    def watched(*given: Any, **named: Any) -> Any:
        engine = real(*given, **named)
        ran.append((engine.noise_multiplier, engine.steps, engine.plan, engine.done, engine.epsilon()))
        return engine

    made = tuner(data, model, settings="trains=head,bitfit clip=0.5,1")
    made.rehearse()
    monkeypatch.setattr(loop, "train_privately", watched)
    monkeypatch.setattr(Tuner, "rehearse", lambda self: None)
    run = made.fit()
    assert len(ran) == 6 and len(set(ran)) == 1
    selection = charges(run.folder)[0].event
    training = next(event for event in selection.event.events if not isinstance(event, GaussianEvent))
    ((lots, steps),) = training.parts
    noise, planned, plan, done, epsilon = ran[0]
    assert (lots.event.noise_multiplier, lots.rate) == (noise, plan.lot_size / plan.records)
    assert (steps, steps) == (planned, done) and epsilon == pytest.approx(run.epsilon)


def test_a_trial_that_fails_loses(data: Any, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch, 3)
    real, count = Tuner._trained, iter(range(9))

    def sometimes(self: Tuner, *given: Any) -> Any:
        network, number = real(self, *given), next(count)
        if number == 1:
            raise RuntimeError("a text of Ms Miller")
        if number == 2:
            network.head.weight.data[0] = math.nan
        return network

    monkeypatch.setattr(Tuner, "_trained", sometimes)
    assert tuner(data, model).fit().certificate is not None
    count = iter([0, 1, 2, 1])
    with pytest.raises(SourdineError, match="no trial ended") as raised:
        tuner(data, model).fit()
    assert "Miller" not in str(raised.value)


def test_how_many_trials_there_are_follows_the_law(
    data: Any, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tuner(data, model, trials=4.0, eta=1.0)
    ready = made.prepare()
    own: Any = made._accounts(ready)
    counts, drawn = [], []

    class Network:
        def parameters(self) -> list[Any]:
            return []

    def trained(self: Tuner, there: Any, *given: Any) -> Any:
        counts[-1] += 1
        drawn.append(there.plan.learning_rate)
        return Network()

    monkeypatch.setattr(Tuner, "_trained", trained)
    monkeypatch.setattr(Tuner, "_metrics", lambda *given: {"accuracy": {"value": 0.5}})
    source: Any = seeded(7)
    for _ in range(3000):
        counts.append(0)
        made.best(ready, made._kind(tuple(LABELS)), own, own, source)
    # Geometric with mean 4: variance 12; five deviations. P(K = 1) = 1/4.
    assert sum(counts) / 3000 == pytest.approx(4.0, abs=5 * math.sqrt(12 / 3000))
    assert counts.count(1) / 3000 == pytest.approx(0.25, abs=5 * math.sqrt(0.1875 / 3000))
    assert drawn.count(5.0) / len(drawn) == pytest.approx(0.5, abs=5 * math.sqrt(0.25 / len(drawn)))


def test_labels_are_found_once_beside_the_selection(data: Any, model: str) -> None:
    made = tuner(data, model, labels=None)
    ready = made.prepare()
    own = made._accounts(ready)
    charge = own.charge(ready.plan, ready.units, None, None, Processes(), 5.0)
    parts = dict(charge.event().parts)
    assert {part.kind: count for part, count in parts.items()} == {
        **{"gaussian": 1, "approximate": 1, "selection": 1}
    }
    uses = own.accesses(charge, "some records", "others")
    assert len(uses) == 2 and compose([use.cost for use in uses if use.cost]) == charge.event()
    assert own.labels is not None and own.labels.event == uses[0].cost


def test_replace_one_pays_for_training_and_score(data: Any, model: str) -> None:
    run = tuner(data, model, Budget(3, 1e-6, adjacency="replace-one")).fit()
    assert verify(run.folder).passed and run.certificate is not None
    selection = run.certificate.event
    assert isinstance(selection, SelectionEvent)
    assert {part.kind for part, _ in selection.event.parts} == {"gaussian", "poisson"}


def test_users(model: str) -> None:
    made = records(600, people=200)
    budget = Budget(3, 1e-6, unit="user")
    run = tuner(made, model, budget, user="author", rows_per_user=2, lot_size=160).fit()
    assert verify(run.folder).passed and run.certificate is not None
    assert run.certificate.document["guarantee"]["contribution_bound"] == 2


def test_a_seeded_tuning_gets_no_certificate(data: Any, model: str, tmp_path: Path) -> None:
    run = tuner(data, model, seed=3, output_dir=tmp_path / "out").fit()
    assert run.certificate is None and "NOT PRIVATE" in (run.folder / "README.md").read_text()


def test_what_it_would_do(data: Any, model: str, tmp_path: Path) -> None:
    made = tuner(data, model, trials=10.0, settings=None, output_dir=tmp_path / "out")
    found = made.expected()
    rate = made.prepare().plan.learning_rate
    tried = [setting["learning_rate"] / rate for setting in found["settings"]]
    assert tried == pytest.approx([0.25, 0.5, 1, 2, 4])
    assert found["expected_trials"] == pytest.approx(10) and found["trials_95_percent"] > 10
    assert found["epsilon_of_one_trial"] < found["epsilon"] <= 3
    assert not (tmp_path / "out").exists()


def test_what_fails_whatever_the_data_costs_nothing(
    data: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any, **named: Any) -> Any:
        raise InputError("this model cannot be trained.")

    monkeypatch.setattr(loop, "train_privately", broken)
    with pytest.raises(InputError, match="cannot be trained"):
        tuner(data, model, output_dir=tmp_path / "out").fit()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"settings": "learning_rate"}, "not understood"),
        ({"settings": "learning_rate=1 learning_rate=2"}, "each name once"),
        ({"settings": "learning_rate=fast"}, "must be a number"),
        ({"settings": "max_length=8.5"}, "whole number"),
        ({"settings": "steps=10,20"}, "the same in all trials"),
        ({"settings": "seed=1,2"}, "cannot be tuned"),
        ({"settings": " "}, "empty"),
        ({"settings": []}, "at least one"),
        ({"settings": "max_length=1000"}, "at most 64 tokens"),
        ({"settings": "trains=nothing"}, "what trains"),
        ({"settings": "learning_rate=-1"}, "learning_rate"),
        ({"trials": 1.0}, "above 1"),
        ({"eta": -1.0}, "eta"),
        ({"held_out": 0.0}, "held_out must be above 0"),
        ({"resume": True}, "does not take 'resume'"),
        ({"test": {"note": ["a"]}}, "does not take 'test'"),
        ({"log": print}, "does not take 'log'"),
    ],
)
def test_bad_input(options: dict[str, Any], match: str, data: Any, model: str) -> None:
    with pytest.raises(InputError, match=match):
        tuner(data, model, **options).prepare()


def test_a_grid_is_a_product() -> None:
    assert grid("learning_rate=1e-3,3e-3 trains=head,lora") == [
        {"learning_rate": 1e-3, "trains": "head"},
        {"learning_rate": 1e-3, "trains": "lora"},
        {"learning_rate": 3e-3, "trains": "head"},
        {"learning_rate": 3e-3, "trains": "lora"},
    ]
