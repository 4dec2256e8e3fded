"""`sourdine attack extraction`, by itself: counts for everyone, passages for the owner only."""

import csv
import json
from pathlib import Path

import pytest
import typer
from ngram import Ngram, sentences

from sourdine.attacks import adapters
from sourdine.attacks.adapters import Function
from sourdine.cli import extract
from sourdine.errors import InputError

SECRET = "Patient Ada Berg, 12 Baker Street, phone 555-123-4567, is treated for gout since May"
TEXTS = [*sentences(60), *[SECRET] * 30]


def run(*arguments: str) -> None:
    app = typer.Typer()
    app.command()(extract.extraction)
    app(args=list(arguments), standalone_mode=False)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with Path("train.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["note", "author"])
        rows.writerows([text, "ada" if text == SECRET else f"p{n}"] for n, text in enumerate(TEXTS))
    Path("prompts.txt").write_text("Patient\n\nPatient Ada\n", encoding="utf-8")
    targets = {
        "model": Ngram(TEXTS),
        "model/": Ngram(TEXTS),
        "small": Ngram(sentences(60, seed=3)),
        "classifier": Function(lambda records: records, ("a", "b")),
    }
    monkeypatch.setattr(adapters, "from_folder", lambda path, device=None: targets[path])
    return tmp_path


COMMON = ("--texts", "train.csv", "--text", "note", "--samples", "30", "--tokens", "120")


def test_counts_are_shown_and_passages_are_kept(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("model", *COMMON, "--user", "author", "--prompts", "prompts.txt", "--reference", "small")
    said = capsys.readouterr().out
    for part in (
        "memorised/picked",
        "after prompts",
        "against a reference",
        "of the training text in 90",
    ):
        assert part in said
    for part in ("names ", "(10-eidetic)", "in texts of one person only: ", "NOT FOR RELEASE"):
        assert part in said
    assert "gout" not in said and "Baker" not in said
    kept = files / "model-extraction.not-for-release" / "passages.json"
    assert "gout" in kept.read_text(encoding="utf-8")
    outside = (files / "model-extraction" / "extraction.json").read_text(encoding="utf-8")
    assert "gout" not in outside and json.loads(outside)["passages"] >= 1


def test_json_and_out(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("model/", *COMMON, "--json", "--out", "here/found")
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] == 60 and found["one_person"] is None
    assert {cell["way"] for cell in found["cells"]} == {"likeliest tokens", "falling temperature"}
    assert Path(found["passages_folder"]) == files / "here" / "found.not-for-release"
    assert json.loads(Path("here/found/extraction.json").read_text())["kinds"] == found["kinds"]


def test_nothing_found_is_said_as_what_it_is(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("small", *COMMON)
    assert (
        "No passage of the training text was found in 60 samples; that proves"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("model",), "give --texts"),
        (("model", "--texts", "train.csv"), "text"),
        (("classifier", *COMMON), "needs a causal language model"),
        (("model", *COMMON, "--prompts", "empty.txt"), "holds no prompt"),
        (("model", *COMMON, "--samples", "0"), "samples is 0"),
        (("model", *COMMON, "--prompts", "nowhere.txt"), "cannot be read"),
    ],
)
def test_what_cannot_be_done(files: Path, arguments: tuple[str, ...], message: str) -> None:
    Path("empty.txt").write_text("\n \n")
    with pytest.raises(InputError, match=message):
        run(*arguments)
    assert not list(files.glob("*-extraction*"))
