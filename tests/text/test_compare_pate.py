"""PATE beside the other methods of a comparison: what it costs, what it needs, what it learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sourdine.accounting import curve
from sourdine.budget import Budget
from sourdine.data.corpus import read_corpus
from sourdine.errors import InputError
from sourdine.events import Event
from sourdine.ledger import Ledger
from sourdine.rng import seeded
from sourdine.text import contrast, ensemble
from sourdine.text.compare import compare
from sourdine.text.comparison import Comparison, comparison
from sourdine.text.contrast import Rows
from sourdine.text.ensemble import Ensemble

PUBLIC = {"note": [f"a public note {at}" for at in range(60)]}


def table(rows: int = 120) -> dict[str, list[str]]:
    kinds = ["yes", "no"] * (rows // 2)
    words = {"yes": "good", "no": "bad"}
    return {"note": [f"{words[kind]} {at}" for at, kind in enumerate(kinds)], "kind": kinds}


def asked(**changes: Any) -> Comparison:
    given: dict[str, Any] = {
        **{"text": "note", "label": "kind", "labels": ["yes", "no"], "model": "bytes"},
        **{"epsilons": [4.0, float("inf")], "methods": ["head", "pate"], "seeds": 1, "steps": 2},
        **{"max_length": 8, "device": "cpu", "public": PUBLIC, "teachers": 10},
    }
    return comparison(table(), **(given | changes))


def test_pate_is_part_of_the_plan_and_of_the_table(tmp_path: Path) -> None:
    settings, out = asked(), tmp_path / "out"
    found = compare(settings, out, at_most=1000.0)
    plan = json.loads((out / "plan.json").read_text())
    place = settings.place("pate")
    assert place is not None
    event = place.event(Budget(4.0, 1e-6), 2, 1, 1)
    assert event in Event.from_json(plan["events"]["pate-4"]).events  # type: ignore[attr-defined]
    assert curve(event).epsilon_upper(1e-6) <= 4.0
    (entry, _) = Ledger(out / "ledger.sqlite").history()
    assert curve(entry.event).epsilon_upper(1e-6) > 4.0  # both runs added up
    assert {(r["method"], r["epsilon"]) for r in found["results"]} == {
        *(("head", e) for e in (4.0, "inf")),
        *(("pate", e) for e in (4.0, "inf")),
    }
    page = (out / "comparison.md").read_text()
    assert "| pate | noisy votes of teachers, and a student |" in page
    assert "public texts" in page and "data-independent here" in page


def test_what_pate_needs() -> None:
    for missing in ({"public": None}, {"labels": None}):
        with pytest.raises(InputError, match=r"--public.*--labels"):
            asked(**missing)
    assert asked(methods=None).methods == ("head", "output", "input", "pate")
    assert "pate" not in asked(methods=None, public=None).methods


def test_private_records_in_the_public_texts_teach_nothing_and_nobody_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []
    real = ensemble.fit_heads
    monkeypatch.setattr(
        ensemble, "fit_heads", lambda x, y, *more: seen.append(list(y)) or real(x, y, *more)
    )
    out = tmp_path / "out"
    every = [f"{text}!".upper() for text in table()["note"]]
    about = asked(methods=["pate"], epsilons=[4.0], public={"note": every})
    with pytest.raises(InputError, match=r"120 of 120 private records.*--leave-out-copies"):
        compare(about, out)
    assert not seen
    compare(about, out, leave_out_copies=True)
    assert set(seen[0]) == {-1}
    plan = json.loads((out / "plan.json").read_text())
    assert sum(plan["records"].values()) == 120


def test_teachers_read_each_record_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a batch the last digits of a vector depend on its neighbours, and votes on edge with them."""
    seen: list[bool] = []
    real = contrast.cached_features

    def noted(*given: Any, alone: bool = False, **named: Any) -> Any:
        seen.append(alone)
        return real(*given, alone=alone, **named)

    monkeypatch.setattr(contrast, "cached_features", noted)
    compare(asked(methods=["pate"], epsilons=[4.0]), tmp_path / "out")
    assert seen == [True, True, False]  # training part, held out part, public texts


def test_other_public_texts_are_another_comparison(tmp_path: Path) -> None:
    compare(asked(methods=["pate"]), tmp_path / "out")
    other = {"note": [*PUBLIC["note"], "one more"]}
    with pytest.raises(InputError, match="public differ"):
        compare(asked(methods=["pate"], public=other), tmp_path / "out")


def test_it_learns_at_a_large_budget_and_without_noise() -> None:
    torch.manual_seed(0)
    classes = [at % 3 for at in range(1500)]
    features = torch.eye(3)[torch.tensor(classes)] + 0.2 * torch.randn(1500, 3)
    texts = {"note": [f"record {at}" for at in range(1200)], "kind": [str(c) for c in classes[:1200]]}
    corpus = read_corpus(texts, text="note", label="kind")
    rows, public = Rows(features[:1200], classes[:1200], None, corpus), features[1200:]
    others = read_corpus(
        {"note": [f"public {at}" for at in range(300)]}, text="note", label=None, labelled=False
    )
    place = Ensemble(others, 60, public)
    for weights in (
        place.fit_exactly(rows, 3, 1200),
        place.fit(rows, 3, 1200, 1, Budget(8.0, 1e-6), seeded(2)),
    ):
        right = weights.scores(public).argmax(1) == torch.tensor(classes[1200:])
        assert right.float().mean() > 0.9
    with pytest.raises(InputError, match="features of all"):
        Ensemble(others, 60, public[:10]).fit_exactly(rows, 3, 1200)
