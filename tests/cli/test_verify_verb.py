"""`sourdine verify`: the verdict first, then the checks; exit codes 0, 4 and 2."""

import json
from pathlib import Path

import pytest

from sourdine.budget import Budget
from sourdine.certificate import Access, draft, public_key, sampling, seal
from sourdine.cli import main
from sourdine.events import GaussianEvent, PoissonEvent
from sourdine.ledger import Ledger

PLAN = 20 * PoissonEvent(0.1, GaussianEvent(2.0))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("model.safetensors", "README.md", "report.html"):
        (folder / name).write_text("x", encoding="utf-8")
    (folder / "metrics.json").write_text("{}", encoding="utf-8")
    ledger = Ledger(folder / "ledger.sqlite", Budget(3.0, 1e-6))
    ledger.settle(ledger.reserve(PLAN, "training", source="secure"), PLAN, "done")
    certificate = draft(
        ledger,
        what="weights",
        to="anyone",
        contribution_bound=1,
        accesses=[Access("training", PLAN)],
        sampling_assumed=sampling(PLAN),
        sampling_executed=sampling(PLAN),
        source="secure",
        numbers="float32",
        utility={},
        data={},
        model={},
        training={},
        not_covered=["much"],
    )
    seal(folder, certificate)
    return folder


def test_a_good_folder(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(run)]) == 0
    out, err = capsys.readouterr()
    first, *rest = out.splitlines()
    stated = json.loads((run / "certificate.json").read_text(encoding="utf-8"))["guarantee"]["epsilon"]
    assert first.startswith("consistent; signed by your own key: epsilon <= ")
    assert " at delta = 1e-06 per example (zero-out)" in first
    assert stated <= float(first.split("<= ")[1].split()[0]) < stated * (1 + 1e-5)
    assert len(rest) == 22 and not err
    # No attack was run, and data that nobody gave have no fingerprint: neither is a tick.
    dashed = {line.split()[1] for line in rest if line.startswith("  – ") and "not checked: " in line}
    assert dashed == {"delta", "audit", "fingerprint"}
    assert sum(line.startswith("  ✓ ") for line in rest) == 22 - len(dashed)


def test_without_a_pinned_key_a_stranger_is_unknown(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Anybody can make a folder that is consistent: it is called so, and never verified."""
    signer = public_key()
    monkeypatch.setenv("SOURDINE_HOME", str(tmp_path / "a stranger"))
    assert main(["verify", str(run)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("consistent; signer UNKNOWN: epsilon <= ") and not err
    assert "  – signer " in out and "verified" not in out
    assert main(["verify", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verified"] is False and found["consistent"] is True
    assert found["signer"] == signer and found["signer_known_as"] == "UNKNOWN"
    assert "signer" in found["not_checked"] and not found["failed"]
    assert main(["verify", str(run), "--key", signer]) == 0
    assert capsys.readouterr().out.startswith("verified: epsilon <= ")


def test_a_key_of_yours_that_cannot_be_read_fails_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOURDINE_HOME", str(tmp_path / "home"))
    public_key()
    (tmp_path / "home" / "signing.key").write_bytes(b"too short")
    assert main(["verify", str(run)]) == 0
    assert capsys.readouterr().out.startswith("consistent; signer UNKNOWN: ")


def test_a_pinned_key(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "me.pub").write_text(public_key(), encoding="utf-8")
    assert main(["verify", str(run), "--key", str(tmp_path / "me.pub")]) == 0
    assert main(["verify", str(run), "--key", "00" * 32]) == 4
    out, err = capsys.readouterr()
    assert "NOT VERIFIED: 1 of 22 checks failed." in out and "✗ signer" in out
    assert "these checks failed: signer." in err
    assert main(["verify", str(run), "--key", "nonsense"]) == 2


def test_a_changed_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "model.safetensors").write_text("y", encoding="utf-8")
    assert main(["verify", str(run)]) == 4
    out, err = capsys.readouterr()
    assert out.startswith("NOT VERIFIED") and "model.safetensors is not what was signed" in out
    assert err.count("\n") == 1 and "failed: files." in err


def test_for_machines(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verified"] is False and found["consistent"] is True and found["failed"] == []
    assert found["signer_known_as"] == "your own key"
    assert found["signer"] == public_key() and 0 < found["epsilon_lower"] <= found["epsilon"] <= 3
    assert (found["delta"], found["unit"], found["adjacency"]) == (1e-6, "example", "zero-out")
    assert len(found["checks"]) == 22
    (run / "certificate.json").write_text("{", encoding="utf-8")
    assert main(["verify", str(run), "--json"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert found["verified"] is False and found["consistent"] is False
    assert found["epsilon"] is None and "certificate" in found["failed"]
    assert found["signer_known_as"] == "UNKNOWN"


def test_no_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 2
    assert "there is no certificate" in capsys.readouterr().err
    assert main(["verify", "--help"]) == 0
