"""Surveys: files that stay readable, each person once, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sourdine.errors import InputError
from sourdine.mechanisms import RandomizedResponse
from sourdine.query import Survey
from sourdine.query.survey import collect, read_answers
from sourdine.rng import seeded

SURVEY = Survey("Do you smoke?", RandomizedResponse.of_coins())


def test_a_survey_comes_back_as_it_was(tmp_path: Path) -> None:
    SURVEY.save(tmp_path / "s.json")
    assert Survey.load(tmp_path / "s.json") == SURVEY
    with pytest.raises(InputError, match="exists already"):
        SURVEY.save(tmp_path / "s.json")
    with pytest.raises(InputError, match="cannot be written"):
        SURVEY.save(tmp_path / "none" / "s.json")


def test_version_1_stays_readable(tmp_path: Path) -> None:
    text = '{"format": "sourdine.survey", "version": 1, "question": "?", "choices": ["a", "b", "c"], "flip": 0.25}'
    (tmp_path / "s.json").write_text(text, encoding="utf-8")
    assert Survey.load(tmp_path / "s.json") == Survey("?", RandomizedResponse(0.25, ("a", "b", "c")))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "x"}, "no survey"),
        ({"version": 2}, "update sourdine"),
        ({"flip": None}, "flip is None"),
        ({"flip": 1.5}, "a probability"),
        ({"flip": 0}, "publish true answers"),
        ({"flip": 1}, "tells nothing"),
        ({"choices": ["a"]}, "two different choices"),
        ({"choices": None}, "damaged"),
    ],
)
def test_a_wrong_survey(tmp_path: Path, change: dict[str, object], said: str) -> None:
    SURVEY.save(tmp_path / "s.json")
    document = json.loads((tmp_path / "s.json").read_text(encoding="utf-8")) | change
    (tmp_path / "t.json").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputError, match=said):
        Survey.load(tmp_path / "t.json")


def test_files_that_are_no_survey(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        Survey.load(tmp_path / "none.json")
    (tmp_path / "x").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="no survey"):
        Survey.load(tmp_path / "x")


def test_answers_add_up_over_files_and_nobody_counts_twice(tmp_path: Path) -> None:
    one, two = tmp_path / "1.csv", tmp_path / "2.csv"
    sure = Survey("?", RandomizedResponse(1e-9))
    collect(sure, {"ada": "yes"}, one, seeded(1))
    collect(sure, {"bob, jr": "no"}, one, seeded(1))
    collect(sure, {"eve": "yes"}, two, seeded(1))
    assert read_answers([one, two]) == {"ada": "yes", "bob, jr": "no", "eve": "yes"}
    with pytest.raises(InputError, match="twice"):
        read_answers([one, one])
    with pytest.raises(InputError, match="answered already"):
        collect(sure, {"new": "no", "ada": "no"}, one, seeded(1))
    assert len(read_answers([one])) == 2


def test_nobody_answers_twice_by_being_quick(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom sourdine.errors import InputError\n"
        "from sourdine.mechanisms import RandomizedResponse\nfrom sourdine.query import Survey\n"
        "from sourdine.query.survey import collect\nfrom sourdine.rng import secure\n"
        "sys.stdin.readline()\n"
        "try: collect(Survey('?', RandomizedResponse(0.5)), {'bob': 'yes'}, Path(sys.argv[1]), secure())\n"
        "except InputError: sys.exit(7)\n"
    )
    path = tmp_path / "a.csv"
    command = [sys.executable, "-c", code, str(path)]
    racers = [subprocess.Popen(command, stdin=subprocess.PIPE, text=True) for _ in range(4)]
    for racer in racers:
        racer.communicate("go\n")
    assert sorted(racer.returncode for racer in racers) == [0, 7, 7, 7]
    assert list(read_answers([path])) == ["bob"]


@pytest.mark.parametrize(
    "content", ["", "a,b\n", "person,answer\nada\n", "person,answer\nada,yes,no\n"]
)
def test_a_file_that_holds_no_answers(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.csv").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match="no file of answers"):
        read_answers([tmp_path / "a.csv"])


def test_answers_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_answers([tmp_path / "none.csv"])
    (tmp_path / "b.csv").write_bytes(b"person,answer\n\xff,yes\n")
    with pytest.raises(InputError, match="no file of answers"):
        read_answers([tmp_path / "b.csv"])
    with pytest.raises(InputError, match="cannot be written"):
        collect(SURVEY, {"a": "yes"}, tmp_path, seeded(1))


def test_an_answer_is_never_repeated_in_an_error() -> None:
    with pytest.raises(InputError) as error:
        SURVEY.answer("my secret", seeded(1))
    assert "secret" not in str(error.value)
    with pytest.raises(InputError) as error:
        SURVEY.estimate(["yes", "my secret"])
    assert "secret" not in str(error.value)
