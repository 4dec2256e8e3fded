"""Comparisons: one plan that covers every run, charged once; resumed and shared; refused when wrong."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sourdine.accounting import curve
from sourdine.budget import Budget
from sourdine.errors import InputError
from sourdine.events import Event, GaussianEvent, ParallelEvent, compose
from sourdine.ledger import Ledger
from sourdine.rng import seeded
from sourdine.text import compare as room
from sourdine.text import contrast, inputs, output, results, runs
from sourdine.text.comparison import METHODS, Comparison, OneRun, comparison
from sourdine.text.contrast import Rows
from sourdine.text.desk import Desk
from sourdine.text.tasks import Classify

ENOUGH = 1000.0
"""All of these comparisons are agreed to."""
WORDS = {"yes": ("good", "fine", "great"), "no": ("bad", "poor", "sad")}


def table(rows: int = 100, classes: tuple[str, ...] = ("yes", "no")) -> dict[str, list[str]]:
    draw = random.Random(3)
    kinds = [classes[at % len(classes)] for at in range(rows)]
    notes = [f"{draw.choice(WORDS[kind])} {at}" for at, kind in enumerate(kinds)]
    return {"note": notes, "kind": kinds}


def asked(**changes: Any) -> Comparison:
    given: dict[str, Any] = {
        "text": "note",
        "label": "kind",
        "labels": ["yes", "no"],
        "model": "bytes",
        "epsilons": [2.0],
        "methods": ["output"],
        "seeds": 1,
        "steps": 2,
        "max_length": 8,
        "device": "cpu",
    }
    return comparison(changes.pop("data", table()), **(given | changes))


def compare(settings: Comparison, out: Path, **options: Any) -> dict[str, Any]:
    return room.compare(settings, out, at_most=ENOUGH, **options)


@pytest.fixture(scope="module")
def whole() -> Comparison:
    return asked(methods=["head", "output", "input"], epsilons=[4.0, float("inf")])


@pytest.fixture(scope="module")
def folder(whole: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    out = tmp_path_factory.mktemp("compare") / "out"
    compare(whole, out)
    yield out


def entries(folder: Path) -> list[str]:
    return [entry.kind for entry in Ledger(folder / "ledger.sqlite").history()]


def test_the_ledger_holds_all_private_runs_as_one_plan(whole: Comparison, folder: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    branches = [Event.from_json(plan["events"][run.kind]) for run in whole.runs if run.private]
    assert len(branches) == 3 and all(isinstance(each, ParallelEvent) for each in branches)
    ledger = Ledger(folder / "ledger.sqlite")
    reserved, settled = ledger.history()
    assert (reserved.kind, settled.reason) == ("reserve", "done")
    event = Event.from_json(reserved.text)
    assert isinstance(event, ParallelEvent)
    # Which branch is the test: the one that is Gaussian only. Every run must be in both sums.
    parts = [dict(branch.parts) for branch in event.events]
    for each in branches:
        assert isinstance(each, ParallelEvent)
        for own in each.events:
            assert any(all(count <= part.get(x, 0) for x, count in own.parts) for part in parts)
    assert sum(sum(part.values()) for part in parts) == sum(
        count
        for each in branches
        for own in each.events
        for _, count in own.parts  # type: ignore[attr-defined]
    )
    assert curve(event).epsilon_upper(1e-6) <= plan["epsilon"] == ledger.budget.epsilon
    assert plan["epsilon"] < 1.001 * curve(event).epsilon_upper(1e-6)
    assert plan["epsilon"] > 4.0  # several runs cost more than one


def test_results_and_what_they_say(whole: Comparison, folder: Path) -> None:
    found = json.loads((folder / "comparison.json").read_text())
    assert [(r["method"], r["epsilon"]) for r in found["results"]] == [
        (method, epsilon) for epsilon in (4.0, "inf") for method in ("head", "output", "input")
    ]
    for result in found["results"]:
        for metric in ("accuracy", "macro_f1", "matthews", "largest_class"):
            spread = result[metric]
            assert len(spread["values"]) == 1 and spread["low"] <= spread["mean"] <= spread["high"]
    page = (folder / "comparison.md").read_text()
    assert "costs epsilon <= " in page and "NOT PRIVATE" in page
    assert (folder / "frontier.png").stat().st_size > 10_000 and (folder / "frontier.svg").exists()


def test_every_accuracy_stands_beside_what_always_one_answer_reaches(folder: Path) -> None:
    found = json.loads((folder / "comparison.json").read_text())
    table = results.rows(found, "accuracy")
    assert [line[0] for line in table] == ["method", "head", "output", "input", results.ALWAYS]
    shares = [x["largest_class"]["values"][0] for x in found["results"] if x["epsilon"] == "inf"]
    assert len(set(shares)) == 1 and f"{shares[0]:.3f}" in table[-1][2]
    page = (folder / "comparison.md").read_text()
    assert f"| {results.ALWAYS} |" in page and "## Matthews correlation" in page
    assert "classes: yes, no" in page
    # Labels alternate, and some twenty records are held out: a trained head may well be useless here.
    for result in found["results"]:
        runs = [json.loads(path.read_text()) for path in (folder / "runs").glob("*.json")]
        [own] = [
            x for x in runs if (x["method"], x["epsilon"]) == (result["method"], result["epsilon"])
        ]
        useless = not own["metrics"]["beats_largest_class"]
        assert result["no_better"] == int(useless)
        named = "without privacy" if result["epsilon"] == "inf" else "at epsilon 4"
        said = f"{result['method']} {named} is no better than always answering the most frequent class"
        assert any(sentence.startswith(said) for sentence in found["says"]) == useless


def test_how_many_units_are_held_out_exactly_is_told_to_nobody(folder: Path) -> None:
    """Where the others lie may be known: the exact size of a part then tells where the last unit lies."""
    plan = json.loads((folder / "plan.json").read_text())
    assert plan["records"] == {"train": 80, "test": 20}  # a hash decides: these are what is expected
    for path in (folder / "runs").iterdir():
        run = json.loads(path.read_text())
        if run["epsilon"] != "inf":
            assert run["metrics"]["records"] == "about 20 of 100 records"
            assert "of about 20 of 100 records held out" in run["metrics"]["how"]


def test_a_comparison_begun_by_an_older_version_ends_without_the_share(folder: Path) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    runs = [json.loads(path.read_text()) for path in (folder / "runs").glob("*.json")]
    for run in runs:
        del run["metrics"]["largest_class"], run["metrics"]["beats_largest_class"]
    found = results.sum_up(plan, runs)
    assert results.ALWAYS not in [line[0] for line in results.rows(found, "accuracy")]
    assert not any("no better" in sentence for sentence in found["says"])


def test_runs_without_privacy_are_marked_and_the_others_are_noisy(folder: Path) -> None:
    for path in (folder / "runs").iterdir():
        run = json.loads(path.read_text())
        assert ("NOT PRIVATE" in run["privacy"]) == (run["epsilon"] == "inf")
        assert ("Gaussian noise" in run["metrics"]["how"]) == (run["epsilon"] != "inf")


def test_no_weights_and_nothing_private_stay(folder: Path) -> None:
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    results = {name for name in names if name.count("-") == 2 and name.endswith(".json")}
    assert names - results == {
        *("plan.json", "comparison.json", "comparison.md", "frontier.png", "frontier.svg"),
        "ledger.sqlite",
    }
    assert not Path(f"{folder}.not-for-release").exists()
    for path in folder.rglob("*.json"):
        assert "good" not in path.read_text() and 'seed"' not in path.read_text()


def test_only_what_is_missing_is_made_again(
    whole: Comparison, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, real = [], room.made
    monkeypatch.setattr(
        room, "made", lambda asked, run, *rest: made.append(run.name) or real(asked, run, *rest)
    )
    compare(whole, folder)
    assert made == []
    (folder / "runs" / "output-4-1.json").unlink()
    before = (folder / "runs" / "head-4-1.json").read_bytes()
    compare(whole, folder)
    assert made == ["output-4-1"]
    assert (folder / "runs" / "head-4-1.json").read_bytes() == before
    assert entries(folder) == ["reserve", "settle"]


def test_another_comparison_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"another comparison: methods, epsilon differ"):
        compare(asked(), folder)
    with pytest.raises(InputError, match=r"another comparison: data, "):
        compare(asked(data=table(120)), folder)
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="not empty"):
        compare(asked(), tmp_path)


def test_every_run_holds_out_the_same_records() -> None:
    public = {"note": [f"a public note {at}" for at in range(30)]}
    settings = asked(methods=list(METHODS), epsilons=[1.0, 8.0, float("inf")], public=public)
    tests = []
    for run in (OneRun("head", 1.0, 1), OneRun("lora", 8.0, 2), OneRun("all", float("inf"), 1)):
        ready = settings.trainer(run, ["yes", "no"]).prepare()
        assert ready.test is not None and not set(ready.test.texts[0]) & set(ready.train.texts[0])
        tests.append(ready.test.texts[0])
    assert tests[0] == tests[1] == tests[2]


def test_what_is_drawn_was_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose cost is not the planned one shows nothing."""

    def stop(*given: Any) -> None:
        raise KeyboardInterrupt

    settings, out = asked(methods=["head", "output"]), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(room, "_work", stop)
        with pytest.raises(KeyboardInterrupt):
            compare(settings, out)
    plan = json.loads((out / "plan.json").read_text())
    cheaper = ParallelEvent((GaussianEvent(9.0), GaussianEvent(8.0))).to_json()
    plan["events"] = dict.fromkeys(plan["events"], cheaper)
    (out / "plan.json").write_text(json.dumps(plan))
    for name in ("head-2-1", "output-2-1"):
        with pytest.raises(InputError, match="something else than was planned"):
            compare(settings, out)
        assert not (out / "runs" / f"{name}.json").exists()
        Desk(out).keep(name, {})


def test_labels_that_nobody_declared_are_found_and_charged_once(tmp_path: Path) -> None:
    settings = asked(data=table(400), labels=None, epsilons=[8.0])
    compare(settings, tmp_path / "out")
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert plan["labels"] == ["no", "yes"]
    event = Event.from_json(Ledger(tmp_path / "out" / "ledger.sqlite").history()[0].text)
    kinds = sorted(part.kind for part, _ in event.parts)
    assert kinds == ["approximate", "gaussian", "parallel"]
    assert plan["epsilon"] > 8.0


def test_labels_that_do_not_come_out_are_not_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = table()
    few["kind"] = ["yes" if place else "no" for place in range(len(few["kind"]))]
    settings = asked(data=few, labels=None)  # one record of a label is far below what comes out
    with pytest.raises(InputError, match="fewer than two labels"):
        compare(settings, tmp_path / "out")
    monkeypatch.setattr(room, "find_labels", lambda *given: pytest.fail("drawn again"))
    with pytest.raises(InputError, match="too few labels came out"):
        compare(settings, tmp_path / "out")
    assert entries(tmp_path / "out") == ["reserve"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"methods": ["haed"]}, "did you mean 'head'"),
        ({"methods": []}, "at least one method"),
        ({"methods": ["input"], "labels": None}, "--labels yes,no"),
        ({"epsilons": []}, "budgets to compare"),
        ({"epsilons": [0.0]}, "epsilon is 0"),
        ({"epsilons": [-1.0]}, "epsilon is -1"),
        ({"epsilons": [float("nan")]}, "epsilon is nan"),
        ({"delta": 0.5}, "delta is 0.5"),
        ({"seeds": 0}, "seeds is 0"),
        ({"labels": ["yes"]}, "two labels"),
    ],
)
def test_bad_settings(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        asked(**changes)


def test_a_comparison_without_any_privacy_has_no_ledger(tmp_path: Path) -> None:
    found = compare(asked(epsilons=[float("inf")]), tmp_path / "out")
    assert found["epsilon"] is None and "NOT PRIVATE" in found["says"][0]
    assert not any("cost" in sentence for sentence in found["says"])
    assert not (tmp_path / "out" / "ledger.sqlite").exists()


def test_kept_runs_hold_their_certificate(tmp_path: Path) -> None:
    settings = asked(methods=["head"])
    compare(settings, tmp_path / "out", keep=True)
    kept = tmp_path / "out" / "runs" / "head-2-1"
    assert (kept / "certificate.json").exists() and (kept / "encoder.safetensors").exists()
    (tmp_path / "out" / "runs" / "head-2-1.json").unlink()  # killed just before it was written
    compare(settings, tmp_path / "out", keep=True)
    result = json.loads((tmp_path / "out" / "runs" / "head-2-1.json").read_text())
    assert result["metrics"] == json.loads((kept / "metrics.json").read_text())


# The other places for noise


@pytest.mark.parametrize("name", ["output", "input"])
def test_a_place_draws_the_noise_that_its_event_states(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    room_of, function = {"output": (output, "fit_output"), "input": (inputs, "perturb")}[name]
    real = getattr(room_of, function)
    monkeypatch.setattr(
        room_of, function, lambda *given, **named: seen.update(named) or real(*given, **named)
    )
    rows = Rows(torch.randn(40, 6), [0, 1] * 20, None)
    place, budget = contrast.PLACES[name], Budget(2.0, 1e-6)
    place.fit(rows, 2, 40, 1, budget, seeded(1))
    event = place.event(budget, 2, 6, 1)
    drawn: Event = GaussianEvent(seen["noise_multiplier"])
    if name == "input":
        drawn = inputs.event(seen["noise_multiplier"], seen["flip"], 2)
    assert drawn == event and curve(event).epsilon_upper(1e-6) <= 2.0
    assert seen["most_per_user"] == 1


@pytest.mark.parametrize("name", ["output", "input"])
def test_a_place_learns_without_noise_and_with_little(name: str) -> None:
    torch.manual_seed(0)
    classes = [0, 1, 2] * 400
    features = torch.eye(3)[torch.tensor(classes)] + 0.1 * torch.randn(1200, 3)
    rows, place = Rows(features, classes, None), contrast.PLACES[name]
    goal = Classify(("a", "b", "c"))
    for weights in (
        place.fit_exactly(rows, 3, 1200),
        place.fit(rows, 3, 1200, 1, Budget(20.0, 1e-6), seeded(2)),
    ):
        found = contrast.metrics(weights, rows, goal, None, 1, seeded(1), "some records")
        assert found["accuracy"]["value"] > 0.95 and "NOT PRIVATE" in found["how"]


def test_metrics_of_a_place_are_noisy() -> None:
    rows = Rows(torch.eye(2)[[0, 1] * 50], [0, 1] * 50, None)
    weights = output.Weights(torch.eye(2), torch.zeros(2))
    goal, amount = Classify(("a", "b")), "about 90 of 500 records"
    found = [contrast.metrics(weights, rows, goal, 5.0, 1, seeded(at), amount) for at in range(5)]
    assert len({each["accuracy"]["value"] for each in found}) > 1
    assert found[0]["records"] == amount and f"of {amount} held out, charged" in found[0]["how"]


# Several processes


def test_a_claim_is_held_by_one(tmp_path: Path) -> None:
    one, other = Desk(tmp_path / "out"), Desk(tmp_path / "out")
    with one.claim("a") as mine, other.claim("a") as theirs, other.claim("b") as free:
        assert (mine, theirs, free) == (True, False, True)
    with other.claim("a") as theirs:
        assert theirs


def test_a_draft_is_no_result(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "out")
    desk.runs.mkdir(parents=True)
    (desk.runs / "a.json.7.new").write_text('{"half')
    assert desk.result("a") is None
    desk.keep("a", {"x": 1})
    assert desk.result("a") == {"x": 1}
    (desk.runs / "b.json").write_text('{"half')
    with pytest.raises(InputError, match="damaged"):
        desk.result("b")


PROGRAM = (
    "import sys; from test_compare import *; compare(asked(seeds=12, epsilons=[2, 4]), sys.argv[1])"
)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_killed_comparison_goes_on(tmp_path: Path) -> None:
    out, seeds = tmp_path / "out", 12
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, out], env=here)
    while len(list((out / "runs").glob("*.json"))) < 2 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    before = {path.name: path.read_bytes() for path in (out / "runs").glob("*.json")}
    assert 2 <= len(before) < 2 * seeds and not (out / "comparison.json").exists()
    compare(asked(seeds=seeds, epsilons=[2.0, 4.0]), out)
    after = {path.name: path.read_bytes() for path in (out / "runs").glob("*.json")}
    assert len(after) == 2 * seeds and all(after[name] == text for name, text in before.items())
    assert entries(out) == ["reserve", "settle"]


def test_a_start_killed_after_its_charge_is_charged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = room.desk.write

    def die(path: Path, content: Any) -> None:
        if path.name == "plan.json":
            raise KeyboardInterrupt
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(room.desk, "write", die)
        with pytest.raises(KeyboardInterrupt):
            compare(asked(), tmp_path / "out")
    assert entries(tmp_path / "out") == ["reserve"]
    compare(asked(), tmp_path / "out")
    assert entries(tmp_path / "out") == ["reserve", "settle"]


def test_several_processes_share_the_runs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    compare(asked(seeds=2, epsilons=[2.0, 4.0]), out, workers=2)
    found = json.loads((out / "comparison.json").read_text())
    for result in found["results"]:
        one, other = result["accuracy"]["values"]
        assert one != other  # fresh noise each time
        assert (
            result["accuracy"]["low"] == min(one, other) < max(one, other) == result["accuracy"]["high"]
        )
    assert len(list((out / "runs").glob("*.json"))) == 4 and entries(out) == ["reserve", "settle"]


def test_the_whole_costs_more_than_any_part() -> None:
    settings = asked(epsilons=[2.0, 4.0], seeds=2)
    ready = settings.trainer(OneRun("head", 2.0, 1), ["yes", "no"]).prepare()
    kinds = runs.costs(settings, ready)
    whole = room._whole(settings, kinds, None)
    assert whole is not None
    most = max(curve(cost.event).epsilon_upper(1e-6) for cost in kinds.values())
    assert most <= 4.0 < curve(whole).epsilon_upper(1e-6)
    alone = compose([kinds["output-4"].event] * 2 + [kinds["output-2"].event] * 2)
    # Splitting anew for each run would let one unit meet the dearer of both each time.
    assert curve(whole).epsilon_upper(1e-6) <= curve(alone).epsilon_upper(1e-6) * (1 + 1e-6)
