"""From records to a run folder: what is charged, what is released, what is refused, going on."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import encoder, records, torch

import sourdine as sd
from sourdine import rng
from sourdine.certificate import verify
from sourdine.errors import InputError
from sourdine.events import ParallelEvent
from sourdine.ledger import Ledger
from sourdine.sgd import Engine
from sourdine.sgd import adding as adding_room
from sourdine.sgd import clipped as clipped_room
from sourdine.sgd.graphs import Graphs, unchanging
from sourdine.sgd.sampling import PoissonLots
from sourdine.sgd.shapes import Costs
from sourdine.text import loop as loop_room
from sourdine.text import machine as machine_room
from sourdine.text import trainer as room
from sourdine.text.strategies import STRATEGIES

BUDGET = sd.Budget(3, 1e-6)
LABELS = ["good", "bad"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return encoder(tmp_path_factory.mktemp("trainer") / "model")


@pytest.fixture(scope="module")
def data() -> dict[str, list[str]]:
    return records(800)


def trainer(data: Any, model: str, budget: sd.Budget | None = BUDGET, **settings: Any) -> sd.Trainer:
    defaults: dict[str, Any] = {"text": "note", "label": "mood", "steps": 4, "lot_size": 100}
    return sd.Trainer(data, budget, model=model, **{**defaults, **settings})


@pytest.mark.report
def test_the_whole_way(data: Any, model: str, tmp_path: Path) -> None:
    heard: list[dict[str, float]] = []
    made = trainer(data, model, steps=20, log=heard.append)
    run = made.fit()
    assert run.certificate is not None and 2.9 < run.epsilon <= 3
    out = run.save(tmp_path / "out")
    verdict = verify(out)
    assert verdict.passed, verdict.failed
    for name in ("README.md", "report.html", "metrics.json", "ledger.sqlite", "encoder.safetensors"):
        assert (out / name).exists()
    assert json.loads((out / "sourdine.json").read_text())["labels"] == ["bad", "good"]
    again = sd.load(out)
    texts = data["note"][:20]
    assert again.predict(texts) == run.predict(texts)
    assert "privacy" in (out / "README.md").read_text().lower()
    assert {name for said in heard for name in said} <= {
        *("step", "epsilon", "learning_rate"),
        *("accuracy", "largest_class", "macro_f1", "matthews"),
    }
    assert f"largest_class={run.metrics['largest_class']['value']:.3f}" in repr(run)
    assert "share of the largest class" in run._repr_html_() and "bad, good" in run._repr_html_()
    assert run.metrics["records"] == "about 160 of 800 records"
    assert run.metrics["classes"] == ["bad", "good"]
    shown = (out / "report.html").read_text()
    assert "of about 160 of 800 records held out" in shown and "Classes: bad, good." in shown
    assert "UNKNOWN" not in shown.split('id="use"')[1].split('id="limits"')[0]
    assert "in certificate.json, as this page was written before" in shown
    spent = [said["epsilon"] for said in heard if "epsilon" in said]
    assert spent == sorted(spent) and spent[-1] <= 3
    assert "NOT PRIVATE" not in run._repr_html_()


def test_a_useless_model_is_called_so(model: str, tmp_path: Path) -> None:
    """Nine of ten have one label, and two steps of tiny size teach nothing."""
    useless = records(800)
    useless["mood"] = ["bad" if place % 10 else "good" for place in range(800)]
    settings = {"labels": LABELS, "steps": 2, "trains": "head", "learning_rate": 1e-9}
    run = trainer(useless, model, **settings).fit()
    out = run.save(tmp_path / "out")
    assert run.metrics["beats_largest_class"] is False
    assert run.metrics["largest_class"]["name"] == "bad"
    assert 0.8 < run.metrics["largest_class"]["value"] <= 1
    assert "no better than the largest class" in repr(run)
    said = "no better than always answering the most frequent class (bad)"
    assert said in run._repr_html_() and said in (out / "README.md").read_text().replace("\\", "")


def test_small_data_say_why_there_is_no_test_and_what_to_do(model: str, tmp_path: Path) -> None:
    run = trainer(records(120), model, labels=LABELS, steps=2, trains="head").fit()
    out = run.save(tmp_path / "out")
    how = run.metrics["how"]
    assert "with fewer than 500, a test on a share of 120 would be too small to say much" in how
    assert "--test FILE" in how and "--held-out 0.2" in how
    assert run.metrics["classes"] == ["good", "bad"] and "accuracy" not in run.metrics
    assert "So nothing is known about the accuracy" in (out / "README.md").read_text()
    asked = trainer(records(120), model, labels=LABELS, steps=2, held_out=0.0)
    assert asked.untested(asked.prepare()).startswith("No units are held out, as asked. So nothing")


@pytest.mark.parametrize("what", STRATEGIES)
def test_every_strategy_ends_in_a_verified_folder(what: str, model: str, tmp_path: Path) -> None:
    run = trainer(records(120), model, trains=what, lot_size=90, labels=LABELS, held_out=0.2).fit()
    run.save(tmp_path / "out")
    assert verify(run.folder).passed
    assert run.certificate is not None
    assert run.certificate.document["model"]["trained"] == what


def test_it_learns(data: Any, model: str) -> None:
    """0.875 to 0.949 in eight runs, each with another split, lots and noise; at chance it is 0.5."""
    how = {"steps": 20, "lot_size": 300, "trains": "all", "learning_rate": 1e-2}
    run = trainer(data, model, sd.Budget(10, 1e-6), labels=LABELS, **how).fit()
    assert run.metrics["accuracy"]["value"] > 0.7


def test_a_unit_pays_for_training_or_test(data: Any, model: str) -> None:
    run = trainer(data, model).fit()
    assert run.certificate is not None
    event = run.certificate.event
    assert sum(isinstance(part, ParallelEvent) for part, _ in event.parts) == 1
    assert len(run.certificate.document["accesses"]) >= 3


def test_replace_one_pays_for_both(data: Any, model: str) -> None:
    budget = sd.Budget(3, 1e-6, adjacency="replace-one")
    run = trainer(data, model, budget, labels=LABELS).fit()
    assert run.certificate is not None
    assert not any(isinstance(part, ParallelEvent) for part, _ in run.certificate.event.parts)
    assert verify(run.folder).passed


def test_test_records_of_their_own_are_paid_for(data: Any, model: str) -> None:
    run = trainer(data, model, test=records(200, seed=9), labels=LABELS).fit()
    assert run.certificate is not None and verify(run.folder).passed
    assert not any(isinstance(part, ParallelEvent) for part, _ in run.certificate.event.parts)
    assert run.metrics["records"] == 200


def test_public_test_records_are_counted_exactly(data: Any, model: str) -> None:
    run = trainer(data, model, test=records(200, seed=9), test_is_public=True, labels=LABELS).fit()
    assert "public" in run.metrics["how"] and verify(run.folder).passed
    value = run.metrics["accuracy"]["value"]
    assert value * 200 == pytest.approx(round(value * 200))
    texts = records(200, seed=9)
    right = np.mean([a == b for a, b in zip(run.predict(texts["note"]), texts["mood"], strict=True)])
    assert value == pytest.approx(right)


def test_users(model: str) -> None:
    data = records(900, people=300)
    budget = sd.Budget(3, 1e-6, unit="user")
    run = trainer(data, model, budget, user="author", rows_per_user=2, held_out=0.2).fit()
    assert run.certificate is not None and verify(run.folder).passed
    document = run.certificate.document
    assert document["guarantee"]["unit"] == "user" and document["guarantee"]["contribution_bound"] == 2
    assert document["data"]["users"] == 300 and document["data"]["records"] == "UNKNOWN"


def test_a_declared_number_of_records(data: Any, model: str) -> None:
    budget = sd.Budget(3, 1e-6, adjacency="add-remove")
    with pytest.raises(InputError, match="declare one with records="):
        trainer(data, model, budget).fit()
    run = trainer(data, model, budget, records=1_500, labels=LABELS).fit()
    assert run.certificate is not None and verify(run.folder).passed
    assert run.certificate.document["data"]["records"] == "UNKNOWN"
    public = (run.folder / "certificate.json").read_text() + (run.folder / "README.md").read_text()
    assert "rate 0.0666667," in run.certificate.document["sampling"]["assumed"]  # of those declared
    assert not re.search(rf"\b{len(data['note'])}\b", public)


def test_labels_that_few_have_stay_silent(model: str) -> None:
    data = records(800)
    data["mood"][5] = "a disease that one person has"
    run = trainer(data, model).fit()
    assert run.model.task.labels == ("bad", "good")
    for path in run.folder.iterdir():
        assert b"a disease" not in path.read_bytes()


def test_pairs_of_texts(model: str) -> None:
    data = records(300)
    data["reply"] = records(300, seed=8)["note"]
    run = trainer(data, model, text=["note", "reply"], labels=LABELS, held_out=0).fit()
    assert len(run.predict(data["note"][:3], data["reply"][:3])) == 3
    assert "nothing is known" in run.metrics["how"] and verify(run.folder).passed


def test_a_seeded_run_gets_no_certificate(data: Any, model: str, tmp_path: Path) -> None:
    run = trainer(data, model, seed=1, output_dir=tmp_path / "out").fit()
    assert run.certificate is None and not (tmp_path / "out" / "certificate.json").exists()
    assert "SEEDED, NOT PRIVATE" in (tmp_path / "out" / "README.md").read_text()
    with pytest.raises(InputError, match="no certificate"):
        _ = run.epsilon
    again = trainer(data, model, seed=1, output_dir=tmp_path / "again").fit()
    assert torch.equal(again.model.network.head.weight, run.model.network.head.weight)


@pytest.mark.parametrize("dear", [True, False])
def test_by_graphs_a_run_learns_the_same_in_few_shapes(
    dear: bool, data: Any, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: texts of all lengths in batches of a few, which change nothing but the last digits.

    In single precision: a graph of bfloat16 rounds in other places.
    """
    monkeypatch.setattr(machine_room, "multiplies_halves", lambda device: False)
    if not dear:
        monkeypatch.setattr(Graphs, "costs", Costs(300.0, 1.0))
    long = {**data, "note": [text + " see" * (at % 30) for at, text in enumerate(data["note"])]}
    how: dict[str, Any] = {"seed": 1, "trains": "all", "steps": 6, "labels": LABELS, "held_out": 0}
    eager = trainer(long, model, **how).fit()
    monkeypatch.setattr(loop_room, "graphs_on", lambda device: unchanging)
    engines, shapes = list[Engine](), set[Any]()
    real = Engine._add

    def watched(self: Engine, batch: Any, by_graphs: bool, prove: bool) -> Any:
        engines.append(self)
        shapes.add(batch.data["input_ids"].shape)
        return real(self, batch, by_graphs, prove)

    monkeypatch.setattr(Engine, "_add", watched)
    by_graphs = trainer(long, model, **how).fit()
    for one, other in zip(
        eager.model.network.parameters(), by_graphs.model.network.parameters(), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    graphs = engines[0].graphs
    assert graphs is not None and not graphs.reasons
    assert len(shapes) == 1 if dear else 4 <= len(shapes) <= 24


def test_without_privacy_everything_says_so(data: Any, model: str) -> None:
    how = {"steps": 30, "trains": "all", "learning_rate": 3e-3}
    run = trainer(data, model, None, not_private=True, **how).fit()
    assert run.certificate is None
    assert run.metrics["accuracy"]["value"] > 0.75  # 0.935 to 0.986 in twenty runs
    assert not (run.folder / "ledger.sqlite").exists()
    assert json.loads((run.folder / "metrics.json").read_text())["privacy"] == "NOT PRIVATE"
    assert (
        "NOT PRIVATE" in (run.folder / "README.md").read_text() and "NOT PRIVATE" in run._repr_html_()
    )


@pytest.mark.report
def test_a_reference_stands_beside(data: Any, model: str, tmp_path: Path) -> None:
    plain = trainer(data, model, None, not_private=True, output_dir=tmp_path / "plain").fit()
    run = trainer(data, model, labels=LABELS, reference=tmp_path / "plain").fit()
    assert run.certificate is not None and verify(run.folder).passed
    assert run.metrics["reference"]["accuracy"] == plain.metrics["accuracy"]["value"]
    costs = {use["what"]: use["cost"] for use in run.certificate.document["accesses"]}
    assert costs["a model trained without privacy, and its exact metrics"] == "NOT ACCOUNTED"
    page = (run.folder / "report.html").read_text()
    assert "No reference" not in page and "without privacy" in page
    with pytest.raises(InputError, match="not the folder of a run without privacy"):
        trainer(data, model, reference=run.folder)


def test_the_budget_is_charged_before_anything_is_drawn(
    data: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def charged(*_: object, **__: object) -> Any:
        kinds = [entry.kind for entry in Ledger(out / "ledger.sqlite").history()]
        assert kinds == ["reserve"]
        raise KeyboardInterrupt

    monkeypatch.setattr(room, "find_labels", charged)
    with pytest.raises(KeyboardInterrupt):
        trainer(data, model, output_dir=out).fit()
    with pytest.raises(InputError, match="not finished"):
        trainer(data, model, output_dir=out).fit()
    monkeypatch.undo()
    run = trainer(data, model, output_dir=out, resume=True).fit()
    assert verify(run.folder).passed
    kinds = [entry.kind for entry in Ledger(out / "ledger.sqlite").history()]
    assert kinds == ["reserve", "settle"]
    with pytest.raises(InputError, match="finished run"):
        trainer(data, model, output_dir=out, resume=True).fit()


@pytest.mark.parametrize("where", ["_train", "_metrics", "_seal"])
def test_a_run_that_is_stopped_goes_on(
    where: str, data: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, drawn = tmp_path / "out", []
    real = room.find_labels
    monkeypatch.setattr(room, "find_labels", lambda *all_: drawn.append(1) or real(*all_))

    def stopped(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sd.Trainer, where, stopped)
        with pytest.raises(KeyboardInterrupt):
            trainer(data, model, output_dir=out).fit()
    run = trainer(data, model, output_dir=out, resume=True).fit()
    assert verify(run.folder).passed and len(drawn) == 1
    assert [entry.kind for entry in Ledger(out / "ledger.sqlite").history()] == ["reserve", "settle"]
    assert sorted(path.name for path in out.iterdir() if path.suffix in ("", ".pt", ".new")) == []


def test_a_folder_in_use(data: Any, model: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said: list[str] = []

    def second(stage: str, done: int, total: int, epsilon: float | None) -> None:
        if stage == "training" and done == 2:
            with pytest.raises(InputError, match="in use"):
                trainer(data, model, output_dir=out, resume=True).fit()
            said.append("refused")

    run = trainer(data, model, output_dir=out, tell=second).fit()
    assert said == ["refused"] and verify(run.folder).passed


def test_memory_that_runs_out_halves_the_batch(
    data: Any, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, sizes = adding_room.clipped_sum, []

    def small(net: Any, losses: Any, clip: Any, *, examples: int, **more: Any) -> Any:
        sizes.append(examples)
        if examples > 16:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(net, losses, clip, examples=examples, **more)

    monkeypatch.setattr(adding_room, "clipped_sum", small)
    run = trainer(data, model, trains="bitfit", batch_size=64, steps=2).fit()
    assert 32 < sizes[0] <= 64 and 16 < sizes[1] <= 32 and 8 < max(sizes[2:]) <= 16
    assert verify(run.folder).passed
    monkeypatch.setattr(adding_room, "clipped_sum", _always_full)
    with pytest.raises(InputError, match="one unit alone does not fit"):
        trainer(data, model, trains="bitfit", batch_size=4, steps=2).fit()


def _always_full(*_: object, **__: object) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_full_disk_at_the_end_loses_nothing(
    data: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(room.TextModel, "save", full)
        with pytest.raises(sd.SourdineError, match=r"No space left on device.*--resume"):
            trainer(data, model, output_dir=out).fit()
    drawn: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "step", lambda *all_: drawn.append(1))
        run = trainer(data, model, output_dir=out, resume=True).fit()
    assert not drawn and verify(run.folder).passed


@pytest.mark.report
def test_no_secret_is_in_the_folder(
    data: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys, lots, losses and norms are recorded while they are made, and looked for afterwards."""
    keys, lots, private = [], [], []
    source, drawn, summed = rng.Source.__init__, PoissonLots.draw, clipped_room.clipped_sum

    def keyed(self: Any, key: bytes, kind: str) -> None:
        keys.append(bytes(key))
        source(self, key, kind)

    def draw(self: Any, step: int, own: Any) -> Any:
        lots.append(drawn(self, step, own))
        return lots[-1]

    def sums(*given: Any, **more: Any) -> Any:
        found = summed(*given, **more)
        private.extend([found.losses.clone(), found.norms.clone()])
        return found

    monkeypatch.setattr(rng.Source, "__init__", keyed)
    monkeypatch.setattr(PoissonLots, "draw", draw)
    monkeypatch.setattr(adding_room, "clipped_sum", sums)
    out = tmp_path / "out"
    trainer(data, model, trains="bitfit", output_dir=out, steps=3).fit()
    assert keys and lots and private
    needles = [form for key in keys for form in (key, key.hex().encode(), base64.b64encode(key))]
    for lot in lots:
        places = [int(place) for place in lot[:6]]
        needles.append(np.asarray(places).tobytes())
        needles += [", ".join(map(str, places)).encode(), ",".join(map(str, places)).encode()]
    for values in private:
        needles += [values[:2].numpy().tobytes(), values.double().numpy()[:1].tobytes()]
        for value in (*values[:8].tolist(), float(values.mean()), float(values.sum())):
            needles += [repr(value).encode(), f"{value:.6f}".encode(), f"{value:.9g}".encode()]
    texts = [text.encode() for text in data["note"][:50]]
    for path in out.rglob("*"):
        content = path.read_bytes()
        found = [needle for needle in needles if len(needle) > 7 and needle in content]
        assert not found, (path.name, found[:3])
        assert not any(text in content for text in texts), path.name
    # The twin: the test would see one of each.
    leaked = keys[0].hex().encode() + np.asarray([int(p) for p in lots[0][:6]]).tobytes()
    assert sum(needle in leaked for needle in needles) >= 2


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"not_private": True}, "give a budget"),
        ({"steps": 3, "epochs": 1}, "not both"),
        ({"lora": 4, "trains": "head"}, "leave trains= out"),
        ({"num_train_epochs": 3}, "called epochs here"),
        ({"nonsense": 3}, "there is no such"),
        ({"labels": ["good"]}, "at least two labels"),
        ({"user": "note"}, "the budget is per example"),
        ({"task": "classification"}, "task is"),
        ({"trains": "everything"}, "what trains is"),
        ({"test_is_public": True}, "test_is_public is about test="),
        ({"held_out": 0.9}, "between 0 and 0.5"),
        ({"max_length": 500}, "at most 64 tokens"),
        ({"label": "moood"}, "did you mean 'mood'"),
        ({"steps": 0}, "steps"),
    ],
)
def test_what_makes_no_sense(settings: dict[str, Any], says: str, data: Any, model: str) -> None:
    with pytest.raises(InputError, match=says):
        trainer(data, model, **settings).fit()


def test_delta_above_one_in_n_is_refused(data: Any, model: str) -> None:
    with pytest.raises(InputError, match="not below 1/n"):
        trainer(data, model, sd.Budget(3, 0.01)).fit()
