"""Which columns are numbers and which are text."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sourdine.data import kinds
from sourdine.data.tables import read
from sourdine.errors import InputError


def guessed(*cells: str) -> Any:
    column = kinds.guess(pa.chunked_array([list(cells)], pa.string()))
    return column.to_pylist()


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["1", "2"], [1, 2]),
        (["1", "2.5", "-3", "1e-3", ".5"], [1, 2.5, -3, 0.001, 0.5]),
        ([" 1", "2 ", "\t3"], [1, 2, 3]),
        (["0", "-0.5", "0.25"], [0, -0.5, 0.25]),
        (["true", "False", "TRUE"], [1, 0, 1]),
        (["1", "", "NA", "null", "None"], [1, None, None, None, None]),
        (["true", ""], [1, None]),
        (["999999999999999"], [999999999999999]),
    ],
)
def test_plain_numbers(cells: list[str], numbers: list[float | None]) -> None:
    assert guessed(*cells) == numbers


@pytest.mark.parametrize(
    "cells",
    [
        ["1", "two"],
        ["1", "true"],
        ["1,5"],
        ["1_000"],
        ["0x10"],
        ["1-2"],
        ["2020-01-01"],
        ["007", "8"],
        ["8", "-01"],
        ["+1", "2"],
        ["1000000000000000", "2"],
        ["9" * 400],
        ["NA", ""],
        ["", ""],
        ["NaN"],
        ["٣"],
    ],
)
def test_text_is_kept_as_written(cells: list[str]) -> None:
    assert guessed(*cells) == cells


def test_codes_that_doubles_would_merge() -> None:
    # Two persons, one double: the reason for the rule.
    assert float("9007199254740993") == float("9007199254740992")
    assert guessed("9007199254740993", "9007199254740992") == ["9007199254740993", "9007199254740992"]
    table = read({"id": [9007199254740993, 9007199254740992], "n": [10**15 - 1, 1 - 10**15]})
    assert table.text("id").to_pylist() == ["9007199254740993", "9007199254740992"]
    assert table.number("n").tolist() == [10**15 - 1, 1 - 10**15]
    assert read({"id": [2**70, 1]}).text("id").to_pylist() == [str(2**70), "1"]
    assert read({"id": pa.array([Decimal(10**20)])}).text("id").to_pylist() == [str(10**20)]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_numbers_come_back_exactly(values: list[float]) -> None:
    assert guessed(*map(repr, values)) == values


@given(st.lists(st.text(max_size=4), min_size=1), st.integers(0, 5))
def test_the_kind_does_not_depend_on_chunks_or_order(cells: list[str], cut: int) -> None:
    whole = pa.chunked_array([cells], pa.string())
    parts = pa.chunked_array([cells[:cut], cells[cut:]], pa.string())
    back = pa.chunked_array([cells[::-1]], pa.string())
    assert kinds.guess(whole).to_pylist() == kinds.guess(parts).to_pylist()
    assert kinds.guess(whole).to_pylist() == kinds.guess(back).to_pylist()[::-1]


NOON = dt.datetime(2024, 2, 29, 12, 0, 0)
TYPED = {
    "bool": (pa.array([True]), 1.0),
    "uint8": (pa.array([3], pa.uint8()), 3.0),
    "float16": (pa.array([0.5], pa.float16()), 0.5),
    "decimal": (pa.array([Decimal("1.25")]), 1.25),
    "decimal256": (pa.array([Decimal("1.25")], pa.decimal256(50, 2)), 1.25),
    "minus zero": (pa.array([-0.0]), 0.0),
    "string": (pa.array(["5"]), "5"),
    "string view": (pa.array(["x"], pa.string_view()), "x"),
    "bytes": (pa.array([b"x"]), "x"),
    "null": (pa.array([None]), ""),
    "missing text": (pa.array([None], pa.string()), ""),
    "categories": (pa.array(["x"]).dictionary_encode(), "x"),
    "categories of numbers": (pa.array([7]).dictionary_encode(), 7.0),
    "runs": (pa.RunEndEncodedArray.from_arrays(pa.array([1]), pa.array(["x"])), "x"),
    "date": (pa.array([dt.date(2024, 2, 29)]), "2024-02-29"),
    "date64": (pa.array([dt.date(2024, 2, 29)], pa.date64()), "2024-02-29"),
    "time": (pa.array([dt.time(1, 2, 3)]), "01:02:03"),
    "seconds": (pa.array([NOON], pa.timestamp("s")), "2024-02-29T12:00:00"),
    "nanoseconds": (pa.array([NOON], pa.timestamp("ns")), "2024-02-29T12:00:00"),
    "fraction": (pa.array([NOON.replace(microsecond=120)]), "2024-02-29T12:00:00.00012"),
    "tenth": (pa.array([NOON.replace(microsecond=100_000)]), "2024-02-29T12:00:00.1"),
    "zone": (pa.array([NOON], pa.timestamp("us", "Asia/Tokyo")), "2024-02-29T12:00:00Z"),
}


@pytest.mark.parametrize(("column", "expected"), TYPED.values(), ids=TYPED)
def test_typed_columns(column: Any, expected: float | str) -> None:
    table = read({"x": column})
    values = table.number("x") if isinstance(expected, float) else table.text("x")
    assert values.tolist() == [expected]
    assert str(values.tolist()[0]) == str(expected)


REFUSED = {
    "list": pa.array([[1]]),
    "struct": pa.array([{"a": 1}]),
    "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
    "duration": pa.array([dt.timedelta(1)]),
    "month_day_nano_interval": pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
    "fixed_size_binary": pa.array([b"12345678"], pa.binary(8)),
    "extension": pa.array([b"0123456789abcdef"], pa.uuid()),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_neither_numbers_nor_text(kind: str) -> None:
    with pytest.raises(InputError, match=f"column 'x' of .* type {kind}, which are neither"):
        read({"x": REFUSED[kind]})


def test_bytes_that_are_not_utf8() -> None:
    for column in (pa.array([b"\xff"]), pa.array([b"\xff"]).view(pa.string())):
        with pytest.raises(InputError, match="not UTF-8"):
            read(pa.table({"x": column}))
