"""Files of separated values: every way in which they go wrong ends in one sentence."""

import gzip
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sourdine.data import delimited
from sourdine.data.tables import Table, read
from sourdine.errors import InputError

SECRET = "Zanzibar"
# More than one block of one megabyte, which is what pyarrow would look at to choose types.
MANY = 300_000


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def run(content: str | bytes, name: str = "t.csv", **options: Any) -> dict[str, list[Any]]:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        table: Table = read(path, **options)
        return {
            name: (table.numbers[name] if name in table.numbers else table.texts[name]).tolist()
            for name in table.columns
        }

    return run


@pytest.fixture
def refused(load: Any) -> Any:
    def run(*args: Any, **options: Any) -> str:
        with pytest.raises(InputError) as caught:
            load(*args, **options)
        error: BaseException | None = caught.value
        while error is not None:
            assert SECRET not in str(error)
            error = error.__context__
        return str(caught.value)

    return run


def test_commas_and_tabs(load: Any) -> None:
    assert load("a,b\n1,x y\n2,z\n") == {"a": [1, 2], "b": ["x y", "z"]}
    assert load("a\tb\n1\tx,y\n", "t.tsv") == {"a": [1], "b": ["x,y"]}
    assert load("a,b\r\n1,x\r\n", "T.CSV") == {"a": [1], "b": ["x"]}
    assert load("a,b\n1,x") == {"a": [1], "b": ["x"]}
    assert load("a,b\n1,x\n", columns=["b"]) == {"b": ["x"]}


def test_quotes(load: Any) -> None:
    assert load('a,b\n"x\ny, ""z""",2\n') == {"a": ['x\ny, "z"'], "b": [2]}
    assert load('a,b\nsize 5" disk,2\n') == {"a": ['size 5" disk'], "b": [2]}


def test_empty_lines_are_skipped_and_empty_strings_kept(load: Any) -> None:
    assert load('a\n\nx\n""\n\n') == {"a": ["x", ""]}


@pytest.mark.parametrize(
    ("last", "expected"),
    [("3.5", 3.5), ("-4", -4.0), (" 7 ", 7.0), ("1e3", 1000.0)],
)
def test_a_late_cell_widens_the_numbers(load: Any, last: str, expected: float) -> None:
    column = load("a,b\n" + "1,2\n" * MANY + f"1,{last}\n")["b"]
    assert column[0] == 2.0
    assert column[-1] == expected


def test_a_late_word_makes_the_column_text(load: Any) -> None:
    column = load("a,b\n" + "1,2\n" * MANY + "1,two\n")["b"]
    assert (column[0], column[-1], len(column)) == ("2", "two", MANY + 1)


def test_a_late_hole_is_a_missing_number(load: Any) -> None:
    content = "a,b\n" + "1,2\n" * MANY + "1,\n"
    assert math.isnan(load(content)["b"][-1])
    assert load(content, missing={"b": 5})["b"][-1] == 5.0


def test_holes_in_front_do_not_hide_numbers(load: Any) -> None:
    assert load("a,b\n" + "1,\n" * 2000 + "1,3\n", missing={"b": 0})["b"][-1] == 3.0
    assert load("a,b\n" + "1,\n" * 2000 + "1,x\n")["b"][-1] == "x"


def test_fields_longer_than_a_block(load: Any) -> None:
    long = "x" * (3 << 20)
    assert load(f"a,b\n1,{long}\n2,y\n") == {"a": [1, 2], "b": [long, "y"]}
    assert load(f"a,{long}\n1,2\n", columns=["a"]) == {"a": [1]}


def test_longer_than_the_largest_block(refused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "BLOCKS", (1 << 10, 1 << 12))
    assert "more than 2 GB" in refused("a,b\n1,x\n" + f"1,{SECRET * 1000}\n" * 9)


@pytest.mark.parametrize("row", [f"{SECRET},2,3", SECRET, f"{SECRET},,,,", f'{SECRET},"x\ny",3'])
@pytest.mark.parametrize("rows", [2, MANY])
def test_a_row_with_another_number_of_fields_is_nothing_and_stays(
    load: Any, capsys: Any, row: str, rows: int
) -> None:
    before, after = "1,x\n" * (rows // 2), '3,"y\nz"\n\n' * (rows // 2)
    found = load(f"a,b\n{before}{row}\n{after}{row}\n", columns=["b"])["b"]
    half = rows // 2
    assert found == ["x"] * half + [""] + ["y\nz"] * half + [""]
    said = capsys.readouterr().err
    assert "2 records with another number of fields than the header" in said
    assert SECRET not in said


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("columns", [["a"], ["b"], None])
def test_a_quote_that_is_never_closed(refused: Any, end: str, columns: list[str] | None) -> None:
    assert "never closes it" in refused(f'a,b\n1,"x\n2,{SECRET}{end}', columns=columns)


def test_a_closed_quote_at_the_end_is_fine(load: Any) -> None:
    assert load('a,b\n1,"x\n2,y"') == {"a": [1], "b": ["x\n2,y"]}
    assert load('a,b\n1,"\x03"') == {"a": [1], "b": ["\x03"]}


def test_nothing_in_the_file(refused: Any) -> None:
    for content in ("", "\n\n", "a,b\n", "a,b", "\ufeff"):
        assert "holds no rows" in refused(content)


def test_header(load: Any, refused: Any) -> None:
    assert "two columns called 'a'" in refused("a,a\n1,2\n")
    assert "without a name" in refused(",a\n0,2\n")
    assert load(",a,b,b\n0,2,3,4\n", columns=["a"]) == {"a": [2]}
    assert load("2020,2021\n1,2\n") == {"2020": [1], "2021": [2]}
    assert "semicolons" in refused("a;b\n1;2\n")
    assert load("a;b\n1;2\n", "t.tsv") == {"a;b": ["1;2"]}


def test_byte_order_mark(load: Any) -> None:
    assert load(b"\xef\xbb\xbfa,b\n1,x\n") == {"a": [1], "b": ["x"]}
    assert load(b"\xef\xbb\xbfa,b\n1,x\n", encoding="utf-8-sig") == {"a": [1], "b": ["x"]}


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-le", "utf-32", "UTF8"])
def test_other_encodings(load: Any, encoding: str) -> None:
    rows = "1,é\n" * 100_000
    column = load(("a,b\n" + rows).encode(encoding), encoding=encoding)["b"]
    assert column == ["é"] * 100_000


def test_wrong_encoding(load: Any, refused: Any) -> None:
    french = f"a,b\n1,é{SECRET}\n".encode("latin-1")
    assert "such as latin-1" in refused("é,b\n1,2\n".encode("latin-1"))
    for wide in ("utf-16", "utf-16-le", "utf-16-be"):
        assert "such as utf-16" in refused(f"a,b\n1,{SECRET}\n".encode(wide))
    assert load(french, columns=["a"]) == {"a": [1]}


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize("rows", [1, MANY])
def test_a_cell_that_is_no_text_in_the_encoding_is_nothing(
    load: Any, capsys: Any, name: str, rows: int
) -> None:
    content = b"a,b\n" + b"1,x\n" * rows + b"2,\xe9" + SECRET.encode() + b"\n3,\xc3\xa9\n"
    found = load(gzip.compress(content) if name.endswith("gz") else content, name, columns=["b"])["b"]
    assert found == ["x"] * rows + ["", "é"]
    said = capsys.readouterr().err
    assert "1 record with bytes that are not utf-8" in said and "--encoding latin-1" in said
    assert SECRET not in said
    # A row with too many fields that is not UTF-8 either.
    assert load(b"a,b\nw,x\n2,\xe9,SECRET\ny,z\n") == {"a": ["w", "", "y"], "b": ["x", "", "z"]}


def test_other_encodings_with_bytes_that_are_none(load: Any) -> None:
    assert load("a,b\nw,x\ny,é\n", encoding="ascii") == {"a": ["w", "y"], "b": ["x", ""]}
    cut = "a,b\nw,x\ny,z\n".encode("utf-16")[:-1]
    assert load(cut, encoding="utf-16")["a"] == ["w", "y"]
    assert load(b"a,b\nw,x\ny,\x81\n", encoding="cp1252") == {"a": ["w", "y"], "b": ["x", ""]}


def test_what_stands_for_such_bytes_may_stand_in_a_text(load: Any) -> None:
    rare = f"{delimited.ESCAPE}{delimited.GONE}{delimited.ESCAPE}{delimited.ITSELF}"
    plain = f"{rare},b\nw,{rare}\n".encode()
    assert load(plain) == {rare: ["w"], "b": [rare]}
    assert load(plain + b"\xe9,x\n") == {rare: ["w", ""], "b": [rare, "x"]}


@pytest.mark.parametrize("encoding", ["klingon", "hex", "", None, 8])
def test_unknown_encoding(refused: Any, encoding: Any) -> None:
    assert "which is not known" in refused("a\n1\n", encoding=encoding)


def test_nul_bytes_are_text(load: Any) -> None:
    assert load(b"a,b\n1,x\0y\n") == {"a": [1], "b": ["x\0y"]}


def test_compressed(load: Any, refused: Any) -> None:
    assert load(gzip.compress(b"a,b\n1,x\n"), "t.csv.gz") == {"a": [1], "b": ["x"]}
    french = gzip.compress("a\tb\n1\té\n".encode("latin-1"))
    assert load(french, "t.tsv.gz", encoding="latin-1") == {"a": [1], "b": ["é"]}
    noise = gzip.compress(b"a,b\n1," + os.urandom(50_000).hex().encode() + b"\n")
    assert "damaged or cut short" in refused(noise[:-5000], "t.csv.gz")
    assert "damaged or cut short" in refused("a,b\n1,x\n", "t.csv.gz")


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=6)


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5))
def test_quoted_text_comes_back(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    path = tmp_path_factory.mktemp("csv") / "t.csv"

    def line(cells: tuple[str, ...]) -> str:
        return ",".join('"' + cell.replace('"', '""') + '"' for cell in cells) + "\n"

    # A word in front keeps both columns text, whatever the cells look like.
    path.write_text(
        "a,b\n" + "".join(map(line, [("word", "word"), *rows])), newline="", encoding="utf-8"
    )
    table = read(path)
    read_back = zip(table.text("a").to_pylist(), table.text("b").to_pylist(), strict=True)
    assert list(read_back)[1:] == [tuple(cell.strip(" \t") for cell in row) for row in rows]
