"""A run folder made by hand, and a thief who signs what he has changed."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sourdine.budget import Budget
from sourdine.certificate import Access, Certificate, draft, keys, sampling, seal
from sourdine.certificate.sealing import digest, signed_bytes
from sourdine.events import NOTHING, ApproximateEvent, Event, GaussianEvent, PoissonEvent, compose
from sourdine.ledger import Ledger

BUDGET = Budget(3.0, 1e-6)
LABELS = ApproximateEvent(0.05, 1e-8, "zero-out")
LENGTHS, METRICS = GaussianEvent(40.0), GaussianEvent(30.0)
TRAINING = 300 * PoissonEvent(0.1, GaussianEvent(3.2))
UTILITY = {"accuracy": {"value": 0.85, "low": 0.82, "high": 0.88, "confidence": 0.95}, "records": 700}
AUDIT = [{"attack": "threshold on the loss", "lower_bound": 0.4, "confidence": 0.95, "delta": 1e-6}]


def make_ledger(
    path: Path,
    training: Event = TRAINING,
    budget: Budget = BUDGET,
    source: str = "secure",
) -> Ledger:
    ledger = Ledger(path, budget)
    plan = compose([LABELS, LENGTHS, training, METRICS])
    ledger.settle(ledger.reserve(plan, "the run", source=source), plan, "done")
    return ledger


def accesses(training: Event = TRAINING) -> list[Access]:
    return [
        Access("the set of labels", LABELS, "counts above a noisy threshold"),
        Access("how long texts are", LENGTHS),
        Access("training on 6920 records", training),
        Access("metrics on 700 held-out records", METRICS),
        Access("the number of records", NOTHING, "public under zero-out"),
        Access("duplicates, shown to the owner", None, "kept in a folder that is not for release"),
    ]


def drafted(ledger: Ledger, uses: Sequence[Access] | None = None, **changed: Any) -> Certificate:
    uses = accesses() if uses is None else uses
    total = compose(use.cost for use in uses if use.cost is not None)
    given: dict[str, Any] = {
        "what": "a text classifier: its weights, its labels, and noisy metrics",
        "to": "anyone",
        "contribution_bound": 1,
        "accesses": uses,
        "sampling_assumed": sampling(total),
        "sampling_executed": sampling(total),
        "source": "secure",
        "numbers": "float32; noise on a grid",
        "utility": UTILITY,
        "data": {"fingerprint": "ab" * 32, "records": 6920, "text": ["note"], "label": "diagnosis"},
        "model": {"base": "bytes-2x64", "trained": "head", "parameters": 770},
        "training": {"lot_size": 692, "steps": 300, "clip": 1.0, "learning_rate": 0.5},
        "not_covered": ["facts about a person in other people's texts"],
        "audit": AUDIT,
    }
    return draft(ledger, **{**given, **changed})


def fill(folder: Path) -> None:
    """Everything but the ledger and the certificate."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 8)
    (folder / "head.safetensors").write_bytes(b"head" * 100)
    (folder / "tokenizer").mkdir(exist_ok=True)
    (folder / "tokenizer" / "vocabulary.json").write_text("{}", encoding="utf-8")
    (folder / "metrics.json").write_text(json.dumps(UTILITY), encoding="utf-8")
    (folder / "README.md").write_text("# a model\n", encoding="utf-8")
    (folder / "report.html").write_text("<html></html>\n", encoding="utf-8")


def sealed(folder: Path, training: Event = TRAINING, budget: Budget = BUDGET) -> Path:
    fill(folder)
    ledger = make_ledger(folder / "ledger.sqlite", training, budget)
    seal(folder, drafted(ledger, accesses(training)))
    return folder


def document(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))
    return found


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    found = document(folder)
    change(found)
    (folder / "certificate.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


@contextmanager
def another(home: Path) -> Iterator[None]:
    """Somebody else, with a key of their own."""
    before = os.environ["SOURDINE_HOME"]
    os.environ["SOURDINE_HOME"] = str(home)
    try:
        yield
    finally:
        os.environ["SOURDINE_HOME"] = before


def resign(folder: Path, home: Path) -> None:
    """What a thief does with a folder that he has changed: new hashes, and his own signature."""

    def change(found: dict[str, Any]) -> None:
        names = [
            path for path in folder.rglob("*") if path.is_file() and path.name != "certificate.json"
        ]
        if isinstance(found.get("released"), dict):
            found["released"]["files"] = {
                path.relative_to(folder).as_posix(): digest(path) for path in names
            }
        found["signature"] = {"algorithm": "Ed25519", "public_key": keys.public_key()}
        found["signature"]["value"] = keys.sign(signed_bytes(found))

    with another(home):
        edit(folder, change)
