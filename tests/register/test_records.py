"""Whose records a table holds: the same in every format, others where a row differs."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sourdine.data.corpus import read_corpus
from sourdine.data.tables import read
from sourdine.register import Records, identify

ROWS: list[dict[str, Any]] = [
    {
        "name": f"person {n}",
        "age": 20 + n,
        "stay": n / 4,
        "member": n % 2 == 0,
        "seen": datetime.date(2026, 1, 1 + n % 28),
        "note": "no, never" if n % 3 else None,
    }
    for n in range(60)
]
COLUMNS = list(ROWS[0])


def known(source: Any) -> Records:
    found = identify(source)
    assert found is not None
    return found


def frame() -> pd.DataFrame:
    return pd.DataFrame(ROWS)


def as_csv(path: Path) -> Path:
    frame().to_csv(path, index=False)
    return path


def as_json_lines(path: Path) -> Path:
    text = "".join(json.dumps(row, default=str) + "\n" for row in ROWS)
    path.write_text(text, encoding="utf-8")
    return path


def as_parquet(path: Path) -> Path:
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    return path


def turned(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """The same records from the last to the first, columns too."""
    return pd.DataFrame(list(reversed(rows)))[COLUMNS[::-1]]


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(lambda folder: as_csv(folder / "a.csv"), id="csv"),
        pytest.param(lambda folder: as_json_lines(folder / "a.jsonl"), id="json lines"),
        pytest.param(lambda folder: as_parquet(folder / "a.parquet"), id="parquet"),
        pytest.param(lambda folder: pl.DataFrame(ROWS), id="polars"),
        pytest.param(lambda folder: pa.Table.from_pylist(ROWS), id="arrow"),
        pytest.param(lambda folder: turned(ROWS), id="another order"),
        pytest.param(lambda folder: frame().astype({"name": "category"}), id="categories"),
        pytest.param(
            lambda folder: read(as_csv(folder / "b.csv"), columns=["age"]), id="a table of one column"
        ),
        pytest.param(
            lambda folder: read_corpus(as_csv(folder / "c.csv"), text="name", label="member"),
            id="a corpus",
        ),
    ],
)
def test_one_table_has_one_fingerprint(form, tmp_path):
    found, plain = known(form(tmp_path)), known(frame())
    assert found.fingerprint == plain.fingerprint
    assert np.array_equal(found.sketch, plain.sketch)
    assert found.rows == len(ROWS)


@pytest.mark.parametrize(
    ("column", "cell"), [("age", 999), ("name", "other"), ("note", ""), ("stay", 7.125)]
)
def test_one_other_cell_is_another_table_of_the_same_records(column, cell):
    other = frame()
    other[column] = other[column].astype(object)
    other.loc[7, column] = cell
    found, plain = known(other), known(frame())
    assert found.fingerprint != plain.fingerprint
    assert plain.shared_with(found) == pytest.approx(59 / 60)


def test_the_same_numbers_under_another_name_are_other_records():
    assert known({"a": ["1", "2"]}).fingerprint != known({"b": ["1", "2"]}).fingerprint


def test_a_cell_does_not_run_into_the_next():
    assert known({"a": ["xy"], "b": ["z"]}).fingerprint != known({"a": ["x"], "b": ["yz"]}).fingerprint


@pytest.mark.parametrize("shared", [0, 100, 600, 1500, 3000])
def test_the_share_of_common_rows_is_estimated(shared):
    """3,000 rows each; the deviation of the estimate is below 0.016, five of them are 0.08."""
    one = known({"a": [f"row {n}" for n in range(3000)]})
    two = known({"a": [f"row {n}" for n in range(3000 - shared, 6000 - shared)]})
    assert one.shared_with(two) == pytest.approx(shared / 3000, abs=0.08)
    assert two.shared_with(one) == one.shared_with(two)


def test_a_part_of_a_table_is_wholly_in_it():
    whole = known({"a": [f"row {n}" for n in range(5000)]})
    part = known({"a": [f"row {n}" for n in range(0, 5000, 10)]})
    assert whole.shared_with(part) > 0.9


def test_without_the_key_nobody_can_ask_for_a_row(monkeypatch, tmp_path):
    mine = known({"a": ["somebody"] * 3})
    monkeypatch.setenv("SOURDINE_HOME", str(tmp_path))
    theirs = known({"a": ["somebody"] * 3})
    assert mine.fingerprint != theirs.fingerprint
    assert not np.intersect1d(mine.sketch, theirs.sketch).size


@pytest.mark.parametrize("source", [{"a": []}, Path("nowhere.csv"), {"a": ["1"], "b": ["1", "2"]}])
def test_what_cannot_be_read_whole_is_nobodys(source):
    assert identify(source) is None


def test_columns_that_no_run_reads_decide_nothing():
    """A list in a cell, or a column of them, does not make the table unreadable."""
    found = known(pa.table({"a": ["x", "y"], "b": [[1], [2, 3]]}))
    assert found.rows == 2
