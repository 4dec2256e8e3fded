"""Canaries in a training run: what they cost, what they show, and that a broken run is found out."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tiny import encoder, records, torch

import sourdine as sd
from sourdine.audit.scored import FILE, Scored, audits, read, write
from sourdine.certificate import verify
from sourdine.cli import main
from sourdine.errors import CheckError, InputError
from sourdine.events import PoissonEvent
from sourdine.rng import seeded
from sourdine.sgd import engine as engine_room
from sourdine.sgd.clipping import Flat
from sourdine.text.auditing import Decoys

LABELS = ["good", "bad"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return encoder(tmp_path_factory.mktemp("auditing") / "model")


def trained(model: str, out: Path, budget: sd.Budget | None = None, **settings: Any) -> Any:
    defaults: dict[str, Any] = {"steps": 20, "lot_size": 100, "labels": LABELS, "held_out": 0}
    data = settings.pop("data", records(300))
    made = sd.Trainer(
        data,
        budget or sd.Budget(8, 1e-6),
        model=model,
        text="note",
        label="mood",
        output_dir=out,
        **{**defaults, **settings},
    )
    return made.fit()


def test_both_bounds_stand_in_the_certificate(model: str, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    run = trained(model, out, audit=600)
    assert verify(out).passed and run.certificate is not None
    [finding] = run.certificate.document["audit"]
    assert "600 gradient canaries" in finding["attack"]
    assert 0 < finding["lower_bound"] < run.epsilon  # at epsilon 8 some of it shows
    assert (finding["delta"], finding["confidence"]) == (1e-6, 0.95)
    [shown] = read(out)
    assert audits([shown], 1e-6)[0].bound.epsilon == finding["lower_bound"]
    # All of them are drawn at the planned rate and count among the units.
    [rate] = [part.rate for part, _ in run.certificate.event.parts if isinstance(part, PoissonEvent)]
    assert rate == pytest.approx(100 / 300)
    assert run.certificate.document["data"]["records"] == 300

    assert main(["audit", str(out)]) == 0
    assert "too few canaries to break this claim" in capsys.readouterr().out  # of 8; 5 could show
    assert main(["audit", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {"claimed_epsilon", "lower_bound", "confidence", "delta", "verdict"} <= said.keys()
    assert said["claimed_epsilon"] == run.epsilon and said["lower_bound"] == finding["lower_bound"]
    assert said["lower_bound"] < said["most_that_could_show"] < 8

    # What was changed after the seal is found, by verify and by audit.
    kept = (out / FILE).read_text()
    (out / FILE).write_text(
        kept.replace('"coins": [', '"coins": [1, ').replace('"scores": [', '"scores": [0, ')
    )
    assert {"files", "audit"} & set(verify(out).failed)
    assert main(["audit", str(out)]) == 4
    assert "not what was sealed" in capsys.readouterr().err
    (out / FILE).write_text(kept)
    assert verify(out).passed


def test_two_runs_share_no_canaries(model: str) -> None:
    made = (
        sd.Trainer(
            records(300),
            sd.Budget(2, 1e-6),
            model=model,
            text="note",
            label="mood",
            labels=LABELS,
            held_out=0,
            steps=20,
            lot_size=100,
            audit=500,
        )
        for _ in range(2)
    )
    first, second = (read(each.fit().folder)[0] for each in made)
    assert (first.coins != second.coins).any()
    assert abs(np.corrcoef(first.scores, second.scores)[0, 1]) < 0.3  # false alarm below 1e-10


def test_the_line_of_a_certificate_follows_from_its_canaries() -> None:
    drawn = np.random.default_rng(1)
    coins = drawn.random(300) < 0.5
    [one] = audits([Scored("300 canaries", coins, coins + drawn.normal(size=300))], 1e-6)
    line = one.line()
    assert one.agrees(line) and one.bound.epsilon < one.most
    for name, other in (("lower_bound", 0.0), ("delta", 1e-5), ("confidence", 0.9), ("attack", "9")):
        assert not one.agrees({**line, name: other})


def less_noise(patch: pytest.MonkeyPatch) -> None:
    real = engine_room.add_noise_
    patch.setattr(engine_room, "add_noise_", lambda sums, width, s: real(sums, width / 10, s))


def no_clip(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Flat, "factors", lambda self, squares, more, none: (torch.ones_like(none), none))


@pytest.mark.parametrize("broken", [less_noise, no_clip])
def test_a_broken_run_is_found_out(
    broken: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out = tmp_path / "out"
    broken(monkeypatch)
    with pytest.raises(CheckError, match="no certificate"):
        trained(model, out, sd.Budget(2, 1e-6), audit=1000)
    assert not (out / "certificate.json").exists() and not (out / "encoder.safetensors").exists()
    assert main(["audit", str(out)]) == 4
    said = capsys.readouterr()
    assert "CLAIM BROKEN" in said.out and "more than it claims" in said.err


def test_a_sound_run_at_the_same_budget_is_not(model: str, tmp_path: Path) -> None:
    """The twin: a false alarm of 0.05 at most each, and far less in fact (audit/rules.py)."""
    found = [
        trained(model, tmp_path / str(number), sd.Budget(2, 1e-6), audit=1000).certificate
        for number in range(3)
    ]
    assert all(one.document["audit"][0]["lower_bound"] < 2 for one in found)


def test_canary_texts_go_the_whole_way(model: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = trained(model, out, audit_texts=100)
    assert verify(out).passed and run.certificate is not None
    [finding] = run.certificate.document["audit"]
    assert "100 canary texts" in finding["attack"]
    [rate] = [part.rate for part, _ in run.certificate.event.parts if isinstance(part, PoissonEvent)]
    assert rate == pytest.approx(100 / 300, rel=0.01)


def test_without_noise_canary_texts_are_learnt(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = engine_room.add_noise_
    monkeypatch.setattr(engine_room, "add_noise_", lambda sums, width, s: real(sums, width / 1e4, s))
    with contextlib.suppress(CheckError):  # they may show enough to prove it
        settings = {"trains": "all", "steps": 120, "learning_rate": 0.01, "clip": 1.0}
        trained(model, tmp_path / "out", data=records(60), lot_size=60, audit_texts=100, **settings)
    [shown] = read(tmp_path / "out")
    inside, outside = shown.scores[shown.coins], shown.scores[~shown.coins]
    found = stats.mannwhitneyu(inside, outside, alternative="greater")
    assert found.pvalue < 1e-3


def test_both_kinds_share_what_may_go_wrong(model: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    people = records(300, people=300)
    run = trained(
        model, out, sd.Budget(8, 1e-6, "user"), data=people, user="author", audit=50, audit_texts=50
    )
    assert run.certificate is not None and verify(out).passed
    found = run.certificate.document["audit"]
    assert len(found) == 2 and all(one["confidence"] == pytest.approx(0.975) for one in found)


def test_a_text_that_is_out_has_no_label() -> None:
    from sourdine.data.corpus import read_corpus

    corpus = read_corpus(records(30, people=30), text="note", label="mood", user="author")

    class Tokenizer:
        def get_vocab(self) -> dict[str, int]:
            return {}

    made = Decoys.made(200, Tokenizer(), 1, LABELS, seeded(1))
    whole = made.among(corpus)
    assert len(whole) == 230 and len(set(whole.users or ())) == 230
    for coin, label, drawn in zip(made.coins, whole.labels[30:], made.labels, strict=True):  # type: ignore[index]
        assert label == (drawn if coin else "")
    assert 60 < sum(made.coins) < 140  # false alarm 1e-8
    assert len(set(made.texts[0])) == 200


def test_a_run_that_goes_on_keeps_its_canaries(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(BaseException):
        pass

    def stop(stage: str, done: int, total: int, epsilon: float | None) -> None:
        if stage == "training" and done == 12:
            raise Stopped

    out = tmp_path / "out"
    with pytest.raises(Stopped):
        trained(model, out, audit=200, audit_texts=30, tell=stop)
    before = json.loads((out / "progress.json").read_text())["decoys"]
    with pytest.raises(InputError, match="not what this run began with"):
        trained(model, out, audit=200, resume=True)
    run = trained(model, out, audit=200, audit_texts=30, resume=True)
    texts, gradients = read(out)
    assert texts.coins.tolist() == before["coins"]
    assert gradients.scores[gradients.coins].mean() > gradients.scores[~gradients.coins].mean()
    assert run.certificate is not None and verify(out).passed


def test_refusals(model: str, tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(InputError, match="claims nothing"):
        sd.Trainer(records(50), not_private=True, audit=10, text="note", label="mood")
    with pytest.raises(InputError, match="audit"):
        trained(model, tmp_path / "none", audit=0)
    (tmp_path / "empty").mkdir()
    assert main(["audit", str(tmp_path / "empty")]) == 2
    assert "neither a certificate nor a ledger" in capsys.readouterr().err
    for text in ("", "[]", '{"format": "sourdine.canaries", "version": 2}', '{"format": 1}'):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(InputError, match=FILE):
            read(tmp_path)
    write(tmp_path, [Scored("some", np.array([True, False]), np.array([1.0, 1 / 3]))])
    assert read(tmp_path)[0].scores.tolist() == [1.0, 0.333333333]
    plain = json.loads((tmp_path / FILE).read_text())
    for canaries in (
        [],
        [{**plain["canaries"][0], "coins": [1, 2]}],
        [{**plain["canaries"][0], "coins": [1]}],
    ):
        (tmp_path / FILE).write_text(json.dumps({**plain, "canaries": canaries}))
        with pytest.raises(InputError):
            read(tmp_path)
