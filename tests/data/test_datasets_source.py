"""datasets.Dataset: what its user sees is what is read."""

import subprocess
import sys
from typing import Any

import pytest

from sourdine.data.corpus import read_corpus
from sourdine.data.tables import read
from sourdine.errors import InputError

datasets = pytest.importorskip("datasets")

SECRET = "Zanzibar"
PLAIN = {"text": ["a", "b", "c", "d"], "n": [1, 2, 3, 4]}


def texts(source: Any) -> list[str]:
    return list(read(source, columns=["text"]).text("text").to_pylist())


def test_select_shuffle_filter_and_formats() -> None:
    data = datasets.Dataset.from_dict(PLAIN)
    assert texts(data) == PLAIN["text"]
    assert read(data).number("n").tolist() == PLAIN["n"]
    assert texts(data.select([3, 1])) == ["d", "b"]
    shuffled = data.shuffle(seed=3)
    assert texts(shuffled) == list(shuffled["text"]) != PLAIN["text"]
    assert texts(data.filter(lambda row: row["n"] > 2, load_from_cache_file=False)) == ["c", "d"]
    assert texts(data.select([2, 3]).select([1])) == ["d"]
    assert texts(data.with_format("numpy").select([1])) == ["b"]
    assert texts(data.with_transform(lambda batch: {"text": ["hidden"] * 4})) == PLAIN["text"]
    assert texts({"text": data.select([2])["text"]}) == ["c"]


def test_classes_have_their_names() -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    rows = {"text": [f"t{at}" for at in range(30)], "label": [at % 2 for at in range(29)] + [-1]}
    data = datasets.Dataset.from_dict(rows, features=features)
    corpus = read_corpus(data.select(range(29, -1, -1)), text="text", label="label")
    assert corpus.labels is not None
    assert corpus.labels[:3] == ["", "bad", "good"]


def test_what_is_no_single_table() -> None:
    data = datasets.Dataset.from_dict({"text": [SECRET]})
    with pytest.raises(
        InputError, match=r"\('train', 'test'\); take one of them, such as data\['train'\]"
    ):
        read(datasets.DatasetDict({"train": data, "test": data}))
    with pytest.raises(InputError, match="without streaming"):
        read(data.to_iterable_dataset())
    with pytest.raises(InputError, match="no rows"):
        read(data.select([]))
    with pytest.raises(InputError, match="there is no column 'txt'"):
        read(data, columns=["txt"])


def test_datasets_is_not_imported_here() -> None:
    code = "import sys, sourdine.data.corpus; print({'datasets', 'pandas', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
