"""Tables are checked at load, and nothing they say quotes a cell."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sourdine.data.tables import Table, read
from sourdine.errors import InputError

PEOPLE = {"age": [31, 45, 28], "score": [0.5, -1.0, 2.25], "note": ["calm", "", "tired"]}
SECRET = "Zanzibar"


def refusal(source: Any, **options: Any) -> str:
    """The one sentence with which a source is refused."""
    with pytest.raises(InputError) as caught:
        read(source, **options)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in message
    return message


def content(table: Table) -> dict[str, list[Any]]:
    return {
        name: (table.numbers[name].tolist() if name in table.numbers else table.texts[name].to_pylist())
        for name in table.columns
    }


def test_columns_of_numbers_and_text() -> None:
    table = read(PEOPLE)
    assert table.rows == 3
    assert table.columns == ("age", "score", "note")
    assert table.number("age").dtype == np.float64
    assert content(table) == PEOPLE
    assert table.text("note").null_count == 0
    assert isinstance(table.text("note"), pa.LargeStringArray)


def test_a_name_for_messages(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text("age\n1\n")
    assert read(path).name == "people.csv"
    assert read(str(path)).name == "people.csv"
    assert read(pd.DataFrame(PEOPLE)).name == "a pandas frame"
    assert read(pl.DataFrame(PEOPLE)).name == "a polars frame"
    assert read(pa.table(PEOPLE)).name == "an Arrow table"


def test_unknown_columns_name_the_nearest() -> None:
    table = read(PEOPLE)
    for ask in (table.number, table.text):
        with pytest.raises(InputError, match=r"no column 'scores'.*did you mean 'score'"):
            ask("scores")
        with pytest.raises(InputError, match=r"no column 'zzz'.*'age', 'score', 'note'"):
            ask("zzz")
    assert "did you mean 'age'" in refusal(PEOPLE, columns=["ages"])
    assert "did you mean 'age'" in refusal(PEOPLE, missing={"aged": 1})
    wide = {f"column{at}": [1] for at in range(40)}
    assert "and 28 more" in refusal(wide, columns=["zzz"])


def test_the_wrong_kind_of_column() -> None:
    table = read({"stars": ["four", SECRET], "age": [1, 2]})
    with pytest.raises(InputError, match="column 'stars' of a dict of columns holds text") as caught:
        table.number("stars")
    assert SECRET not in str(caught.value)
    with pytest.raises(InputError, match="column 'age' of a dict of columns holds numbers"):
        table.text("age")


def test_only_the_named_columns_are_read_and_checked() -> None:
    source = {"age": [1.0, None], "bad": [[1], [2]], "note": ["a", "b"], "": [1, 2]}
    assert read(source, columns=["note"]).columns == ("note",)
    assert read(PEOPLE, columns=["note", "age"]).columns == ("note", "age")
    assert "'bad'" in refusal(source, columns=["note", "bad"])


@pytest.mark.parametrize("columns", ["age", (), ["age", "age"], [1], 5])
def test_columns_must_be_a_list_of_names(columns: Any) -> None:
    assert "columns must be a list of column names" in refusal(PEOPLE, columns=columns)


@pytest.mark.parametrize("hole", [None, float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_there(hole: float | None, capsys: pytest.CaptureFixture[str]) -> None:
    source = {"age": [31.0, hole, 28.0], "note": ["a", "b", "c"]}
    assert np.isnan(read(source).number("age")[1])
    said = capsys.readouterr().err
    assert said.startswith("sourdine (for you only, not for release): a dict of columns: 1 record ")
    assert "without a number in column 'age'" in said and "--missing age=0" in said
    assert read(source, missing={"age": 40}).number("age").tolist() == [31, 40, 28]
    assert read(source, columns=["note"]).columns == ("note",)


def test_stated_values_are_checked() -> None:
    for value in (float("nan"), float("inf"), "1", None, True, 10**400):
        assert "finite number" in refusal(PEOPLE, missing={"age": value})
    assert "missing must give a number" in refusal(PEOPLE, missing=3)
    # Stating a value for a whole column is no error: whether cells are missing is private.
    assert read(PEOPLE, missing={"age": np.float64(1)}).number("age").tolist() == [31, 45, 28]


def test_names_and_shapes() -> None:
    doubled = pa.table([[1], [2]], names=["a", "a"])
    assert "two columns called 'a'" in refusal(doubled)
    assert "two columns called 'a'" in refusal(doubled, columns=["a"])
    assert "without a name" in refusal({"": [1], "a": [2]})
    assert "without a name" in refusal({" ": [1]})
    assert "no columns" in refusal({})
    assert "no rows" in refusal({"a": []})
    assert "differ in length" in refusal({"a": [1], "b": [1, 2]})


def test_a_table_does_not_show_its_cells() -> None:
    table = read({"note": [SECRET], "age": [123456]})
    assert repr(table) == "Table('a dict of columns', note: text, age: number)"


def test_a_table_does_not_change() -> None:
    ages = np.array([1.0, 2.0])
    frame = pd.DataFrame({"age": [1.0, 2.0], "note": np.array(["a", "b"], dtype=object)})
    tables = [read({"age": ages}), read(frame)]
    ages[0] = 9
    frame.loc[0, "age"] = 9
    frame.loc[0, "note"] = "z"
    assert [table.number("age").tolist() for table in tables] == [[1, 2], [1, 2]]
    assert tables[1].text("note").to_pylist() == ["a", "b"]
    with pytest.raises(ValueError, match="read-only"):
        tables[0].number("age")[0] = 9


BAD_COLUMNS = {
    "lists": [[SECRET]],
    "structs": [{SECRET: SECRET}],
    "objects": [type(SECRET, (), {})()],
    "bytes": [SECRET.encode() + b"\xff"],
    "lone surrogate": [SECRET + "\ud800"],
    "complex": [1j],
    "a string": SECRET,
    "a number": 3,
}


@pytest.mark.parametrize("cells", BAD_COLUMNS.values(), ids=BAD_COLUMNS)
def test_no_message_quotes_a_cell(cells: Any) -> None:
    with pytest.raises(InputError, match="column 'x'") as caught:
        read({"x": cells})
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in str(error)
        error = error.__context__


def test_the_question_says_whether_cells_are_numbers(tmp_path: Path) -> None:
    """One cell that is no number changes what the column is, and not what the other cells mean."""
    path = tmp_path / "t.csv"
    for last, number in (("5", 5.0), ("five", np.nan), ("007", np.nan), ("", np.nan)):
        path.write_text("a,b\n1, 2.50 \n1,-1e3\n1,true\n".replace("true", "1") + f"1,{last}\n")
        table = read(path)
        assert np.array_equal(table.number("b"), [2.5, -1000, 1, number], equal_nan=True)
        assert table.text("b").to_pylist() == [" 2.50 ", "-1e3", "1", last]


def test_pandas_and_polars_are_not_needed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,x\n,y\n")
    code = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ("pandas", "polars"):
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
from sourdine.data.tables import read
print(read({{'a': [1, 'b'], 'c': [1.5, None]}}, missing={{'c': 0}}).columns)
print(read({str(path)!r}, missing={{'a': 0}}).columns)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["('a', 'c')", "('a', 'b')"]
