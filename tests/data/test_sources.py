"""Files, frames and plain columns all give the same table."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

from sourdine.data.tables import Table, read
from sourdine.errors import InputError

PLAIN = {"age": [31, 45], "score": [0.5, -1.0], "note": ["calm", "tired"], "member": [True, False]}
SECRET = "Zanzibar"


def content(table: Table) -> dict[str, list[Any]]:
    return {
        name: (table.numbers[name] if name in table.numbers else table.texts[name]).tolist()
        for name in table.columns
    }


def refusal(source: Any, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        read(source, **options)
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_all_sources_agree(tmp_path: Path) -> None:
    frame = pl.DataFrame(PLAIN)
    frame.write_csv(tmp_path / "t.csv")
    frame.write_csv(tmp_path / "t.tsv", separator="\t")
    frame.write_parquet(tmp_path / "t.parquet")
    sources = [
        *(tmp_path / "t.csv", tmp_path / "t.tsv", str(tmp_path / "t.parquet")),
        *(PLAIN, frame, pd.DataFrame(PLAIN), pa.table(PLAIN), pa.RecordBatch.from_pydict(PLAIN)),
        {name: np.array(values) for name, values in PLAIN.items()},
        {name: pd.Series(values) for name, values in PLAIN.items()},
        {name: pl.Series(values) for name, values in PLAIN.items()},
        {name: pa.chunked_array([values[:1], values[1:]]) for name, values in PLAIN.items()},
    ]
    for source in sources:
        assert content(read(source)) == PLAIN


OBJECTS: dict[str, tuple[list[Any], list[Any]]] = {
    "numbers and text": ([1, "a", 2.5, True, None, np.nan], ["1", "a", "2.5", "True", "", ""]),
    "holes in text": (["a", None, float("nan"), pd.NA, pd.NaT], ["a", "", "", "", ""]),
    "whole and broken numbers": ([1, 2.5], [1, 2.5]),
    "truth and numbers": ([True, 2, np.float32(0.5), Decimal("0.25")], [1, 2, 0.5, 0.25]),
    "dates and text": ([dt.date(2024, 1, 2), "soon"], ["2024-01-02", "soon"]),
    "dates and times": (
        [dt.date(2024, 1, 2), dt.datetime(2024, 1, 2, 5)],
        ["2024-01-02", "2024-01-02T05:00:00"],
    ),
    "dates": ([dt.date(2024, 1, 2), None], ["2024-01-02", ""]),
}


@pytest.mark.parametrize(("cells", "expected"), OBJECTS.values(), ids=OBJECTS)
def test_columns_of_objects(cells: list[Any], expected: list[Any]) -> None:
    assert content(read({"x": cells}))["x"] == expected
    assert content(read(pd.DataFrame({"x": pd.Series(cells, dtype=object)})))["x"] == expected


def test_pandas_types() -> None:
    frame = pd.DataFrame(
        {
            "whole": pd.Series([1, 2], dtype="Int64"),
            "truth": pd.Series([True, False], dtype="boolean"),
            "word": pd.Series(["a", None], dtype="string"),
            "kind": pd.Series(["a", None], dtype="category"),
            "mixed": pd.Series(["a", 1], dtype="category"),
            "when": pd.to_datetime(["2024-01-02 03:04:05", None]),
            "sparse": pd.arrays.SparseArray([0.0, 1.0]),
        }
    ).set_axis([SECRET, SECRET + "!"])
    assert content(read(frame)) == {
        "whole": [1, 2],
        "truth": [1, 0],
        "word": ["a", ""],
        "kind": ["a", ""],
        "mixed": ["a", "1"],
        "when": ["2024-01-02T03:04:05", ""],
        "sparse": [0, 1],
    }
    frame["whole"] = pd.Series([1, None], dtype="Int64", index=frame.index)
    assert np.array_equal(read(frame).number("whole"), [1, np.nan], equal_nan=True)


def test_pandas_names() -> None:
    assert content(read(pd.DataFrame([[1, "x"]]))) == {"0": [1], "1": ["x"]}
    assert "two columns called '0'" in refusal(pd.DataFrame([[1, 2]], columns=[0, "0"]))
    assert "two columns called 'a'" in refusal(pd.DataFrame([[1, 2]], columns=["a", "a"]))
    several = pd.MultiIndex.from_tuples([("a", "b")])
    assert "no string" in refusal(pd.DataFrame([[1]], columns=several))


def test_subclasses_of_frames() -> None:
    class Frame(pd.DataFrame):  # what geopandas does
        pass

    assert content(read(Frame(PLAIN))) == PLAIN


def test_polars_types() -> None:
    frame = pl.DataFrame(
        {
            "big": pl.Series([1, 2], dtype=pl.Int128),
            "word": ["a", None],
            "kind": pl.Series(["a", None], dtype=pl.Categorical),
            "nothing": [None, None],
            "when": [dt.datetime(2024, 1, 2), None],
        }
    )
    assert content(read(frame)) == {
        "big": [1, 2],
        "word": ["a", ""],
        "kind": ["a", ""],
        "nothing": ["", ""],
        "when": ["2024-01-02T00:00:00", ""],
    }
    assert np.isnan(read(pl.DataFrame({"age": [1, None]})).number("age")).tolist() == [False, True]
    assert "neither" in refusal(pl.DataFrame({"x": pl.Series([object()], dtype=pl.Object)}))
    assert "collect()" in refusal(pl.LazyFrame(PLAIN))


@pytest.mark.parametrize(
    "source", [3, None, [1, 2], b"t.csv", object(), pd.Series([1]), pl.Series([1])]
)
def test_not_a_table(source: Any) -> None:
    assert f"a value of type {type(source).__name__}" in refusal(source)


@pytest.mark.parametrize("column", [SECRET, SECRET.encode(), 3, None, {SECRET: 1}, {SECRET}, iter([1])])
def test_not_a_column(column: Any) -> None:
    assert "no sequence" in refusal({"x": column})


def test_arrays_of_many_dimensions() -> None:
    for array in (np.ones((2, 2)), np.array(3)):
        assert "neither numbers nor valid text" in refusal({"x": array})


def test_parquet_index_and_dots(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pd.DataFrame({"a.b": [1], "a": ["x"]}, index=[SECRET]).to_parquet(path)
    assert "__index_level_0__" in parquet.read_schema(path).names
    assert content(read(path)) == {"a.b": [1], "a": ["x"]}
    assert content(read(path, columns=["a"])) == {"a": ["x"]}


def test_parquet_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    noise = np.random.default_rng(1).integers(0, 256, 40_000).tolist()
    parquet.write_table(pa.table({"x": noise}), path, use_dictionary=False, write_page_checksum=True)
    whole = path.read_bytes()
    assert read(path).rows == 40_000
    spoiled = bytearray(whole)
    spoiled[5000] ^= 0xFF
    for content in (b"", b"PAR1", whole[:-40], whole[40:], bytes(spoiled), SECRET.encode()):
        path.write_bytes(content)
        assert "damaged or cut short" in refusal(path)
    parquet.write_table(pa.table({"x": pa.array([], pa.int64())}), path)
    assert "no rows" in refusal(path)
    parquet.write_table(pa.table([[1], [2]], names=["a", "a"]), path)
    assert "two columns called 'a'" in refusal(path)


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no file" in refusal(tmp_path / "none.csv")
    assert "is a folder" in refusal(tmp_path)
    assert "there is no file" in refusal("https://example.org/t.csv")
    for odd in ("", "a\0.csv", "x" * 5000 + ".csv", "~nobody-at-all/t.csv"):
        assert refusal(odd)
    unknown = tmp_path / "t.xlsx"
    unknown.write_text("a\n1\n")
    assert ".csv, .tsv, .csv.gz, .tsv.gz, .parquet" in refusal(unknown)
    assert "not a plain file" in refusal(_pipe(tmp_path / "pipe.csv"))
    path = tmp_path / "t.csv"
    path.write_text("a\n1\n")
    assert read(path).rows == 1

    def forbidden(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    # Tests may run as root, who may read everything.
    monkeypatch.setattr(Path, "open", forbidden)
    assert "cannot be opened: Permission denied" in refusal(path)


def _pipe(path: Path) -> Path:
    import os

    if not hasattr(os, "mkfifo"):
        pytest.skip("no pipes here")
    os.mkfifo(path)
    return path
