"""Attacks on a training run: what its folder tells, what is drawn twice, what is charged too little."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tiny import PLAIN, encoder, records, torch

import sourdine as sd
from sourdine import rng
from sourdine.certificate import verify
from sourdine.cli import main
from sourdine.data.corpus import read_corpus
from sourdine.errors import BudgetError, InputError
from sourdine.events import Event, GaussianEvent, ParallelEvent, PoissonEvent
from sourdine.ledger import Ledger
from sourdine.sgd import adding as adding_room
from sourdine.sgd import engine as engine_room
from sourdine.sgd.charge import Charge
from sourdine.sgd.folder import Folder
from sourdine.sgd.sampling import PoissonLots
from sourdine.text import contrast, releases
from sourdine.text import run as runs
from sourdine.text import trainer as room
from sourdine.text.examples import Collate, cached_features, tokenized
from sourdine.text.models import Classifier, Mean, load_encoder
from sourdine.text.output import Weights
from sourdine.text.tasks import Classify

LABELS = ["good", "bad"]
USERS = sd.Budget(3, 1e-6, unit="user")
ADD_REMOVE = sd.Budget(3, 1e-6, adjacency="add-remove")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return encoder(tmp_path_factory.mktemp("attack") / "model")


@pytest.fixture(scope="module")
def data() -> dict[str, list[str]]:
    return records(120)


def trainer(data: Any, model: str, budget: Any = None, **settings: Any) -> sd.Trainer:
    usual = {"text": "note", "label": "mood", "steps": 2, "lot_size": 1000, "trains": "head"}
    usual |= {"labels": LABELS, "held_out": 0.3}
    budget = budget or sd.Budget(3, 1e-6)
    return sd.Trainer(data, budget, model=model, **{**usual, **settings})


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figures, and epsilon at the ends only."""
    monkeypatch.setattr(runs, "page", lambda *_: "<html></html>")
    monkeypatch.setattr("sourdine.text.learning._SHOWN", 1)


class Killed(BaseException):
    """As by a signal: nobody catches it."""


def killed(*_: object, **__: object) -> Any:
    raise Killed


# What is drawn twice


class Draws:
    """Every confusion matrix and label count that is drawn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, real = 0, releases.noisy

        def noisy(*given: Any) -> Any:
            self.count += 1
            return real(*given)

        monkeypatch.setattr(releases, "noisy", noisy)


def test_metrics_that_somebody_saw_are_not_drawn_again(
    data: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that fails after it has shown them, as a server that goes away does."""
    heard: list[dict[str, float]] = []

    def log(said: dict[str, float]) -> None:
        if "accuracy" in said:
            heard.append(said)
            if len(heard) == 1:
                raise Killed

    drawn = Draws(monkeypatch)
    with pytest.raises(Killed):
        trainer(data, model, output_dir=tmp_path / "out", log=log).fit()
    run = trainer(data, model, output_dir=tmp_path / "out", resume=True, log=log).fit()
    assert drawn.count == 1
    assert all(said["accuracy"] == run.metrics["accuracy"]["value"] for said in heard)


def test_labels_that_did_not_come_out_are_not_asked_for_again(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That too few labels came out is an answer; asking until they do is not paid for."""
    drawn, few = Draws(monkeypatch), records(120, classes=8)
    for resume in (False, True, True):
        with pytest.raises(InputError, match="fewer than two labels"):
            trainer(few, model, labels=None, output_dir=tmp_path / "out", resume=resume).fit()
    assert drawn.count == 1


def test_a_run_killed_right_after_its_charge_goes_on(
    data: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sd.Trainer, "_labels", killed)
        with pytest.raises(Killed):
            trainer(data, model, output_dir=tmp_path / "out").fit()
    run = trainer(data, model, output_dir=tmp_path / "out", resume=True).fit()
    assert verify(run.folder).passed
    assert [entry.kind for entry in Ledger(run.folder / "ledger.sqlite").history()] == [
        "reserve",
        "settle",
    ]


@pytest.mark.parametrize("where", [(Charge, "settle"), (Folder, "destroy_keys")])
def test_keys_are_destroyed_in_the_end_whenever_it_was_stopped(
    where: tuple[Any, str], data: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever finds the key of a finished run subtracts its noise."""
    keys = Path(os.environ["SOURDINE_HOME"]) / "keys"
    before = set(keys.glob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(*where, killed)
        with pytest.raises(Killed):
            trainer(data, model, output_dir=tmp_path / "out").fit()
    assert set(keys.glob("*")) > before
    run = trainer(data, model, output_dir=tmp_path / "out", resume=True).fit()
    assert verify(run.folder).passed and set(keys.glob("*")) == before


def test_a_run_killed_right_after_its_seal_is_cleared_up(
    data: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, seal = tmp_path / "out", runs.papers.seal

    def sealed(*given: Any, **more: Any) -> None:
        seal(*given, **more)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(runs.papers, "seal", sealed)
        with pytest.raises(Killed):
            trainer(data, model, output_dir=out).fit()
    assert not verify(out).passed
    with pytest.raises(InputError, match="finished run"):
        trainer(data, model, output_dir=out, resume=True).fit()
    assert verify(out).passed


def test_nobody_else_draws_metrics_while_a_run_does(
    data: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder stays locked until it is sealed, not only until the last step."""
    out, real, refused = tmp_path / "out", sd.Trainer._answers, []

    def answers(self: Any, *given: Any) -> Any:
        if not refused:
            refused.append("asked")
            with pytest.raises(InputError, match="in use"):
                trainer(data, model, output_dir=out, resume=True).fit()
            refused.append("refused")
        return real(self, *given)

    monkeypatch.setattr(sd.Trainer, "_answers", answers)
    drawn = Draws(monkeypatch)
    run = trainer(data, model, output_dir=out).fit()
    assert refused == ["asked", "refused"] and drawn.count == 1 and verify(run.folder).passed


def test_a_folder_that_is_held_is_not_let_go_by_others(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run", room.Processes())
    with pytest.raises(Killed), folder.held():
        folder.close()
        with pytest.raises(InputError, match="in use"):
            Folder(tmp_path / "run", room.Processes()).take()
        raise Killed
    other = Folder(tmp_path / "run", room.Processes())
    other.take()
    other.close()


# Going on with something else


@pytest.mark.parametrize("change", ["held out", "salt", "record", "labels", "length"])
def test_who_was_trained_on_is_never_tested_on(
    change: str, data: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan charges the larger of training and test: a run must not go on with another split."""
    out, settings = tmp_path / "out", {"records": 120, "budget": ADD_REMOVE, "held_out": 0.1}
    with monkeypatch.context() as patch:
        patch.setattr(sd.Trainer, "_metrics", killed)
        with pytest.raises(Killed):
            trainer(data, model, output_dir=out, **settings).fit()
    if change == "held out":
        settings["held_out"] = 0.5
    if change == "labels":
        settings["labels"] = LABELS[::-1]
    if change == "length":
        settings["max_length"] = 7
    if change == "salt":
        monkeypatch.setattr(room, "own_salt", lambda: "another")
    if change == "record":
        data = {**data, "note": [f"{text} ." for text in data["note"]]}
    with pytest.raises(InputError, match="began with"):
        trainer(data, model, output_dir=out, resume=True, **settings).fit()


def test_a_run_goes_on_with_a_source_of_its_kind(
    data: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else metrics of a seeded source end under a certificate."""
    with monkeypatch.context() as patch:
        patch.setattr(sd.Trainer, "_metrics", killed)
        for seed in (None, 1):
            with pytest.raises(Killed):
                trainer(data, model, output_dir=tmp_path / str(seed), seed=seed).fit()
    for seed in (None, 1):
        other = 1 if seed is None else None
        with pytest.raises(InputError, match="source"):
            trainer(data, model, output_dir=tmp_path / str(seed), seed=other, resume=True).fit()


def test_one_trainer_makes_one_run(data: Any, model: str) -> None:
    """A second run would be a second release under one budget; what was learnt stays in the first."""
    made = trainer(data, model, trains="bitfit", held_out=0.0, learning_rate=10.0)
    before = {name: x.clone() for name, x in made.prepare().encoder.state_dict().items()}
    made.fit()
    with pytest.raises(InputError, match="has made its run"):
        made.fit()
    after = made.prepare().encoder.state_dict()
    assert all(torch.equal(after[name], x) for name, x in before.items())


# What the folder tells


def told(document: dict[str, Any]) -> str:
    """A certificate without what is random in it: hashes, times, and metrics that have noise."""
    found = json.loads(json.dumps(document))
    del found["made"], found["signature"], found["data"]["fingerprint"], found["released"]["files"]
    found["utility"] = {name: x for name, x in found["utility"].items() if not isinstance(x, dict)}
    return json.dumps(found, sort_keys=True)


def test_how_many_rows_a_person_has_is_not_told(model: str, tmp_path: Path) -> None:
    """Per user the number of users is public; the rows of a person are that person's."""
    data = records(130, people=60)
    busy = {name: [*column, *column[:1] * 41] for name, column in data.items()}
    said = []
    for name, each in (("plain", data), ("busy", busy)):
        out = tmp_path / name
        run = trainer(each, model, USERS, user="author", rows_per_user=2, output_dir=out).fit()
        assert run.certificate is not None and verify(out).passed
        said.append(told(run.certificate.document))
    assert said[0] == said[1]


def test_the_true_number_of_records_is_nowhere_under_add_remove(model: str, tmp_path: Path) -> None:
    heard: list[dict[str, float]] = []
    settings = {"records": 150, "lot_size": None, "steps": None, "epochs": 1.0, "held_out": None}
    said = []
    for count in (131, 137):
        out = tmp_path / str(count)
        run = trainer(
            records(count), model, ADD_REMOVE, output_dir=out, log=heard.append, **settings
        ).fit()
        assert run.certificate is not None
        said.append(told(run.certificate.document))
        for path in out.iterdir():
            if path.suffix in (".json", ".md", ".html") and path.name != "certificate.json":
                assert f"{count} records" not in path.read_text()
    assert said[0] == said[1]


def test_nothing_is_planned_from_a_private_count(data: Any, model: str) -> None:
    with pytest.raises(InputError, match="declare one with records="):
        trainer(data, model, ADD_REMOVE).prepare()


def test_no_path_of_the_machine_is_in_the_folder(data: Any, model: str, tmp_path: Path) -> None:
    run = trainer(data, model, output_dir=tmp_path / "out").fit()
    for path in run.folder.iterdir():
        assert str(Path(model).parent).encode() not in path.read_bytes(), path.name


# Whose rows count


def test_test_records_without_users_are_refused(model: str) -> None:
    """Else a person with ten rows moves the matrix by ten, and is charged for one."""
    train = read_corpus(records(120, people=60), text="note", label="mood", user="author")
    test = read_corpus(records(120, seed=6), text="note", label="mood")
    with pytest.raises(InputError, match="user"):
        trainer(train, model, USERS, user="author", test=test, held_out=None).fit()
    with pytest.raises(InputError, match="user"):
        trainer(test, model, USERS, user="author").prepare()
    with pytest.raises(InputError, match="user"):
        trainer(train, model).prepare()


def test_rows_per_user_need_users_before_anything_is_charged(data: Any, model: str) -> None:
    with pytest.raises(InputError, match="rows_per_user"):
        trainer(data, model, rows_per_user=2)


# Features that are kept


def test_features_of_another_encoder_are_not_taken(model: str) -> None:
    """Weights alike, but for a buffer or the number of attention heads."""
    found, tokens, _ = load_encoder(model)
    rows = tokenized(tokens, [records(20)["note"]], [0] * 20, 16)
    collate = Collate(tokens.pad_token_id)
    first = cached_features(Classifier(found, 2, Mean()), rows, collate)
    assert torch.equal(first, cached_features(Classifier(found, 2, Mean()), rows, collate))
    config = type(found.config)(**{**found.config.to_dict(), "num_attention_heads": 4})
    other = type(found)(config)
    other.load_state_dict(found.state_dict())
    assert not torch.allclose(first, cached_features(Classifier(other, 2, Mean()), rows, collate))


# What is drawn, against what is charged


class Executed:
    """All noise, clips and rates as they reach the functions that draw."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, less: float = 1.0) -> None:
        monkeypatch.setattr(Charge, "_least", lambda _: 30.0)  # fits, and need not be searched for
        monkeypatch.setattr(sd.Trainer, "_seal", lambda *_: None)
        self.rates: list[float] = []
        self.steps: list[float] = []
        self.counts: list[tuple[int, float]] = []
        self.clips: set[float] = set()
        draw, add, summed = PoissonLots.draw, engine_room.add_noise_, adding_room.clipped_sum
        noisy = releases.noisy

        def drawn(lots: Any, step: int, source: Any) -> Any:
            self.rates.append(lots.rate)
            return draw(lots, step, source)

        def clipped(net: Any, losses: Any, clip: Any, **more: Any) -> Any:
            self.clips.add(clip.bound)
            return summed(net, losses, clip, **more)

        def added(sums: Any, deviation: float, source: Any) -> None:
            self.steps.append(less * deviation)
            add(sums, less * deviation, source)

        def counted(values: Any, deviation: float, source: Any) -> Any:
            self.counts.append((values.numel(), less * deviation))
            return noisy(values, less * deviation, source)

        monkeypatch.setattr(PoissonLots, "draw", drawn)
        monkeypatch.setattr(adding_room, "clipped_sum", clipped)
        monkeypatch.setattr(engine_room, "add_noise_", added)
        monkeypatch.setattr(releases, "noisy", counted)

    def paid(self, event: Event, most: int) -> bool:
        """Whether the event pays for all of it; a unit has at most so many rows."""
        parts = [item for part in event.parts for item in spread(*part)]
        steps = [(part, count) for part, count in parts if isinstance(part, PoissonEvent)]
        counts = sorted(part.noise_multiplier for part, _ in parts if isinstance(part, GaussianEvent))
        [(lots, count)], [clip] = steps, self.clips
        assert isinstance(lots.event, GaussianEvent)
        drawn = [
            deviation / (most if cells == 4 else most**0.5)  # a matrix of two classes, or labels
            for cells, deviation in self.counts
        ]
        return (
            count == len(self.rates) == len(self.steps)
            and max(self.rates) <= lots.rate * (1 + 1e-12)
            and min(self.steps) >= clip * lots.event.noise_multiplier * (1 - 1e-12)
            and len(drawn) == len(counts)
            and all(x >= y * (1 - 1e-12) for x, y in zip(sorted(drawn), counts, strict=True))
        )


def spread(part: Event, count: int) -> list[tuple[Event, int]]:
    if isinstance(part, ParallelEvent):
        return [item for branch in part.events for inner in branch.parts for item in spread(*inner)]
    return [(part, count)]


SITUATIONS: dict[str, dict[str, Any]] = {
    "zero-out": {"epochs": 3, "steps": None, "lot_size": 20},
    "few declared": {"budget": ADD_REMOVE, "records": 90, "lot_size": 40},
    "many declared": {"budget": ADD_REMOVE, "records": 900, "lot_size": 40},
    "replace-one": {
        "budget": sd.Budget(3, 1e-6, adjacency="replace-one"),
        "lot_size": 40,
        "labels": LABELS,
    },
    "users": {"budget": USERS, "user": "author", "rows_per_user": 2, "lot_size": 20},
    "a test apart": {"test": records(60, people=30), "held_out": None, "lot_size": 40},
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_is_drawn_is_what_was_charged(
    name: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"labels": None, **SITUATIONS[name]}
    ran = Executed(monkeypatch)
    run = trainer(records(240, people=120), model, output_dir=tmp_path / "out", **settings).fit()
    [reserved, *_] = Ledger(run.folder / "ledger.sqlite").history()
    assert ran.paid(reserved.event, settings.get("rows_per_user", 1))
    assert [cells for cells, _ in ran.counts] == ([4] if settings["labels"] else [2, 4])


def test_a_tenth_less_noise_than_was_charged_is_seen(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = Executed(monkeypatch, less=0.9)
    run = trainer(records(240), model, output_dir=tmp_path / "out", lot_size=40, labels=None).fit()
    assert not ran.paid(Ledger(run.folder / "ledger.sqlite").history()[0].event, 1)


def test_a_person_is_on_one_side_only(model: str) -> None:
    ready = trainer(records(240, people=40), model, USERS, user="author", rows_per_user=9).prepare()
    assert ready.test is not None
    assert not set(ready.train.users or ()) & set(ready.test.users or ())
    twins = records(120)
    twins = {name: [*column, *column] for name, column in twins.items()}
    ready = trainer(twins, model).prepare()
    assert ready.test is not None
    assert not set(ready.train.texts[0]) & set(ready.test.texts[0])


def test_replacing_a_record_by_one_of_the_other_side_is_not_told(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever knows the split of two texts, from other runs, must not see which one there is."""
    monkeypatch.setattr(room, "own_salt", lambda: "known")
    data, budget = records(120), sd.Budget(3, 1e-6, adjacency="replace-one")
    sides, said = {}, []
    for word in PLAIN:
        text = f"{word} today"
        other = {**data, "note": [text, *data["note"][1:]]}
        ready = trainer(other, model, budget).prepare()
        sides[len(ready.train)] = text
    assert len(sides) == 2
    for number, text in enumerate(sides.values()):
        out = tmp_path / str(number)
        other = {**data, "note": [text, *data["note"][1:]]}
        run = trainer(other, model, budget, lot_size=40, output_dir=out).fit()
        assert run.certificate is not None and verify(out).passed
        said.append(told(run.certificate.document))
    assert said[0] == said[1]


def test_steps_run_again_are_in_the_certificate(
    data: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that are gone: with room in the budget the run goes on, pays again and is certified."""
    least = Charge._least
    monkeypatch.setattr(Charge, "_least", lambda self: 2 * least(self))
    keys = Path(os.environ["SOURDINE_HOME"]) / "keys"
    before = set(keys.glob("*"))

    def stop(stage: str, done: int, total: int, epsilon: float | None) -> None:
        if done == 1:
            raise Killed

    settings: dict[str, Any] = {"output_dir": tmp_path / "out", "held_out": 0.0}
    with pytest.raises(Killed):
        trainer(data, model, tell=stop, **settings).fit()
    for key in set(keys.glob("*")) - before:
        key.unlink()
    run = trainer(data, model, resume=True, **settings).fit()
    assert run.certificate is not None and verify(run.folder).passed and run.epsilon == 3
    what = [access["what"] for access in run.certificate.document["accesses"]]
    assert "steps that were run a second time" in what
    monkeypatch.setattr(Charge, "_least", least)  # without room it is refused
    settings["output_dir"] = tmp_path / "full"
    with pytest.raises(Killed):
        trainer(data, model, tell=stop, **settings).fit()
    for key in set(keys.glob("*")) - before:
        key.unlink()
    with pytest.raises(BudgetError, match="run again"):
        trainer(data, model, resume=True, **settings).fit()


def test_the_model_on_bytes_is_the_same_when_a_run_goes_on() -> None:
    """A head is kept with its run, the frozen weights below it are not."""
    first, second = load_encoder("bytes")[0].state_dict(), load_encoder("bytes")[0].state_dict()
    assert all(torch.equal(x, second[name]) for name, x in first.items())


def test_noise_elsewhere_does_not_tell_how_many_rows_a_person_has() -> None:
    rows = contrast.Rows(torch.eye(4), [0, 1, 0, 1], ["a", "b", "c", "c"])
    weights, goal = Weights(torch.ones(2, 4), torch.zeros(2)), Classify(("good", "bad"))
    people = "about 3 of 20 people"
    said = [contrast.metrics(weights, rows, goal, 9.0, most, rng.secure(), people) for most in (1, 2)]
    assert all(each["records"] == people and people in each["how"] for each in said)


@pytest.mark.parametrize("kind", ["seeded", "not private"])
def test_what_is_not_private_is_not_verified(kind: str, data: Any, model: str, tmp_path: Path) -> None:
    if kind == "seeded":
        out = trainer(data, model, seed=3, output_dir=tmp_path / "out").fit().folder
    else:
        settings: dict[str, Any] = {"text": "note", "label": "mood", "trains": "head", "steps": 2}
        made = sd.Trainer(data, model=model, not_private=True, **settings, output_dir=tmp_path / "out")
        out = made.fit().folder
    assert main(["verify", str(out)]) != 0
    assert "NOT PRIVATE" in json.loads((out / "metrics.json").read_text())["privacy"]
    assert (out / "README.md").read_text().splitlines()[0].endswith("NOT PRIVATE")
    assert not (out / "report.html").exists() and not (out / "progress.json").exists()
