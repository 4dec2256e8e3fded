"""`sourdine train` with bad input: one sentence, the fixed exit code, nothing charged and no folder."""

from __future__ import annotations

import csv
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from sourdine.cli import main

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

GOOD, BAD = ["great", "lovely", "superb"], ["awful", "dull", "poor"]
PLAIN = ["the", "film", "was", "seen"]
USUAL = ["--text", "note", "--label", "mood", "--epsilon", "3"]


def save_model(folder: Path) -> None:
    """A small BERT of random weights, and a tokenizer of whole words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    names = ["[PAD]", "[UNK]", *GOOD, *BAD, *PLAIN]
    words = Tokenizer(WordLevel({word: place for place, word in enumerate(names)}, "[UNK]"))
    words.pre_tokenizer = Whitespace()
    reader = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]"
    )
    reader.save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(names),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    with torch.random.fork_rng(devices=[]):
        transformers.BertModel(config).save_pretrained(folder)


def write(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with notes of many kinds, and models whole and broken."""
    folder, chance = tmp_path_factory.mktemp("train"), random.Random(2)
    rows = []
    for number in range(300):
        mood = chance.choice(["good", "bad"])
        words = chance.choices(GOOD if mood == "good" else BAD, k=3) + chance.choices(PLAIN, k=3)
        rows.append({"note": " ".join(words), "mood": mood, "who": f"p{number % 60}"})
    write(folder / "notes.csv", rows)
    write(folder / "five.csv", rows[:5])
    write(folder / "one.csv", [{**row, "mood": "good"} for row in rows])
    write(folder / "empty.csv", [{**row, "note": ""} for row in rows])
    write(
        folder / "nobody.csv", [{**row, "who": row["who"] * (n % 9 > 0)} for n, row in enumerate(rows)]
    )
    write(folder / "other.csv", [{"x": row["note"], "y": row["mood"]} for row in rows])
    (folder / "header.csv").write_text("note,mood\n")
    save_model(folder / "model")
    for missing in ("model.safetensors", "config.json"):
        shutil.copytree(folder / "model", folder / f"no-{missing}")
        (folder / f"no-{missing}" / missing).unlink()
    (folder / "full").mkdir()
    (folder / "full" / "mine.txt").write_text("kept")
    return folder


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["train", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


BAD_DATA = [
    ("nope.csv", "nope.csv"),
    ("five.csv", "add records"),
    ("empty.csv", "empty in every row"),
    ("header.csv", "no rows"),
    ("other.csv", "no column 'note'"),
    ("notes.csv --user nope", "no column 'nope'"),
    ("notes.csv --text mood", "different columns"),
    ("notes.csv --test other.csv", "no column 'note' in other.csv"),
    ("notes.csv --test nope.csv", "nope.csv"),
]

BAD_OPTIONS = [
    ("--epsilon 0", "above zero"),
    ("--epsilon -1", "above zero"),
    ("--epsilon nan", "above zero"),
    ("--epsilon inf", "finite"),
    ("--epsilon many", "'--epsilon'"),
    ("--delta 0", "between 0 and 1"),
    ("--delta 2", "between 0 and 1"),
    ("--delta 0.01", "1/n"),
    ("--trains nonsense", "head, bitfit, lora, prompt, all"),
    ("--trains head --lora 4", "lora"),
    ("--lora 0", "at least 1"),
    ("--lora 2.5", "whole number"),
    ("--steps 0", "at least 1"),
    ("--steps 5 --epochs 2", "not both"),
    ("--epochs 0", "above zero"),
    ("--lot-size 0", "at least 1"),
    ("--batch-size 0", "at least 1"),
    ("--clip 0", "above zero"),
    ("--learning-rate nan", "above zero"),
    ("--max-length 5000", "at most"),
    ("--held-out 1", "between"),
    ("--labels good", "at least two labels"),
    ("--labels good,good", "each named once"),
    ("--rows-per-user 3", "person"),
    ("--user who --rows-per-user 0", "at least 1"),
    ("--adjacency sideways", "zero-out"),
    ("--adjacency add-remove", "number of records"),
    ("--encoding nonsense", "encoding"),
    ("--not-private", "epsilon"),
    ("--config nope.toml", "cannot be read"),
    ("--model ./nope", "no model folder"),
    ("--model no-model.safetensors", "no weights"),
    ("--model no-config.json", "config.json is missing"),
    ("--nonsense 3", "No such option"),
]


@pytest.mark.parametrize(("line", "word"), BAD_DATA)
def test_bad_data_is_told_in_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, word: str
) -> None:
    data, *options = line.split()
    usual = USUAL[2:] if "--text" in options else USUAL
    _check_refused(capsys, tmp_path, [data, *usual, "--model", "model", *options], word)


@pytest.mark.parametrize(("line", "word"), BAD_OPTIONS)
def test_bad_options_are_told_in_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, word: str
) -> None:
    _check_refused(capsys, tmp_path, ["notes.csv", *USUAL, "--model", "model", *line.split()], word)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("--text note --label mood", "--epsilon"),
        ("--text note --epsilon 3", "--label mood"),
        ("--label mood --epsilon 3", "--text note"),
    ],
)
def test_what_is_missing_is_proposed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: str, word: str
) -> None:
    _check_refused(capsys, tmp_path, ["notes.csv", *line.split()], word)


def _check_refused(
    capsys: pytest.CaptureFixture[str], folder: Path, arguments: list[str], word: str
) -> None:
    code, out, err = said(capsys, *arguments, "--out", str(folder / "out"))
    assert code == 2 and out == ""
    assert word in err.splitlines()[-1], err
    assert list(folder.iterdir()) == []  # neither a run folder nor one beside it


def test_public_tests_need_a_test(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = ["--model", "model", "--out", str(tmp_path / "out")]
    code, _, err = said(capsys, "notes.csv", *USUAL, *out, "--test-is-public")
    assert code == 2 and "held out are private" in err


@pytest.mark.parametrize("out", ["full", "notes.csv"])
def test_what_is_there_is_never_written_over(capsys: pytest.CaptureFixture[str], out: str) -> None:
    before = Path("notes.csv").read_bytes()
    code, _, err = said(capsys, "notes.csv", *USUAL, "--model", "model", "--out", out)
    assert code == 2 and f"{out} " in err.splitlines()[-1]
    assert [file.name for file in Path("full").iterdir()] == ["mine.txt"]
    assert Path("notes.csv").read_bytes() == before


def test_no_sentence_quotes_a_private_cell(capsys: pytest.CaptureFixture[str]) -> None:
    for data in ("notes.csv", "one.csv", "five.csv", "nobody.csv"):
        _, _, err = said(capsys, data, *USUAL, "--user", "who", "--model", "model", "--plan")
        words = set(err.replace(",", " ").replace(".", " ").split())
        assert not words & {*GOOD, *BAD, "p0", "p1"}


def _one_object(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = said(capsys, "notes.csv", *arguments, "--json")
    assert code == 0, err
    assert out.count("\n") == 1 and err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_plan_charges_nothing_and_makes_no_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    quick = ["--model", "model", "--out", str(tmp_path / "out"), "--steps", "3"]
    found = _one_object(capsys, *USUAL, *quick, "--plan")
    assert found["steps"] == 3 and found["noise_multiplier"] > 0 and found["reasons"]
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_one_object_and_its_folder_verifies(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    quick = ["--model", "model", "--labels", "good,bad", "--steps", "2", "--lot-size", "50"]
    found = _one_object(capsys, *USUAL, *quick, "--out", out)
    assert found["folder"] == out and found["private"] is True
    assert found["classes"] == ["good", "bad"] and "--held-out 0.2" in found["how"]
    assert 2.9 < found["epsilon"] <= 3
    assert main(["verify", out]) == 0
    assert capsys.readouterr().out.startswith("consistent; signed by your own key: ")
    code, _, err = said(capsys, "notes.csv", *USUAL, *quick, "--out", out)
    assert code == 2 and "finished run" in err


def test_an_accuracy_never_stands_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    quick = ["--model", "model", "--labels", "good,bad", "--steps", "2", "--lot-size", "50"]
    useless = [*quick, "--held-out", "0.3", "--learning-rate", "1e-9", "--out", str(tmp_path / "out")]
    code, out, err = said(capsys, "notes.csv", *USUAL, *useless)
    assert code == 0 and "No units are held out" not in err
    names = ["accuracy", "share of the largest class", "Matthews correlation", "macro F1"]
    lines = out.splitlines()
    assert [line.split(" 0.")[0].split(" -0.")[0] for line in lines[1:5]] == names, out
    assert all("with 95% confidence)" in line for line in lines[1:5])
    assert "no better than always answering the most frequent class" in lines[5]
    assert "of about 90 of 300 records held out, charged" in lines[6]
    assert lines[7] == "classes: good, bad"
    key = out.split("others add --key ")[1].split(";")[0]
    assert main(["verify", str(tmp_path / "out"), "--key", key]) == 0
    assert capsys.readouterr().out.startswith("verified: epsilon")


def test_small_data_are_told_before_the_charge_that_nothing_is_tested(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    quick = ["--model", "model", "--labels", "good,bad", "--steps", "2", "--lot-size", "50"]
    code, out, err = said(capsys, "notes.csv", *USUAL, *quick, "--out", str(tmp_path / "out"))
    for spoken in (out, err):
        assert code == 0 and "a test on a share of 300 would be too small to say much" in spoken
        assert "--test FILE" in spoken and "--held-out 0.2" in spoken


def test_runs_without_privacy_carry_no_certificate(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plain = ["--text", "note", "--label", "mood", "--not-private", "--model", "model", "--steps", "2"]
    seeded = [*USUAL, "--labels", "good,bad", "--model", "model", "--steps", "2", "--seed", "1"]
    for number, line in enumerate((plain, seeded)):
        out = tmp_path / f"out{number}"
        code, spoken, err = said(capsys, "notes.csv", *line, "--out", str(out))
        assert code == 0 and "WITHOUT privacy" in spoken, err
        assert not (out / "certificate.json").exists()
        assert main(["verify", str(out)]) == 2
