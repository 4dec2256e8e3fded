"""The same table has the same fingerprint however it came in; any change gives another."""

import hashlib
import hmac
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyarrow import parquet

from sourdine.data import fingerprint as module
from sourdine.data.fingerprint import fingerprint, home, own_key
from sourdine.data.tables import read
from sourdine.errors import InputError

KEY = bytes(range(32))
CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=5)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-1000, 1000)


def mark(source: Any, key: bytes = KEY, **options: Any) -> str:
    return fingerprint(read(source, **options), key=key)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, list[Any]]:
    """A table of numbers and text; the texts hold a word, which no loader takes for a number."""
    rows = draw(st.integers(1, 6))
    names = draw(st.lists(st.sampled_from(["a", "b", "é", "a b"]), min_size=1, unique=True))
    column = st.lists(NUMBERS, min_size=rows, max_size=rows) | st.lists(
        CELLS.map(lambda cell: "word " + cell), min_size=rows, max_size=rows
    )
    return {name: draw(column) for name in names}


@given(tables(), st.integers(0, 5))
def test_it_does_not_matter_how_a_table_was_loaded(
    tmp_path_factory: pytest.TempPathFactory, table: dict[str, list[Any]], cut: int
) -> None:
    folder = tmp_path_factory.mktemp("t")
    frame = pd.DataFrame(table)
    frame.to_csv(folder / "t.csv", index=False)
    arrow = pa.Table.from_pandas(frame, preserve_index=False)
    parquet.write_table(arrow, folder / "t.parquet")
    chunked = pa.concat_tables([arrow.slice(0, cut), arrow.slice(cut)])
    padded = pa.concat_tables([arrow.slice(0, 1), arrow]).combine_chunks().slice(1)
    sources = [folder / "t.csv", folder / "t.parquet", frame, arrow, chunked, padded]
    expected = mark(table)
    assert [mark(source) for source in sources] == [expected] * len(sources)
    assert mark(pl.DataFrame(table, strict=False)) == expected


@given(tables(), st.data())
def test_any_changed_cell_shows(table: dict[str, list[Any]], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(list(table)))
    at = data.draw(st.integers(0, len(table[name]) - 1))
    old = table[name][at]
    new = data.draw(CELLS if isinstance(old, str) else NUMBERS)
    assume(new != old)
    changed = {**table, name: [*table[name][:at], new, *table[name][at + 1 :]]}
    assert mark(changed) != mark(table)


@given(tables())
def test_names_and_orders_show(table: dict[str, list[Any]]) -> None:
    first, *others = table
    renamed = {"new": table[first], **{name: table[name] for name in others}}
    assert mark(renamed) != mark(table)
    if others:
        assert mark({name: table[name] for name in [*others, first]}) != mark(table)
        assert mark(table, columns=[first]) != mark(table)
    twisted = {name: cells[::-1] for name, cells in table.items()}
    assert (mark(twisted) == mark(table)) == (twisted == table)
    longer = {name: [*cells, cells[-1]] for name, cells in table.items()}
    assert mark(longer) != mark(table)


def test_cells_do_not_run_into_each_other() -> None:
    marks = [
        mark({"a": ["ab", ""]}),
        mark({"a": ["a", "b"]}),
        mark({"a": ["", "ab"]}),
        mark({"a": ["ab"], "b": [""]}),
        mark({"a": ["a"], "b": ["b"]}),
        mark({"ab": ["", ""]}),
        mark({"a": ["1", "2"]}),
        mark({"a": [1, 2]}),
    ]
    assert len(set(marks)) == len(marks)


def test_a_slice_is_what_it_shows() -> None:
    column = pa.array(["x", "aé", "", "b", "x"], pa.large_string())
    assert mark({"a": column.slice(1, 3)}) == mark({"a": ["aé", "", "b"]})
    lengths, content = module._strings(column.slice(1, 3))
    assert (lengths.tolist(), bytes(content)) == ([3, 0, 1], "aéb".encode())


def test_equal_numbers() -> None:
    same = [[0, 1], [0.0, 1.0], [-0.0, 1], [False, True], np.array([0, 1], dtype=np.int8)]
    assert len({mark({"a": cells}) for cells in same}) == 1


def test_the_format_stays() -> None:
    """Written out by hand: certificates of today must still match in later versions."""
    number = hashlib.sha256(np.array([1.5, -2.0]).astype("<f8").tobytes()).digest()
    text = hashlib.sha256(np.array([2, 0]).astype("<i8").tobytes() + "é".encode()).digest()

    def whole(value: int) -> bytes:
        return value.to_bytes(8, "little")

    content = b"sourdine table fingerprint 1" + whole(2) + whole(2)
    content += whole(1) + b"n" + b"number" + number + whole(1) + b"t" + b"text.." + text
    assert mark({"n": [1.5, -2], "t": ["é", ""]}) == hmac.new(KEY, content, "sha256").hexdigest()


def test_the_key_matters_and_is_checked() -> None:
    table = {"a": [1]}
    assert mark(table, key=bytes(32)) != mark(table, key=KEY)
    for bad in (b"", b"short", bytes(33), "x" * 32):
        with pytest.raises(InputError, match="32 bytes"):
            mark(table, key=bad)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOURDINE_HOME", str(tmp_path / "own"))
    return tmp_path / "own"


def test_the_key_is_made_once_and_kept_private(folder: Path) -> None:
    old = os.umask(0)
    try:
        key = own_key()
    finally:
        os.umask(old)
    path = folder / "fingerprint.key"
    assert path.read_bytes() == key
    assert len(key) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in folder.iterdir()] == ["fingerprint.key"]
    assert own_key() == key
    assert fingerprint(read({"a": [1]})) == mark({"a": [1]}, key=key)


def test_another_home_has_another_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = own_key()
    monkeypatch.setenv("SOURDINE_HOME", str(folder.parent / "other"))
    assert own_key() != first


def test_who_comes_second_takes_the_first_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = own_key()
    # A process that looked before the file was there.
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert own_key() == key
    assert [file.name for file in folder.iterdir()] == ["fingerprint.key"]


def test_processes_agree_on_one_key(folder: Path) -> None:
    code = "from sourdine.data.fingerprint import own_key; print(own_key().hex())"
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    keys = {process.communicate()[0].strip() for process in started}
    assert keys == {(folder / "fingerprint.key").read_bytes().hex()}


def test_a_key_that_cannot_be_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "fingerprint.key"
    folder.mkdir()
    for content in (b"", b"x" * 31, b"x" * 33):
        path.write_bytes(content)
        with pytest.raises(InputError, match="must hold 32 bytes; put back a copy"):
            own_key()
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match="cannot be read or made"):
        own_key()
    path.rmdir()
    folder.rmdir()
    folder.write_text("a file where the folder should be")
    with pytest.raises(InputError, match=r"cannot be read or made.*SOURDINE_HOME"):
        own_key()

    def forbidden(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("sourdine.home.tempfile.mkstemp", forbidden)
    monkeypatch.setenv("SOURDINE_HOME", str(folder.parent))
    with pytest.raises(InputError, match="Permission denied; mend its permissions"):
        own_key()


def test_the_config_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("SOURDINE_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert home() == Path("/home/someone/.config/sourdine")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert home() == Path("/home/someone/.config/sourdine")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/conf")
    assert home() == Path("/conf/sourdine")
    monkeypatch.setenv("SOURDINE_HOME", "~/mine")
    assert home() == Path("/home/someone/mine")
