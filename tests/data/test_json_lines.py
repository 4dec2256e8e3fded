"""JSON lines give the same table as the .csv of the same cells, and their errors quote nothing."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sourdine.data import json_lines
from sourdine.data.tables import Table, read
from sourdine.errors import InputError

SECRET = "Zanzibar"


def content(table: Table) -> dict[str, list[Any]]:
    return {
        name: (table.numbers[name] if name in table.numbers else table.texts[name]).tolist()
        for name in table.columns
    }


def write(path: Path, *lines: str, encoding: str = "utf-8") -> Path:
    path.write_bytes("\n".join(lines).encode(encoding))
    return path


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        read(path, **options)
    assert SECRET not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("ending", [".jsonl", ".ndjson", ".json", ".JSONL"])
def test_lines(tmp_path: Path, ending: str) -> None:
    lines = ['{"a": 1, "b": "x"}', "", '{"b": "y\\nz", "a": -2.5}\r', "  "]
    path = write(tmp_path / f"t{ending}", *lines)
    expected = {"a": [1, -2.5], "b": ["x", "y\nz"]}
    assert content(read(path)) == expected
    assert read(path).path == path
    packed = tmp_path / f"p{ending}.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert content(read(packed)) == expected
    assert content(read(path, columns=["b"])) == {"b": ["x", "y\nz"]}


def test_a_list_of_objects(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{"a": 1, "b": "x"}, {"a": 2}], indent=2), encoding="utf-8")
    assert content(read(path)) == {"a": [1, 2], "b": ["x", ""]}
    write(path, "[", '{"a": 1},', f'"{SECRET}"]')
    assert np.array_equal(read(path).number("a"), [1, np.nan], equal_nan=True)
    write(path, f'[{{"a": "{SECRET}"}}]', '{"a": 1}')
    assert np.array_equal(read(path).number("a"), [np.nan, 1], equal_nan=True)


CELLS: dict[str, tuple[list[str], list[Any]]] = {
    "numbers": (["1", "2.5", "-1e3"], [1, 2.5, -1000]),
    "numbers in quotes": (["1", '"2"'], [1, 2]),
    "truth": (["true", "false"], [1, 0]),
    "numbers and text": (["1", '"a"', "2.50", "true", "null"], ["1", "a", "2.50", "true", ""]),
    "holes in text": (['"a"', "null"], ["a", ""]),
    "nothing": (["null", "null"], ["", ""]),
    "codes": (['"007"', '"8"'], ["007", "8"]),
    "long numbers": (["12345678901234567890", "12345678901234567891"],) * 2,
    "very long numbers": (["1" * 5000, "2"], ["1" * 5000, "2"]),
    "no surrogates": (['"\\ud83d\\ude00"', '"\\u0000"'], ["😀", "\0"]),
}


@pytest.mark.parametrize(("cells", "expected"), CELLS.values(), ids=CELLS)
def test_cells(tmp_path: Path, cells: list[str], expected: list[Any]) -> None:
    path = write(tmp_path / "t.jsonl", *(f'{{"x": {cell}}}' for cell in cells))
    assert content(read(path))["x"] == expected


def test_missing_and_infinite_numbers(tmp_path: Path) -> None:
    for cell in ("null", "NaN", "Infinity", '"NA"'):
        path = write(tmp_path / "t.jsonl", '{"x": 1}', f'{{"x": {cell}}}')
        assert np.array_equal(read(path).number("x"), [1, np.nan], equal_nan=True)
        assert content(read(path, missing={"x": 7})) == {"x": [1, 7]}


def test_names_stay_as_they_were_written(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", '{"who": 1.10}', '{"who": 1.1}', '{"who": "1.1"}')
    assert content(read(path, names=["who"])) == {"who": ["1.10", "1.1", "1.1"]}
    assert content(read(path, written=["who"])) == {"who": ["1.10", "1.1", "1.1"]}


def test_columns_may_come_late(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", '{"b": "x"}', '{"a": "y", "b": null}', '{"c": "z"}')
    assert content(read(path)) == {"b": ["x", "", ""], "a": ["", "y", ""], "c": ["", "", "z"]}


@pytest.mark.parametrize(
    "line",
    [
        f'{{"a": "{SECRET}"',
        f'"{SECRET}"',
        f'["{SECRET}"]',
        f"{{'a': '{SECRET}'}}",
        f'{{"a": "{SECRET}"}} {{"a": 1}}',
        "3",
        "null",
        "NaN",
        "[" * 100_000,
    ],
)
def test_lines_that_are_no_object_are_nothing_and_stay(tmp_path: Path, line: str, capsys: Any) -> None:
    path = write(tmp_path / "t.jsonl", '{"a": "x"}', "", line, '{"a": "y"}')
    assert content(read(path)) == {"a": ["x", "", "y"]}
    said = capsys.readouterr().err
    assert "t.jsonl: 1 record without one whole JSON object, counted as nothing." in said
    assert SECRET not in said
    assert "no line of t.jsonl is one whole JSON object" in refusal(write(path, line, line))


def test_nested_cells(tmp_path: Path, capsys: Any) -> None:
    path = write(tmp_path / "t.jsonl", '{"a": 1, "b": 2}', f'{{"a": 1, "b": ["{SECRET}"]}}')
    assert np.array_equal(read(path).number("b"), [2, np.nan], equal_nan=True)
    assert "in column 'b', counted as nothing there" in capsys.readouterr().err
    every = write(path, f'{{"b": ["{SECRET}"]}}', '{"b": {}, "c": 1}')
    assert "holds a list or an object in column 'b' of every record" in refusal(every)
    write(path, '{"a": 1, "b": 2}', f'{{"a": 1, "b": ["{SECRET}"]}}')
    assert content(read(path, columns=["a"])) == {"a": [1, 1]}


def test_one_object_with_everything(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", json.dumps({SECRET: {"text": "x"}, SECRET + "!": {"text": "y"}}))
    assert "one object with everything" in refusal(path)
    path = write(tmp_path / "t.json", *json.dumps({"a": 1}, indent=1).split("\n"))
    assert "no line of t.json is one whole JSON object" in refusal(path)


def test_names_that_are_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lines, "MOST_COLUMNS", 5)
    path = write(tmp_path / "t.jsonl", *(f'{{"{SECRET}{row}": 1}}' for row in range(6)))
    assert "as if they were data" in refusal(path)


def test_names_twice(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", '{"a": "x"}', f'{{"a": "{SECRET}", "a": 2}}')
    assert content(read(path)) == {"a": ["x", ""]}


def test_half_a_character(tmp_path: Path, capsys: Any) -> None:
    path = write(tmp_path / "t.jsonl", '{"a": "x"}', f'{{"a": "{SECRET}\\ud800", "b": 1}}')
    assert content(read(path, columns=["a"])) == {"a": ["x", ""]}
    assert "half a character, in column 'a', counted as nothing there" in capsys.readouterr().err
    assert "b" in content(read(path, columns=["b"], missing={"b": 0}))


def test_encodings(tmp_path: Path, capsys: Any) -> None:
    for encoding in ("latin-1", "utf-16", "utf-8-sig", "cp1252"):
        path = write(tmp_path / "t.jsonl", '{"é": "ü"}', '{"é": "x"}', encoding=encoding)
        assert content(read(path, encoding=encoding)) == {"é": ["ü", "x"]}
    assert content(read(write(path, '{"é": "ü"}', encoding="utf-8-sig"))) == {"é": ["ü"]}
    write(path, '{"a": "x"}', f'{{"a": "{SECRET}ü"}}', encoding="latin-1")
    assert content(read(path)) == {"a": ["x", ""]}
    assert SECRET not in capsys.readouterr().err
    assert "such as utf-16" in refusal(write(path, f'{{"{SECRET}": "ü"}}', encoding="utf-16"))
    assert "which is not known" in refusal(path, encoding="klingon")


def test_empty_and_damaged(tmp_path: Path) -> None:
    for text in ("", "\n\n", "[]", "\ufeff"):
        assert "holds no rows" in refusal(write(tmp_path / "t.json", text))
    packed = tmp_path / "t.jsonl.gz"
    whole = gzip.compress(f'{{"a": "{SECRET}"}}'.encode() * 100)
    packed.write_bytes(b"")
    assert "holds no rows" in refusal(packed)
    for spoiled in (whole[:-20], whole[:15] + b"\0\0\0" + whole[18:], SECRET.encode()):
        packed.write_bytes(spoiled)
        assert "damaged or cut short" in refusal(packed)
