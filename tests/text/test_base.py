"""A base model that is an earlier run: its certificate is checked, told, stated, and added up."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import sourdine as sd
from sourdine.budget import Budget
from sourdine.errors import InputError
from sourdine.text.base import load_base, read_base

ASKED: dict[str, Any] = {
    **{"text": "note", "label": "kind", "labels": ("no", "yes"), "trains": "head", "steps": 2},
    **{"max_length": 8, "device": "cpu"},
}


def table(name: str, rows: int = 60) -> dict[str, list[str]]:
    return {
        "note": [f"{name} {at} was {'good' if at % 2 else 'bad'}" for at in range(rows)],
        "kind": ["yes" if at % 2 else "no" for at in range(rows)],
    }


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "first"
    sd.Trainer(table("a"), Budget(2), model="bytes", output_dir=folder, **ASKED).fit()
    return folder


def second(base: Path, out: Path, rows: str, budget: Budget) -> Any:
    return sd.Trainer(table(rows), budget, model=str(base), output_dir=out, **ASKED).fit()


def stated(run: Path) -> dict[str, Any]:
    document = json.loads((run / "certificate.json").read_text())
    [found] = [line for line in document["accesses"] if "a base model" in line["what"]]
    return dict(found)


def test_the_same_records_add_up(base: Path, tmp_path: Path, capsys: Any) -> None:
    run = second(base, tmp_path / "out", "a", Budget(1))
    said = capsys.readouterr().err
    first = json.loads((base / "certificate.json").read_text())["guarantee"]["epsilon"]
    assert "the base model first: its own certificate, which holds, claims epsilon <= " in said
    total = float(said.split("cost at most epsilon ")[1].split()[0])
    assert total == pytest.approx(first + 1, abs=1e-4) and total >= first + 1
    assert "its records are these" in said and "at delta = 2e-06" in said
    assert stated(run.folder)["cost"] == "NOT ACCOUNTED"
    assert sd.verify(run.folder).passed


def test_the_certificate_does_not_tell_whether_the_records_are_the_same(
    base: Path, tmp_path: Path, capsys: Any
) -> None:
    same = second(base, tmp_path / "same", "a", Budget(1))
    other = second(base, tmp_path / "other", "b", Budget(1))
    assert "where its records are also these" in capsys.readouterr().err
    assert stated(same.folder) == stated(other.folder)
    assert "both runs together cost at most epsilon" in stated(other.folder)["why"]


def test_a_base_of_a_base_is_named(base: Path, tmp_path: Path, capsys: Any) -> None:
    second(base, tmp_path / "second", "b", Budget(1))
    third = second(tmp_path / "second", tmp_path / "third", "c", Budget(1))
    assert "beside what its own base has cost" in stated(third.folder)["why"]


def test_other_adjacencies_have_no_sum(base: Path, tmp_path: Path, capsys: Any) -> None:
    run = second(base, tmp_path / "out", "a", Budget(1, adjacency="replace-one"))
    assert "there is no common sum" in capsys.readouterr().err
    assert "both runs together" not in stated(run.folder)["why"]


@pytest.mark.parametrize("fault", ["broken", "none"])
def test_a_base_without_a_certificate_that_holds(
    base: Path, tmp_path: Path, capsys: Any, fault: str
) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(base, copied)
    if fault == "broken":
        (copied / "README.md").write_text("another page", encoding="utf-8")
    else:
        (copied / "certificate.json").unlink()
    run = second(copied, tmp_path / "out", "b", Budget(1))
    why = "does not hold (files)" if fault == "broken" else "a run without a certificate"
    said = capsys.readouterr().err
    assert why in said and "this run's epsilon does not cover that" in said
    assert why in stated(run.folder)["why"]


def test_it_is_loaded_as_the_run_was_saved(base: Path) -> None:
    encoder, tokenizer, pooling = load_base(str(base))
    model = sd.load(base)
    for name, value in model.network.encoder.state_dict().items():
        if "pooler" not in name:  # which nobody reads, and no run keeps
            assert torch.equal(encoder.state_dict()[name], value)
    assert type(pooling) is type(model.network.pooling) and len(tokenizer) == len(model.tokenizer)


def test_a_prompt_is_not_dropped_without_a_word(tmp_path: Path) -> None:
    asked = {**ASKED, "trains": "prompt", "lot_size": 20}
    sd.Trainer(table("a"), Budget(2), model="bytes", output_dir=tmp_path / "p", **asked).fit()
    with pytest.raises(InputError, match="would drop the prompt"):
        second(tmp_path / "p", tmp_path / "out", "b", Budget(1))


def test_a_public_model_is_no_base_of_ours(tmp_path: Path) -> None:
    assert read_base("bytes") is None and read_base(str(tmp_path)) is None
