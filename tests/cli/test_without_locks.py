"""Without flock and the other modules that Windows lacks, accounting, verification and reports work."""

import subprocess
import sys
from pathlib import Path

import pytest
from test_verify_verb import run as sealed_run  # noqa: F401

ROOT = Path(__file__).parents[2]
REVIEWS = str(ROOT / "examples" / "reviews.csv")
PLAN = ["--noise-multiplier", "1", "--rate", "0.01", "--steps", "1000", "--delta", "1e-5"]
LIKE_WINDOWS = """
import os, sys

GONE = {"fcntl", "pwd", "grp", "termios", "resource", "tty", "pty"}

class Gone:
    def find_spec(self, name, path=None, target=None):
        if name in GONE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Gone())
for name in GONE:
    sys.modules.pop(name, None)
for name in ("getuid", "geteuid", "fchmod", "pwrite"):
    delattr(os, name)
os.environ["USERNAME"] = "ada"
from sourdine.cli import main

raise SystemExit(main())
"""


def sourdine(folder: Path, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", LIKE_WINDOWS, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_accounting_verification_and_reports_need_no_locks(
    sealed_run: Path,  # noqa: F811
) -> None:
    beside = sealed_run.parent
    code, out, err = sourdine(beside, "account", *PLAN)
    assert (code, err) == (0, "") and "epsilon <= 1.82824" in out
    code, out, err = sourdine(beside, "verify", str(sealed_run))
    assert code == 0 and "epsilon <= " in out, err
    code, _, err = sourdine(beside, "report", str(sealed_run), "--out", "report.html")
    assert code == 0 and (beside / "report.html").exists(), err


def test_a_survey_and_its_estimate(tmp_path: Path) -> None:
    asked = ["survey", "new", "smokers.json", "--question", "Do you smoke?", "--gamma", "0.25"]
    assert sourdine(tmp_path, *asked)[0] == 0
    answer = ["survey", "answer", "smokers.json", "--answers", "a.csv", "--person", "ada"]
    code, out, err = sourdine(tmp_path, *answer, "--truth", "yes")
    assert (code, out) == (2, "") and "needs file locks" in err and err.count("\n") == 1
    assert not (tmp_path / "a.csv").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["query", REVIEWS, "mean", "stars", "--low", "1", "--high", "5", "--epsilon", "0.1"],
        ["train", "notes.csv", "--text", "text", "--label", "city", "--labels", "Paris,Rome,Oslo,Bonn"],
        [
            "encode",
            "notes.csv",
            "--text",
            "text",
            "--label",
            "city",
            "--labels",
            "Paris,Rome,Oslo,Bonn",
        ],
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_is_charged_says_in_one_sentence_that_it_needs_locks(
    tmp_path: Path, arguments: list[str]
) -> None:
    rows = Path(REVIEWS).read_text(encoding="utf-8").splitlines()[:301]
    (tmp_path / "notes.csv").write_text("\n".join(rows), encoding="utf-8")
    given = [*arguments, "--epsilon", "3"] if arguments[0] != "query" else arguments
    ledger = ["--ledger", "l.sqlite"] if arguments[0] == "query" else []
    code, out, err = sourdine(tmp_path, *given, *ledger)
    said = [line for line in err.splitlines() if "needs file locks" in line]
    assert (code, out, len(said)) == (2, "", 1), err
