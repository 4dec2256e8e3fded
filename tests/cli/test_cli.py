"""The command line: fixed spellings, exit codes, one sentence for bad input, never a stack trace."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sourdine.accounting import curve
from sourdine.cli import main
from sourdine.events import GaussianEvent, PateEvent, PoissonEvent

PLAN = ["--noise-multiplier", "1", "--rate", "0.01", "--steps", "1000", "--delta", "1e-5"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    found: dict[str, object] = json.loads(out)
    return found


def test_account_speaks_the_fixed_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "account", *PLAN)
    exact = curve(1000 * PoissonEvent(0.01, GaussianEvent(1.0))).epsilon(1e-5)
    assert (found["epsilon"], found["epsilon_lower"], found["delta"]) == (
        exact.upper,
        exact.lower,
        1e-5,
    )
    assert (found["method"], found["adjacency"]) == ("pld", "add-remove")


def test_account_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "account", *PLAN)
    assert code == 0
    assert "epsilon <= 1.82824" in out
    assert "the upper end is the guarantee" in out


def test_printed_bounds_round_outwards(capsys: pytest.CaptureFixture[str]) -> None:
    for noise in ("0.9", "1.1", "1.7", "3.3"):
        arguments = ["account", "--noise-multiplier", noise, "--rate", "0.02", "--steps", "300"]
        exact = answer(capsys, *arguments)
        _, out, _ = run(capsys, *arguments)
        assert float(out.split("epsilon <= ")[1].split()[0]) >= float(str(exact["epsilon"]))
        low, high = (float(word) for word in out.split("between ")[1].split(";")[0].split(" and "))
        assert low <= float(str(exact["epsilon_lower"])) and high >= float(str(exact["epsilon"]))


@pytest.mark.parametrize(
    ("method", "expected"), [("rdp", 2.1), ("moments", 2.1), ("basic", 300.0), ("advanced", 300.0)]
)
def test_other_methods_are_looser(
    capsys: pytest.CaptureFixture[str], method: str, expected: float
) -> None:
    found = answer(capsys, "account", *PLAN, "--method", method)
    assert 1.8282 < float(str(found["epsilon"])) < 3 * expected
    _, out, _ = run(capsys, "account", *PLAN, "--method", method)
    assert "does not say how far" in out


def test_advanced_composition_wins_for_small_steps(capsys: pytest.CaptureFixture[str]) -> None:
    many = ["account", "--laplace-scale", "100", "--steps", "5000"]
    advanced, basic = (
        float(str(answer(capsys, *many, "--method", method)["epsilon"]))
        for method in ("advanced", "basic")
    )
    assert advanced < basic < 50.001


def test_gdp_is_exact_without_sampling_and_refused_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "account", "--noise-multiplier", "4", "--steps", "100", "--method", "gdp")
    assert found["epsilon"] == pytest.approx(curve(100 * GaussianEvent(4.0)).epsilon(1e-6).upper)
    code, _, err = run(capsys, "account", *PLAN, "--method", "gdp")
    assert code == 2
    assert "no bound" in err


def test_laplace_and_delta_at_epsilon(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "account", "--laplace-scale", "10", "--steps", "5", "--epsilon", "0.4")
    assert 0 < float(str(found["delta_lower"])) <= float(str(found["delta"])) < 0.1
    plan = PLAN[:-2]
    rough = answer(capsys, "account", *plan, "--epsilon", "2", "--method", "rdp")
    assert float(str(rough["delta"])) >= float(
        str(answer(capsys, "account", *plan, "--epsilon", "2")["delta"])
    )
    _, out, _ = run(capsys, "account", "--laplace-scale", "10", "--steps", "5", "--epsilon", "0.4")
    assert out.startswith("delta ")


def test_other_samplings(capsys: pytest.CaptureFixture[str]) -> None:
    shuffled = answer(capsys, "account", *PLAN, "--sampling", "shuffled")
    fixed = answer(capsys, "account", *PLAN, "--sampling", "fixed-size", "--records", "10000")
    poisson = answer(capsys, "account", *PLAN)
    assert shuffled["adjacency"] == fixed["adjacency"] == "zero-out"
    assert (
        float(str(poisson["epsilon"])) < float(str(fixed["epsilon"])) < float(str(shuffled["epsilon"]))
    )


def test_samplings_never_round_in_favour_of_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    plan = ["account", "--noise-multiplier", "1", "--sampling"]
    fixed = answer(capsys, *plan, "fixed-size", "--records", "250", "--rate", "0.01")
    assert fixed["sample"] == 3
    shuffled = answer(capsys, *plan, "shuffled", "--rate", "0.35", "--steps", "6")
    assert (shuffled["batches"], shuffled["epochs"]) == (2, 3)


def test_event_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    first = answer(capsys, "account", *PLAN, "--save", str(path))
    second = answer(capsys, "account", "--event", str(path), "--delta", "1e-5")
    assert first["epsilon"] == second["epsilon"]
    path.write_text(
        PateEvent((2.0, 4.0, 16.0), (0.01, 0.02, 0.1), "zero-out").to_json(), encoding="utf-8"
    )
    code, out, err = run(
        capsys, "account", "--event", str(path), "--adjacency", "zero-out", "--method", "rdp"
    )
    assert code == 0, err
    assert "must not be published" in out


def test_no_protection_is_said_in_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "open.json"
    path.write_text(
        '{"format": "sourdine.event", "version": 1, "event": {"kind": "non-private"}}', encoding="utf-8"
    )
    code, out, _ = run(capsys, "account", "--event", str(path))
    assert code == 0
    assert "no protection" in out
    assert answer(capsys, "account", "--event", str(path))["epsilon"] == "inf"


def test_calibrate_finds_each_of_the_three(capsys: pytest.CaptureFixture[str]) -> None:
    budget = ["calibrate", "--epsilon", "3", "--delta", "1e-6"]
    noise = answer(capsys, *budget, "--rate", "0.01", "--steps", "1000")
    assert 2.997 <= float(str(noise["epsilon"])) <= 3
    assert noise["noise_multiplier"] == pytest.approx(0.8652, abs=1e-3)
    assert (
        float(str(answer(capsys, *budget, "--rate", "0.01", "--noise-multiplier", "1")["steps"])) > 1000
    )
    assert (
        float(str(answer(capsys, *budget, "--steps", "100", "--noise-multiplier", "1")["rate"])) > 0.01
    )
    assert (
        answer(capsys, *budget, "--rate", "1", "--steps", "3", "--mechanism", "laplace")["mechanism"]
        == "laplace"
    )
    code, out, _ = run(capsys, *budget, "--rate", "0.01", "--steps", "1000")
    assert code == 0
    assert "noise multiplier 0.865" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["account"], "exactly one of"),
        (["account", "--noise-multiplier", "1", "--laplace-scale", "1"], "exactly one of"),
        (["account", "--noise-multiplier", "0"], "above zero"),
        (["account", "--noise-multiplier", "nan"], "above zero"),
        (["account", "--laplace-scale", "-2"], "above zero"),
        (["account", "--noise-multiplier", "1", "--delta", "0"], "between 0 and 1"),
        (["account", "--noise-multiplier", "1", "--delta", "1"], "between 0 and 1"),
        (["account", "--noise-multiplier", "1", "--delta", "0.01", "--records", "100"], "1/n"),
        (["account", "--noise-multiplier", "1", "--rate", "0"], "rate"),
        (["account", "--noise-multiplier", "1", "--rate", "1.5"], "rate"),
        (["account", "--noise-multiplier", "1", "--steps", "2.5"], "whole number"),
        (["account", "--noise-multiplier", "1", "--steps", "0"], "whole number"),
        (["account", "--noise-multiplier", "1", "--adjacency", "nearby"], "replace-one"),
        (["account", "--noise-multiplier", "1", "--method", "magic"], "pld"),
        (["account", "--noise-multiplier", "1", "--sampling", "magic"], "poisson"),
        (["account", "--noise-multiplier", "1", "--sampling", "fixed-size"], "--records"),
        (["account", "--laplace-scale", "1", "--sampling", "shuffled"], "Gaussian"),
        (["account", "--noise-multiplier", "1", "--epsilon", "-1"], "zero or above"),
        (["account", "--noise-multiplier", "1", "--epsilon", "1", "--method", "basic"], "pld and rdp"),
        (["account", "--event", "no-such-file.json"], "cannot be read"),
        (["account", "--event", "x", "--noise-multiplier", "1"], "whole plan"),
        (["account", "--event", "x", "--sampling", "shuffled"], "whole plan"),
        (["account", "--noise-multiplier", "1", "--epsilon", "1", "--delta", "1e-6"], "not both"),
        (["account", "--noise-multiplier", "1e-300"], "1e-12"),
        (["account", "--laplace-scale", "1e-320"], "1e-12"),
        (["account", "--noise-multiplier", "1", "--rate", "1e-300"], "1e-12"),
        (["account", "--noise-multiplier", "1", "--steps", "1e30"], "1e+15"),
        (["account", "--noise-multiplier", "1", "--accuracy", "0"], "accuracy"),
        (["account", "--noise-multiplier", "1", "--save", "/no/such/folder/x"], "cannot be written"),
        (["account", "--noise-multiplier", "much"], "--help"),
        (["account", "--no-such-option"], "--help"),
        (["no-such-verb"], "--help"),
        (["calibrate", "--epsilon", "0", "--rate", "0.1", "--steps", "10"], "above zero"),
        (["calibrate", "--epsilon", "nan", "--rate", "0.1", "--steps", "10"], "above zero"),
        (["calibrate", "--epsilon", "1", "--rate", "0.1"], "exactly two"),
        (["calibrate", "--epsilon", "1", "--rate", "0.1", "--steps", "1.5"], "whole number"),
        (
            ["calibrate", "--epsilon", "1", "--rate", "0.1", "--steps", "9", "--mechanism", "magic"],
            "gaussian",
        ),
        (["figures", "accountant"], "accountants"),
    ],
)
def test_bad_input_is_one_sentence_and_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert says in err
    assert err.startswith("sourdine: ")
    assert err.count("\n") == 1
    assert out == ""


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"format": "sourdine.event", "version": 99, "event": {}}', "update sourdine"),
        (b'{"format": "sourdine.event", "version": 1, "ev', "cut short"),
        (b'{"format": "other"}', "no event"),
        (b"\xff\xfe\x00", "no text file"),
    ],
)
def test_bad_event_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "event.json"
    path.write_bytes(content)
    code, _, err = run(capsys, "account", "--event", str(path))
    assert code == 2
    assert says in err
    assert err.count("\n") == 1


def test_a_budget_that_pays_for_nothing_is_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(
        capsys, "calibrate", "--epsilon", "0.1", "--rate", "0.9", "--noise-multiplier", "0.3"
    )
    assert code == 3
    assert "not even one step" in err


def test_config_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        "[account]\nnoise-multiplier = 1.0\nrate = 0.01\nsteps = 1000\ndelta = 1e-5\n", encoding="utf-8"
    )
    whole = answer(capsys, "account", "--config", str(path))
    assert whole["epsilon"] == answer(capsys, "account", *PLAN)["epsilon"]
    assert answer(capsys, "account", "--config", str(path), "--steps", "10")["steps"] == 10
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # as some Windows editors write it
    assert answer(capsys, "account", "--config", str(path)) == whole
    for text, says in (
        ("[account]\nstep = 3\n", "steps"),
        ("[account\n", "TOML"),
        ("account = 3\n", "table"),
        ("[acount]\nsteps = 3\n", "table"),
        ("[account]\nnoise-multiplier = [1, 2]\n", "it takes a number"),
        ("[account]\nsteps = true\n", "it takes a number"),
        ("[account]\njson = 7\n", "it takes true or false"),
        ("[account]\nsave = 3\n", "it takes a text"),
        ("[account]\nnoise-multiplier = 1.0\nnoise_multiplier = 2.0\n", "twice"),
    ):
        path.write_text(text, encoding="utf-8")
        code, _, err = run(capsys, "account", "--config", str(path))
        assert code == 2
        assert says in err
    assert run(capsys, "account", "--config", str(tmp_path / "none.toml"))[0] == 2


def test_demo_and_figures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = answer(capsys, "demo", "--tour")
    plans = found["plans"]
    assert all(plan["epsilon"] >= plan["epsilon_lower"] for plan in plans.values())  # type: ignore[attr-defined]
    assert len(found["answers"]) == 3 and "was not run" in str(found["refused"])  # type: ignore[arg-type]
    assert found["spent"] == pytest.approx(0.8)
    code, out, _ = run(capsys, "demo", "--tour")
    assert code == 0
    assert "McMahan" in out
    drawn = answer(capsys, "figures", "delta-meaning", "--out", str(tmp_path))
    assert [Path(str(name)).name for name in drawn["files"]] == [
        "delta-meaning.png",
        "delta-meaning.svg",
    ]  # type: ignore[attr-defined]
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    assert run(capsys, "figures", "delta-meaning", "--out", str(blocked))[0] == 2


VERBS = ["account", "calibrate", "figures", "demo", "query", "train", "fetch", "verify", "report"]
VERBS += ["ledger show", "ledger budget", "ledger export"]
VERBS += ["survey new", "survey answer", "survey run", "survey estimate"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    code, out, _ = run(capsys, *verb.split(), "--help")
    assert code == 0
    assert f"sourdine {verb}" in " ".join(out.split())


def test_installed_command_and_module() -> None:
    for command in ([sys.executable, "-m", "sourdine", "--version"],):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0
        assert done.stdout.strip() == "0.1.0"
    bad = subprocess.run(
        [sys.executable, "-m", "sourdine", "account", "--noise-multiplier", "-1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert bad.returncode == 2
    assert "Traceback" not in bad.stderr


def test_help_without_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "calibrate" in out


def test_no_verb_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys)
    assert code == 0
    assert "account" in out


def test_a_wrong_verb_gets_one_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "qery")
    assert (
        code == 2
        and err
        == "sourdine: No such command 'qery'. Did you mean 'query', 'verify'? See sourdine --help.\n"
    )
    code, _, err = run(capsys, "figures", "--nonsense")
    assert code == 2 and "--nonsense" in err and err.endswith(" See sourdine --help.\n")
    assert run(capsys, "ledger")[0] == 2  # shows its help
