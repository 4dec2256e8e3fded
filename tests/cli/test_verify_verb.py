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
    assert (
        first.startswith("verified: epsilon <= ")
        and " at delta = 1e-06 per example (zero-out)" in first
    )
    assert stated <= float(first.split("<= ")[1].split()[0]) < stated * (1 + 1e-5)
    assert len(rest) == 22 and all(line.startswith("  ✓ ") for line in rest)
    assert "your own key" in out and not err


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
    assert found["verified"] is True and found["failed"] == []
    assert found["signer"] == public_key() and 0 < found["epsilon_lower"] <= found["epsilon"] <= 3
    assert (found["delta"], found["unit"], found["adjacency"]) == (1e-6, "example", "zero-out")
    assert len(found["checks"]) == 22
    (run / "certificate.json").write_text("{", encoding="utf-8")
    assert main(["verify", str(run), "--json"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert found["verified"] is False and found["epsilon"] is None and "certificate" in found["failed"]


def test_no_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 2
    assert "there is no certificate" in capsys.readouterr().err
    assert main(["verify", "--help"]) == 0
