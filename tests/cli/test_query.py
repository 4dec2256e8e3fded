"""`sourdine query`, `survey` and `ledger`: what they print, what they refuse, and that a refusal is free."""

import csv
import io
import json
import os
import shlex
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from sourdine.cli import main

N = 1_000
ROWS = [
    (f"u{row % 200}", 1 + row % 5, "Paris" if row % 3 else "Rome", "good food" if row % 2 else "bad")
    for row in range(N)
]
MEAN = ["query", "data.csv", "mean", "stars", "--low", "1", "--high", "5", "--epsilon", ".1"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = ["author,stars,city,text", *(",".join(map(str, row)) for row in ROWS)]
    Path("data.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    found: dict[str, object] = json.loads(out)
    return found


def spent(capsys: pytest.CaptureFixture[str], ledger: str = "reviews.sqlite") -> int:
    if not Path(ledger).exists():
        return 0
    return int(str(answer(capsys, "ledger", "budget", ledger)["releases"]))


def test_the_line_of_the_issue(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *MEAN, "--ledger", "reviews.sqlite")
    assert code == 0
    assert "started the ledger reviews.sqlite: epsilon=1 at delta=1e-06 per example" in err
    first, second = out.splitlines()
    assert first.startswith("mean of stars: ") and "with 95% confidence" in first
    assert second == "epsilon 0.1; 0.1 of 1 is spent, 0.9 is left"


def test_the_budget_runs_out_with_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(10):
        assert run(capsys, *MEAN, "--ledger", "reviews.sqlite")[0] == 0
    code, out, err = run(capsys, *MEAN, "--ledger", "reviews.sqlite")
    assert (code, out) == (3, "")
    assert "'mean of stars' was not run" in err and len(err.splitlines()) == 1
    assert spent(capsys) == 10


def test_every_question_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    Path("words.txt").write_text("good bad ugly\n", encoding="utf-8")
    common = ["--epsilon", "1", "--ledger", "big.sqlite", "--budget", "100"]
    bounds = ["--low", "1", "--high", "5"]
    assert abs(float(str(answer(capsys, "query", "data.csv", "count", *common)["value"])) - N) < 30
    for question in ("sum", "mean", "variance", "quantile"):
        found = answer(capsys, "query", "data.csv", question, "stars", *bounds, *common)
        assert float(str(found["low"])) <= float(str(found["value"])) <= float(str(found["high"]))
        assert found["confidence"] == 0.95 and found["epsilon"] == 1
    found = answer(capsys, "query", "data.csv", "histogram", "stars", "--keys", "1,2", *common)
    assert set(found["answers"]) == {"1", "2"}  # type: ignore[call-overload]
    found = answer(capsys, "query", "data.csv", "histogram", "stars", "--edges", "1,3,5", *common)
    assert set(found["answers"]) == {"1 to 3", "3 to 5"}  # type: ignore[call-overload]
    words = ["--vocabulary", "words.txt", "--words-per-unit", "2"]
    found = answer(capsys, "query", "data.csv", "words", "text", *words, *common)
    assert set(found["answers"]) == {"good", "bad", "ugly"}  # type: ignore[call-overload]
    found = answer(
        capsys, "query", "data.csv", "top-words", "text", "--word-delta", "1e-9", "--top", "1", *common
    )
    assert len(found["answers"]) == 1  # type: ignore[arg-type]
    grouped = ["--by", "city", "--keys", "Paris,Rome"]
    found = answer(capsys, "query", "data.csv", "mean", "stars", *bounds, *grouped, *common)
    assert set(found["answers"]) == {"Paris", "Rome"}  # type: ignore[call-overload]


def test_groups_are_printed_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "query", "data.csv", "count", "--by", "city", "--keys", "Paris,Oslo", "--epsilon", "0.5"
    )
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines()[:2]] == ["Paris", "Oslo"]
    assert Path("data.ledger.sqlite").exists()  # the ledger stands beside the data


def test_users(capsys: pytest.CaptureFixture[str]) -> None:
    common = [
        "--user",
        "author",
        "--rows-per-user",
        "2",
        "--ledger",
        "users.sqlite",
        "--epsilon",
        "0.5",
    ]
    found = answer(capsys, "query", "data.csv", "count", *common)
    assert abs(float(str(found["value"])) - 400) < 80
    assert "first 2 rows of each user" in str(found["label"])
    code, _, err = run(capsys, *MEAN, "--ledger", "users.sqlite")
    assert code == 2 and "name the user column" in err


def test_changed_data_go_on_spending(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, *MEAN, "--ledger", "reviews.sqlite")
    assert "changed" not in run(capsys, *MEAN, "--ledger", "reviews.sqlite")[2]
    with Path("data.csv").open("a", encoding="utf-8") as file:
        file.write("new,1,Oslo,hello\n")
    code, out, err = run(capsys, *MEAN, "--ledger", "reviews.sqlite")
    assert code == 0 and "the data have changed" in err and "0.3 of 1 is spent" in out


def test_options_from_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.toml").write_text(
        '[query]\nlow = 1\nhigh = 5\nepsilon = 0.1\nwhere = ["stars >= 2"]\nledger = "reviews.sqlite"\n'
        '[ledger.budget]\nepsilon = 2\nunit = "user"\n',
        encoding="utf-8",
    )
    found = answer(capsys, "query", "data.csv", "mean", "stars", "--config", "run.toml")
    assert found["label"] == "mean of stars where stars >= 2"
    found = answer(capsys, "ledger", "budget", "new.sqlite", "--config", "run.toml")
    assert (found["epsilon"], found["unit"]) == (2, "user")
    code, _, err = run(capsys, "ledger", "show", "new.sqlite", "--config", "run.toml")
    assert code == 2 and "[ledger.show]" in err


BAD: list[tuple[list[str], str]] = [
    ([*MEAN[:3], "star", *MEAN[4:]], "did you mean 'stars'"),
    ([*MEAN[:3], "text", *MEAN[4:]], "holds text"),
    (["query", "none.csv", *MEAN[2:]], "none.csv"),
    ([*MEAN, "--low", "5", "--high", "1"], "low must be below high"),
    ([*MEAN, "--epsilon", "nan"], "epsilon is nan"),
    ([*MEAN, "--epsilon", "-1"], "epsilon is -1"),
    ([*MEAN, "--epsilon", "much"], "'--epsilon'"),
    (MEAN[:8], "--epsilon"),
    (["query", "data.csv", "mean", "stars", "--epsilon", "1"], "--low and --high"),
    (["query", "data.csv", "median", "stars", "--epsilon", "1"], "one of count"),
    (["query", "data.csv", "count", "stars", "--epsilon", "1"], "takes no column"),
    (["query", "data.csv", "sum", "--epsilon", "1"], "needs a column"),
    ([*MEAN, "--where", "stars"], "not understood"),
    ([*MEAN, "--where", "town == Rome"], "no column 'town'"),
    ([*MEAN, "--by", "city"], "needs the keys"),
    ([*MEAN, "--keys", "a"], "groups of --by"),
    ([*MEAN, "--edges", "1,2"], "bins of a histogram"),
    ([*MEAN, "--missing", "stars"], "column=number"),
    ([*MEAN, "--missing", "txt=1"], "did you mean 'text'"),
    ([*MEAN, "--confidence", "2"], "confidence"),
    ([*MEAN, "--delta", "0.5"], "not below 1/n"),
    ([*MEAN, "--delta", "0"], "delta is 0"),
    ([*MEAN, "--budget", "0"], "epsilon is 0"),
    ([*MEAN, "--adjacency", "up"], "adjacency"),
    ([*MEAN, "--rows-per-user", "2"], "an example is one row"),
    ([*MEAN, "--vocabulary", "x"], "are for words"),
    ([*MEAN, "--ledger", "none/a.sqlite"], "cannot be made"),
    (["query", "data.csv", "count", "--low", "1", "--epsilon", "1"], "takes no --low"),
    (
        ["query", "data.csv", "histogram", "stars", "--edges", "1,x", "--epsilon", "1"],
        "numbers with commas",
    ),
    (
        [
            "query",
            "data.csv",
            "variance",
            "stars",
            "--low",
            "1",
            "--high",
            "5",
            "--by",
            "city",
            "--epsilon",
            "1",
        ],
        "cannot be grouped",
    ),
    ([*MEAN, "--top", "3"], "--top is for top-words"),
    ([*MEAN, "--level", ".9"], "--level is for quantiles"),
    ([*MEAN, "--epsilon", "1e9"], "protects nobody"),
    (["query", "data.csv", "words", "text", "--vocabulary", "none.txt", "--epsilon", "1"], "none.txt"),
]


@pytest.mark.parametrize(("arguments", "said"), BAD, ids=[said for _, said in BAD])
def test_bad_input_is_one_sentence_and_free(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    ledger = [] if "--ledger" in arguments else ["--ledger", "reviews.sqlite"]
    code, out, err = run(capsys, *arguments, *ledger)
    lines = [line for line in err.splitlines() if "started the ledger" not in line]
    assert (code, out, len(lines)) == (2, "", 1), err
    assert said in lines[0] and lines[0].startswith("sourdine: ")
    assert spent(capsys) == 0


FILES: list[tuple[bytes, str]] = [
    (b"", "empty"),
    (b"author,stars,city,text\n", "holds no rows"),
    (b"author,stars\nsecret,few\nsecret,many\n", "holds text"),
    (b"stars,stars\n1,2\n", "two columns called 'stars'"),
]


@pytest.mark.parametrize(("content", "said"), FILES, ids=[said for _, said in FILES])
def test_a_bad_table_is_one_sentence_that_quotes_no_cell(
    capsys: pytest.CaptureFixture[str], content: bytes, said: str
) -> None:
    Path("data.csv").write_bytes(content)
    code, out, err = run(capsys, *MEAN, "--ledger", "reviews.sqlite")
    assert (code, out) == (2, "")
    lines = [line for line in err.splitlines() if "started the ledger" not in line]
    assert len(lines) == 1 and said in lines[0], err
    assert "secret" not in err
    assert spent(capsys) == 0


def test_a_wrong_encoding_is_one_sentence_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    Path("data.csv").write_bytes("author,stars\nAndr\xe9,1\nZo\xeb,3\n".encode("latin-1"))
    line = [*MEAN, "--where", "author != x", "--ledger", "reviews.sqlite"]
    code, _, err = run(capsys, *line)
    assert code == 0  # two records that are nothing: their number is told, and decides nothing
    assert "2 records with bytes that are not utf-8" in err
    assert "latin-1" in err and "Andr" not in err
    assert run(capsys, *line, "--encoding", "latin-1")[0] == 0
    assert run(capsys, *line, "--encoding", "klingon")[0] == 2


def test_a_stated_number_stands_for_missing_ones(capsys: pytest.CaptureFixture[str]) -> None:
    Path("data.csv").write_text("author,stars\na,1\nb,\n", encoding="utf-8")
    assert run(capsys, *MEAN, "--missing", "stars=3", "--ledger", "reviews.sqlite")[0] == 0


def damaged(kind: str) -> None:
    if kind == "text":
        Path("reviews.sqlite").write_text("hello", encoding="utf-8")
    elif kind == "empty":
        Path("reviews.sqlite").write_bytes(b"")
    else:
        statement = {
            "newer": "update sourdine_ledger set version = 9",
            "altered": "update sourdine_entry set label = 'x'",
            "emptied": "delete from sourdine_entry",
        }[kind]
        connection = sqlite3.connect("reviews.sqlite")
        with connection:
            connection.execute(statement)
        connection.close()


@pytest.mark.parametrize("kind", ["text", "empty", "newer", "altered", "emptied"])
@pytest.mark.parametrize("verb", ["query", "show", "budget", "export"])
def test_a_damaged_ledger_is_one_sentence(
    capsys: pytest.CaptureFixture[str], kind: str, verb: str
) -> None:
    run(capsys, *MEAN, "--ledger", "reviews.sqlite")
    damaged(kind)
    line = (
        [*MEAN, "--ledger", "reviews.sqlite"] if verb == "query" else ["ledger", verb, "reviews.sqlite"]
    )
    code, out, err = run(capsys, *line)
    assert (code, out, len(err.splitlines())) == (2, "", 1)


def test_a_ledger_of_another_budget(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, *MEAN, "--ledger", "reviews.sqlite")
    for option, value, said in (
        ("--budget", "5", "epsilon 1.0, not 5.0"),
        ("--delta", "1e-9", "delta 1e-06, not 1e-09"),
        ("--adjacency", "add-remove", "adjacency zero-out, not add-remove"),
        ("--user", "author", "unit example, not user"),
    ):
        code, out, err = run(capsys, *MEAN, "--ledger", "reviews.sqlite", option, value)
        assert (code, out) == (2, "") and said in err
    assert spent(capsys) == 1


def test_a_refused_first_question_leaves_no_ledger_behind(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, *MEAN, "--epsilon", "50", "--ledger", "reviews.sqlite")[0] == 3
    assert run(capsys, *MEAN[:3], "text", *MEAN[4:], "--ledger", "reviews.sqlite")[0] == 2
    assert not Path("reviews.sqlite").exists()


def test_a_count_of_all_rows_needs_no_column_to_be_right(capsys: pytest.CaptureFixture[str]) -> None:
    Path("data.csv").write_text("price,stars\n,1\n3,\n4,5\n", encoding="utf-8")
    assert run(capsys, "query", "data.csv", "count", "--epsilon", "0.1")[0] == 0


def test_words_of_the_text_itself_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(
        capsys, "query", "data.csv", "words", "text", "--epsilon", "1", "--words-per-unit", "2"
    )
    assert "food" in found["answers"]  # type: ignore[operator]
    found = answer(capsys, "ledger", "budget", "data.ledger.sqlite")
    assert found["delta_spent"] == pytest.approx(1e-8)
    code, out, _ = run(capsys, "ledger", "budget", "data.ledger.sqlite")
    assert code == 0 and "delta=2.4e-7 for questions with a delta of their own" in out
    line = ["query", "data.csv", "words", "text", "--epsilon", "0.001", "--ledger", "other.sqlite"]
    code, out, _ = run(capsys, *line)
    assert code == 0 and "no word is used by enough people" in out


def test_conditions_on_dates_and_truths(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["day,flag", *(f"2024-0{1 + row % 9}-01,{row % 2 == 0}" for row in range(900))]
    Path("data.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    common = ["--epsilon", "20", "--ledger", "d.sqlite", "--budget", "100"]
    found = answer(capsys, "query", "data.csv", "count", "--where", "day >= 2024-06-01", *common)
    assert float(str(found["value"])) == pytest.approx(400, abs=3)
    found = answer(capsys, "query", "data.csv", "count", "--where", "flag == true", *common)
    assert float(str(found["value"])) == pytest.approx(450, abs=3)


def test_closed_and_full_outputs(folder: Path) -> None:
    command = [str(Path(sys.executable).with_name("sourdine")), *MEAN, "--ledger", "reviews.sqlite"]
    closed = f"{shlex.join(command)} >&-"
    done = subprocess.run(["bash", "-c", closed], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.strip() == (
        "sourdine: there is no output to write to; nothing was done."
    )
    assert not Path("reviews.sqlite").exists()
    if Path("/dev/full").exists():
        full = f"{shlex.join(command)} > /dev/full"
        done = subprocess.run(["bash", "-c", full], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "stays charged" in done.stderr
        assert "Traceback" not in done.stderr


# The ledger itself.


def test_show_budget_export(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "ledger", "budget", "a.sqlite", "--epsilon", "2", "--population", "reviewers"
    )
    assert code == 0 and "spent   nothing yet" in out and "reviewers" in out
    run(capsys, *MEAN, "--ledger", "a.sqlite")
    run(capsys, *MEAN, "--ledger", "a.sqlite", "--where", "stars > 1")
    code, out, _ = run(capsys, "ledger", "show", "a.sqlite")
    assert code == 0 and "mean of stars where stars > 1" in out
    assert "spent   epsilon=0.2 by 2 releases,\n        added up by a filter" in out
    assert "left    epsilon=1.8 for one more question" in out
    found = answer(capsys, "ledger", "show", "a.sqlite")
    assert len(found["history"]) == 2  # type: ignore[arg-type]
    code, out, _ = run(capsys, "ledger", "export", "a.sqlite", "--format", "csv")
    lines = list(csv.DictReader(io.StringIO(out)))
    assert [line["label"] for line in lines] == ["mean of stars", "mean of stars where stars > 1"]
    assert json.loads(lines[0]["event"])["event"]["kind"] == "discrete-laplace"
    assert run(capsys, "ledger", "export", "a.sqlite", "--out", "history.json")[0] == 0
    assert json.loads(Path("history.json").read_text(encoding="utf-8"))["history"][0]["who"]
    code, _, err = run(capsys, "ledger", "export", "a.sqlite", "--out", "history.json")
    assert code == 2 and "exists already" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "none.sqlite"], "no ledger at none.sqlite"),
        (["budget", "none.sqlite"], "start one with a budget"),
        (["budget", "a.sqlite", "--delta", "1e-9"], "made for delta 1e-06, not 1e-09"),
        (["export", "a.sqlite", "--format", "xml"], "one of json, csv"),
        (["export", "a.sqlite", "--out", "none/x"], "cannot be written"),
        (["budget", "a.sqlite", "--epsilon", "3"], "made for epsilon"),
        (["budget", "a.sqlite", "--population", "others"], "not 'others'"),
        (["budget", "b.sqlite", "--epsilon", "1", "--unit", "crowd"], "unit is 'crowd'"),
        (["budget", "b.sqlite", "--epsilon", "1", "--delta", "0"], "delta is 0"),
    ],
)
def test_ledger_refusals(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    run(capsys, "ledger", "budget", "a.sqlite", "--epsilon", "1")
    code, out, err = run(capsys, "ledger", *arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert said in err


# Surveys.

NEW = ["survey", "new", "s.json", "--question", "Do you smoke?"]


def people(rows: int = 500) -> None:
    lines = ["name,smokes", *(f"p{row},{'yes' if row % 4 == 0 else 'no'}" for row in range(rows))]
    Path("people.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


RUN = [
    "survey",
    "run",
    "s.json",
    "people.csv",
    "--column",
    "smokes",
    "--person",
    "name",
    "--answers",
    "a.csv",
]


def test_a_survey_from_end_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    people()
    code, out, _ = run(capsys, *NEW, "--gamma", "0.25")
    assert code == 0 and "probability 0.75" in out and "epsilon <= 1.09862" in out
    assert run(capsys, *RUN)[0] == 0
    answer_line = [
        "survey",
        "answer",
        "s.json",
        "--answers",
        "a.csv",
        "--person",
        "me",
        "--truth",
        "no",
    ]
    assert run(capsys, *answer_line)[0] == 0
    found = answer(capsys, "survey", "estimate", "s.json", "a.csv")
    assert found["people"] == 501
    yes = found["shares"]["yes"]  # type: ignore[index]
    assert yes["low"] <= yes["share"] <= yes["high"]
    assert abs(yes["share"] - 0.25) < 0.25
    code, out, _ = run(capsys, "survey", "estimate", "s.json", "a.csv")
    assert code == 0 and "Do you smoke? 501 people" in out
    assert spent(capsys, "s.ledger.sqlite") == 1
    code, _, err = run(capsys, *answer_line)
    assert code == 2 and "answered already" in err
    code, _, err = run(capsys, *RUN)
    assert code == 2 and "already" in err
    assert len(Path("a.csv").read_text(encoding="utf-8").splitlines()) == 502


def test_a_second_survey_of_the_same_people_needs_its_own_share(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(capsys, *NEW, "--epsilon", "1", "--ledger", "l.sqlite", "--budget", "1.5")[0] == 0
    line = ["survey", "new", "t.json", "--question", "?", "--epsilon", "1", "--ledger", "l.sqlite"]
    code, _, err = run(capsys, *line)
    assert code == 3 and "over the budget of 1.5 per user" in err
    assert not Path("t.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*NEW], "either --epsilon or --gamma"),
        ([*NEW, "--gamma", "0"], "tells nothing"),
        ([*NEW, "--gamma", "0.5"], "no privacy"),
        ([*NEW, "--gamma", "0.7"], "between 0"),
        ([*NEW, "--epsilon", "1", "--choices", "yes"], "two different choices"),
        ([*NEW, "--epsilon", "1", "--budget", "0"], "epsilon is 0"),
        (["survey", "estimate", "none.json", "a.csv"], "cannot be read"),
        (["survey", "estimate", "people.csv", "a.csv"], "no survey"),
    ],
)
def test_survey_refusals(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    people(3)
    code, out, err = run(capsys, *arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert said in err
    assert not Path("s.ledger.sqlite").exists()


def test_a_column_with_other_answers_is_refused_without_quoting_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("people.csv").write_text("name,smokes\np1,secretly\np2,secretly\n", encoding="utf-8")
    run(capsys, *NEW, "--gamma", "0.25")
    code, _, err = run(capsys, *RUN)
    assert code == 2 and "is one of the choices" in err and "secretly" not in err
    assert not Path("a.csv").exists()


def test_the_user_folder_holds_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, *MEAN, "--ledger", "reviews.sqlite")
    key = Path(os.environ["SOURDINE_HOME"]) / "fingerprint.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.read_bytes() not in Path("reviews.sqlite").read_bytes()
