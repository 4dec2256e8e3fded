"""What a sealed folder tells about how many records there are, and what it refuses to seal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sourdine.budget import Budget
from sourdine.errors import InputError
from sourdine.ledger import Ledger
from sourdine.pate.aggregators import GNMax
from sourdine.pate.labelling import Labelling
from sourdine.pate.release import ANSWERS, About, seal, write_answers
from sourdine.pate.votes import Votes

VOTES = Votes(np.tile([15, 5], (12, 1)), 20)


def about(users: int | None = None) -> About:
    return About("0" * 64, 601, users, ("note",), "kind", "an encoder", 20, 6, 12, {"power": 1.0})


def asked(folder: Path, budget: Budget) -> Labelling:
    ledger = Ledger(folder / "ledger.sqlite", budget)
    labelling = Labelling(GNMax(30.0), ledger, questions=12, answers=12)
    write_answers(folder / ANSWERS, labelling.ask(VOTES))
    return labelling


def save(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"weights")


@pytest.mark.parametrize(("adjacency", "known"), [("zero-out", True), ("add-remove", False)])
@pytest.mark.parametrize("unit", ["example", "user"])
def test_how_many_there_are_is_told_only_where_it_is_public(
    tmp_path: Path, adjacency: str, known: bool, unit: str
) -> None:
    labelling = asked(tmp_path, Budget(2.0, 1e-6, unit, adjacency))
    users = 77 if unit == "user" else None
    document = seal(tmp_path, save, {}, labelling, about(users)).document
    told = {"records": document["data"]["records"], "users": document["data"]["users"]}
    name, number = ("users", 77) if unit == "user" else ("records", 601)
    assert told == {"records": "UNKNOWN", "users": "UNKNOWN"} | ({name: number} if known else {})
    assert any("the number of" in a["what"] for a in document["accesses"]) == known


def test_answers_beyond_the_charge_are_not_sealed(tmp_path: Path) -> None:
    labelling = asked(tmp_path, Budget(2.0, 1e-6))
    other = Labelling(GNMax(30.0), Budget(2.0, 1e-6), questions=12, answers=12)
    write_answers(tmp_path / ANSWERS, other.ask(VOTES), 12)  # a second process, on the same charge
    with pytest.raises(InputError, match="other answers than were given"):
        seal(tmp_path, save, {}, labelling, about())
    assert not (tmp_path / "certificate.json").exists()
