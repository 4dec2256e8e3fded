"""Every kind of tampering with a run folder is found, and named by the check that it concerns.

A thief may sign what he has changed with a key of his own. Pinning the signer's key finds all of it;
without a pin, only what contradicts the ledger, the accountants or the rest of the document is found,
and the verdict says that the signer is unknown.
"""

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from run_folder import AUDIT, TRAINING, another, document, edit, make_ledger, resign, sealed

from sourdine.budget import Budget
from sourdine.certificate import Verdict, public_key, verify
from sourdine.events import GaussianEvent, PoissonEvent

Document = dict[str, Any]
NOISIER = 300 * PoissonEvent(0.1, GaussianEvent(6.4))


class Tampering(NamedTuple):
    """What is done, the check that names it, and the one that does when the thief has signed it.

    signed: None where only a pinned key can tell; "" where signing again makes no sense.
    """

    act: Callable[[Path], object]
    named: str
    signed: str | None


KINDS: dict[str, Tampering] = {}


def kind(named: str, signed: str | None) -> Callable[[Callable[[Path], object]], None]:
    def take(act: Callable[[Path], object]) -> None:
        KINDS[act.__name__] = Tampering(act, named, signed)

    return take


def field(name: str, named: str, signed: str | None, change: Callable[[Document], object]) -> None:
    KINDS[name] = Tampering(lambda folder: edit(folder, change), named, signed)


# Files.


@kind("files", None)
def a_byte_of_the_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(bytes(content))


@kind("files", None)
def something_appended(folder: Path) -> None:
    with (folder / "report.html").open("a", encoding="utf-8") as file:
        file.write(" ")


@kind("required files", "required files")
def the_model_card_deleted(folder: Path) -> None:
    (folder / "README.md").unlink()


@kind("files", None)
def another_file_deleted(folder: Path) -> None:
    (folder / "head.safetensors").unlink()


@kind("required files", "required files")
def all_weights_deleted(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        path.unlink()


@kind("no other files", None)
def a_file_added(folder: Path) -> None:
    (folder / "losses.csv").write_text("step,loss\n", encoding="utf-8")


@kind("no other files", "no other files")
def a_checkpoint_left_behind(folder: Path) -> None:
    (folder / "checkpoint.pt").write_bytes(b"x")


@kind("no other files", None)
def a_hidden_file_in_a_folder(folder: Path) -> None:
    (folder / "tokenizer" / ".notes").write_text("x", encoding="utf-8")


@kind("files", None)
def two_files_swapped(folder: Path) -> None:
    one, two = folder / "model.safetensors", folder / "head.safetensors"
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


@kind("files", None)
def a_file_renamed(folder: Path) -> None:
    (folder / "head.safetensors").rename(folder / "top.safetensors")


@kind("files", "files")
def a_file_replaced_by_a_link(folder: Path) -> None:
    path = folder / "model.safetensors"
    outside = folder.parent / "outside.bin"
    path.rename(outside)
    path.symlink_to(outside)


@kind("no other files", "no other files")
def a_link_to_a_folder(folder: Path) -> None:
    (folder / "more").symlink_to(folder.parent)


@kind("certificate", "")
def the_certificate_replaced_by_a_link(folder: Path) -> None:
    path = folder / "certificate.json"
    path.symlink_to(path.rename(folder.parent / "elsewhere.json"))


@kind("metrics", "metrics")
def better_metrics(folder: Path) -> None:
    path = folder / "metrics.json"
    path.write_text(path.read_text(encoding="utf-8").replace("0.85", "0.95"), encoding="utf-8")


# The guarantee.


def promise(name: str, value: object) -> Callable[[Document], object]:
    return lambda found: found["guarantee"].update({name: value})


def scaled(name: str, factor: float) -> Callable[[Document], object]:
    return lambda found: found["guarantee"].update({name: factor * found["guarantee"][name]})


def point(place: int, name: str, factor: float) -> Callable[[Document], object]:
    return lambda found: found["guarantee"]["curve"][place].update(
        {name: factor * found["guarantee"]["curve"][place][name]}
    )


field("epsilon halved", "epsilon", "epsilon", scaled("epsilon", 0.5))
field(
    "epsilon halved, seen by others", "second accountant", "second accountant", scaled("epsilon", 0.5)
)
field("epsilon a hair lower", "epsilon", "epsilon", scaled("epsilon", 1 - 1e-4))
field("epsilon raised", "epsilon", "epsilon", scaled("epsilon", 1.05))
field("epsilon over the budget", "epsilon", "epsilon", promise("epsilon", 4.0))
field("epsilon negative", "certificate", "certificate", promise("epsilon", -1.0))
field("epsilon as a text", "certificate", "certificate", promise("epsilon", "2.6"))
field("epsilon_lower above epsilon", "epsilon", "epsilon", promise("epsilon_lower", 2.9))
field("epsilon_lower erased", "epsilon", "epsilon", promise("epsilon_lower", 0.0))
field("delta lowered", "terms", "terms", promise("delta", 1e-9))
field("delta too large for n", "delta", "delta", promise("delta", 1e-3))
field("unit", "terms", "terms", promise("unit", "user"))
field("contribution bound", "terms", "terms", promise("contribution_bound", 5))
field("adjacency", "terms", "terms", promise("adjacency", "replace-one"))
field("budget raised", "terms", "terms", promise("budget", {"epsilon": 9.0, "delta": 1e-6}))
field("a point of the curve lowered", "curve", "curve", point(4, "epsilon", 0.9))
field("a lower point of the curve raised", "curve", "curve", point(0, "epsilon_lower", 2.0))
field("the curve cut", "curve", "curve", lambda found: found["guarantee"]["curve"].pop())
field("the curve emptied", "curve", "curve", promise("curve", []))
field("the curve reversed", "curve", "curve", lambda found: found["guarantee"]["curve"].reverse())
field("a mu that is not exact", "mu", "mu", promise("mu", 0.6))


# Events, sampling, accesses.


def items(found: Document) -> Any:
    return found["events"]["event"]["items"]


def lots(found: Document) -> Any:
    return next(item for item in items(found) if item["event"]["kind"] == "poisson")


def use(found: Document, what: str) -> Any:
    return next(use for use in found["accesses"] if what in use["what"])


def said(name: str, text: str) -> Callable[[Document], object]:
    return lambda found: found["sampling"].update({name: text})


field(
    "events with more noise",
    "events",
    "events",
    lambda found: lots(found)["event"]["event"].update(noise_multiplier=6.4),
)
field(
    "events with less noise, seen by others",
    "second accountant",
    "second accountant",
    lambda found: lots(found)["event"]["event"].update(noise_multiplier=1.6),
)
field("events with fewer steps", "events", "events", lambda found: lots(found).update(count=100))
field(
    "events at a lower rate", "events", "events", lambda found: lots(found)["event"].update(rate=0.05)
)
field("an event removed", "events", "events", lambda found: items(found).pop(0))
field(
    "an event of no kind",
    "certificate",
    "certificate",
    lambda found: lots(found)["event"].update(kind="magic"),
)
field("shuffled batches assumed", "sampling", "sampling", said("assumed", "shuffled batches"))
field("shuffled batches executed", "sampling", "sampling", said("executed", "shuffled batches"))
field("another rate executed", "sampling", "sampling", said("executed", "Poisson lots, rate 0.01"))
field("other steps assumed", "sampling", "sampling", said("assumed", "Poisson lots, 200 steps"))
field(
    "more steps executed", "sampling", "sampling", said("executed", "Poisson lots, rate 0.1, 900 steps")
)
field("an access dropped", "accesses", "accesses", lambda found: found["accesses"].pop(0))
field(
    "a cost turned to none",
    "accesses",
    "accesses",
    lambda found: use(found, "metrics").update(cost="none", why="public"),
)
field(
    "a cost lowered",
    "accesses",
    "accesses",
    lambda found: use(found, "metrics")["cost"]["event"].update(noise_multiplier=300.0),
)
field(
    "NOT ACCOUNTED turned to none",
    "signature",
    None,
    lambda found: use(found, "duplicates").update(cost="none"),
)
field(
    "NOT ACCOUNTED without a reason",
    "accesses",
    "accesses",
    lambda found: use(found, "duplicates").update(why=""),
)
field("NOT ACCOUNTED left out", "signature", None, lambda found: found["accesses"].pop())
field(
    "a seeded source named",
    "randomness",
    "randomness",
    lambda f: f["randomness"].update(source="seeded"),
)
field("another number format", "signature", None, lambda f: f["randomness"].update(numbers="float64"))
field(
    "an attack that shows more",
    "audit",
    "audit",
    lambda found: found["audit"][0].update(lower_bound=2.9),
)
field(
    "an attack that shows more at a smaller delta",
    "audit",
    "audit",
    lambda found: found.update(audit=[{**AUDIT[0], "delta": 1e-7, "lower_bound": 2.95}]),
)
field("an attack kept back", "signature", None, lambda found: found.update(audit="UNKNOWN"))
field("utility", "metrics", "metrics", lambda f: f["utility"]["accuracy"].update(value=0.95))

# The rest of the document.

field(
    "records, so that delta is too large", "delta", "delta", lambda f: f["data"].update(records=10**6)
)
field("records", "signature", None, lambda found: found["data"].update(records=9999))
field("half a fingerprint", "fingerprint", "fingerprint", lambda f: f["data"].update(fingerprint="ab"))
field("another fingerprint", "signature", None, lambda f: f["data"].update(fingerprint="cd" * 32))
field("another model", "signature", None, lambda found: found["model"].update(base="larger"))
field("training", "signature", None, lambda found: found["training"].update(clip=0.1))
field("to whom", "signature", None, lambda found: found["released"].update(to="nobody"))
field("no limits", "not covered", "not covered", lambda found: found.update(not_covered=[]))
field("a newer version", "certificate", "certificate", lambda found: found.update(version=2))
field("a version that is none", "certificate", "certificate", lambda found: found.update(version="1"))
field("another format", "certificate", "certificate", lambda found: found.update(format="other"))
field("an unknown field", "certificate", "certificate", lambda found: found.update(blessed="yes"))
field("an unknown inner field", "certificate", "certificate", lambda f: f["guarantee"].update(x=1))
field("a missing field", "certificate", "certificate", lambda found: found.pop("audit"))
field("a missing inner field", "certificate", "certificate", lambda f: f["guarantee"].pop("curve"))
field("no guarantee at all", "certificate", "certificate", lambda found: found.pop("guarantee"))
field("no events at all", "certificate", "certificate", lambda found: found.update(events={}))
field("the signature's value", "signature", "", lambda f: f["signature"].update(value="00" * 64))
field("the signer's name", "signature", "", lambda f: f["signature"].update(public_key="11" * 32))
field("the signature removed", "signature", "", lambda found: found.update(signature="UNKNOWN"))
field("a hash", "files", "", lambda f: f["released"]["files"].update({"README.md": "00" * 32}))
field("a hash left out", "no other files", "", lambda f: f["released"]["files"].pop("README.md"))
field(
    "made in the future",
    "date",
    "date",
    lambda found: found.update(made=(datetime.now(UTC) + timedelta(days=1)).isoformat()),
)
field(
    "made before it was", "date", "date", lambda found: found.update(made="2020-01-01T00:00:00+00:00")
)
field("made at no moment", "date", "date", lambda found: found.update(made="2020-01-01T00:00:00"))


def text(folder: Path, old: str, new: str) -> None:
    path = folder / "certificate.json"
    content = path.read_text(encoding="utf-8")
    assert old in content
    path.write_text(content.replace(old, new, 1), encoding="utf-8")


@kind("certificate", "")
def cut_short(folder: Path) -> None:
    path = folder / "certificate.json"
    path.write_bytes(path.read_bytes()[:900])


@kind("certificate", "")
def emptied(folder: Path) -> None:
    (folder / "certificate.json").write_bytes(b"")


@kind("certificate", "")
def no_text(folder: Path) -> None:
    (folder / "certificate.json").write_bytes(b"\xff\xfe\x00")


@kind("certificate", "")
def nested_without_end(folder: Path) -> None:
    (folder / "certificate.json").write_text("[" * 100_000, encoding="utf-8")


@kind("certificate", "")
def a_field_twice(folder: Path) -> None:
    text(folder, '"epsilon": 2.6', '"epsilon": 1.0,\n  "epsilon": 2.6')


@kind("certificate", "")
def not_a_number(folder: Path) -> None:
    text(folder, '"value": 0.85', '"value": NaN')


@kind("certificate", "")
def infinity_spelled_as_a_number(folder: Path) -> None:
    text(folder, '"value": 0.85', '"value": 1e999')


# The ledger.


def sql(folder: Path, *statements: str) -> None:
    with sqlite3.connect(folder / "ledger.sqlite") as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def another_ledger(folder: Path, **given: Any) -> None:
    (folder / "ledger.sqlite").unlink()
    make_ledger(folder / "ledger.sqlite", **given)


@kind("ledger", "ledger")
def an_entry_altered(folder: Path) -> None:
    sql(folder, "UPDATE sourdine_entry SET text = replace(text, '3.2', '6.4')")


@kind("ledger", "ledger")
def a_label_altered(folder: Path) -> None:
    sql(folder, "UPDATE sourdine_entry SET label = 'nothing' WHERE id = 1")


@kind("ledger", "ledger")
def the_last_entry_deleted(folder: Path) -> None:
    sql(folder, "DELETE FROM sourdine_entry WHERE id = 2")


@kind("ledger", "ledger")
def the_first_entry_deleted(folder: Path) -> None:
    sql(folder, "DELETE FROM sourdine_entry WHERE id = 1")


@kind("ledger", "ledger")
def all_entries_deleted(folder: Path) -> None:
    sql(folder, "DELETE FROM sourdine_entry", "UPDATE sourdine_ledger SET entries = 0")


@kind("ledger", "ledger")
def the_ledgers_budget_raised(folder: Path) -> None:
    sql(folder, "UPDATE sourdine_ledger SET epsilon = 9.0")


@kind("ledger", "ledger")
def a_ledger_of_the_future(folder: Path) -> None:
    sql(folder, "UPDATE sourdine_ledger SET version = 99")


@kind("ledger", "ledger")
def a_ledger_that_is_none(folder: Path) -> None:
    (folder / "ledger.sqlite").write_bytes(b"nothing" * 1000)


@kind("ledger", "ledger")
def a_ledger_without_entries(folder: Path) -> None:
    from sourdine.ledger import Ledger

    (folder / "ledger.sqlite").unlink()
    Ledger(folder / "ledger.sqlite", Budget(3.0, 1e-6))


@kind("ledger", "required files")
def the_ledger_deleted(folder: Path) -> None:
    (folder / "ledger.sqlite").unlink()


@kind("events", "events")
def another_ledger_with_more_noise(folder: Path) -> None:
    another_ledger(folder, training=NOISIER)


@kind("terms", "terms")
def another_ledger_with_a_larger_budget(folder: Path) -> None:
    another_ledger(folder, budget=Budget(9.0, 1e-6))


@kind("terms", "terms")
def another_ledger_per_user(folder: Path) -> None:
    another_ledger(folder, budget=Budget(3.0, 1e-6, unit="user"))


@kind("randomness", "randomness")
def another_ledger_that_was_seeded(folder: Path) -> None:
    another_ledger(folder, source="seeded")


@kind("files", None)
def the_same_entries_in_a_new_ledger(folder: Path) -> None:
    another_ledger(folder)
    edit(folder, lambda found: found.update(made=datetime.now(UTC).isoformat()))


@kind("events", "events")
def one_more_charge(folder: Path) -> None:
    from sourdine.ledger import Ledger

    Ledger(folder / "ledger.sqlite").charge(GaussianEvent(200.0), "one more")


@kind("no other files", "no other files")
def a_planted_journal(folder: Path) -> None:
    (folder / "ledger.sqlite-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(504))


@kind("files", "events")
def the_certificate_of_another_run(folder: Path) -> None:
    shutil.copyfile(folder.parent / "other" / "certificate.json", folder / "certificate.json")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sealed run folders."""
    base = tmp_path_factory.mktemp("runs")
    sealed(base / "run")
    sealed(base / "other", NOISIER)
    return base


@pytest.fixture
def folder(runs: Path, tmp_path: Path) -> Path:
    shutil.copytree(runs / "other", tmp_path / "other")
    return Path(shutil.copytree(runs / "run", tmp_path / "run"))


def sentences(verdict: Verdict) -> dict[str, str]:
    return {check.name: check.sentence for check in verdict.checks}


def test_an_untouched_folder_is_verified(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    verdict = verify(folder, key=public_key())
    assert verdict.passed, verdict
    assert "your own key" in sentences(verify(folder))["signer"]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_there_are_many_kinds() -> None:
    assert len(KINDS) >= 90
    assert {tampering.named for tampering in KINDS.values()} >= {
        *("certificate", "signature", "files", "no other files", "required files", "ledger", "terms"),
        *(
            "events",
            "epsilon",
            "second accountant",
            "curve",
            "mu",
            "accesses",
            "sampling",
            "randomness",
        ),
        *("delta", "audit", "metrics", "fingerprint", "not covered", "date"),
    }


@pytest.mark.parametrize("name", KINDS)
def test_tampering_is_found_and_named(folder: Path, name: str) -> None:
    KINDS[name].act(folder)
    verdict = verify(folder)
    assert KINDS[name].named in verdict.failed, verdict
    assert len(verdict.checks) == 22, "every check runs, whatever the others say"
    assert str(folder.parent) not in str(verdict.checks)


@pytest.mark.parametrize("name", [name for name, found in KINDS.items() if found.signed != ""])
def test_tampering_that_a_thief_has_signed(folder: Path, tmp_path: Path, name: str) -> None:
    tampering = KINDS[name]
    mine = public_key()
    tampering.act(folder)
    resign(folder, tmp_path / "thief")
    pinned = verify(folder, key=mine)
    assert "signer" in pinned.failed and "signature" not in pinned.failed
    assert "not by the key that you trust" in sentences(pinned)["signer"]
    open_eyed = verify(folder)
    assert "unknown signer" in sentences(open_eyed)["signer"]
    if tampering.signed is None:  # a consistent lie: only the pinned key shows it
        assert open_eyed.passed, open_eyed
    else:
        assert tampering.signed in open_eyed.failed, open_eyed


def test_a_thief_who_makes_everything_anew(tmp_path: Path) -> None:
    """A consistent folder with a lower epsilon: what no verification can find without a pinned key."""
    mine = public_key()
    with another(tmp_path / "thief"):
        forged = sealed(tmp_path / "run", NOISIER)
    assert document(forged)["guarantee"]["epsilon"] < 1.5
    verdict = verify(forged)
    assert verdict.passed and "unknown signer" in sentences(verdict)["signer"]
    assert verify(forged, key=mine).failed == ("signer",)


def test_two_signers_are_told_apart(folder: Path, tmp_path: Path) -> None:
    resign(folder, tmp_path / "thief")
    with another(tmp_path / "thief"):
        theirs = public_key()
        assert "your own key" in sentences(verify(folder))["signer"]
    assert theirs != public_key()
    (tmp_path / "thief.pub").write_text(theirs.upper() + "\n", encoding="utf-8")
    assert verify(folder, key=str(tmp_path / "thief.pub")).passed
    assert verify(folder, key=public_key()).failed == ("signer",)


def test_a_pipe_in_the_folder_does_not_hang(folder: Path) -> None:
    (folder / "README.md").unlink()
    os.mkfifo(folder / "README.md")
    assert {"files", "required files"} <= set(verify(folder).failed)


def test_the_ledger_of_an_older_looser_version_may_claim_more(folder: Path, tmp_path: Path) -> None:
    """A claim above what is proven now is safe; only the same version must come to the same number."""

    def older(found: Document) -> None:
        found["by"]["sourdine"] = "0.0.1"
        found["guarantee"]["epsilon"] = 2.7
        found["guarantee"]["curve"] = json.loads(json.dumps(found["guarantee"]["curve"]))

    edit(folder, older)
    resign(folder, tmp_path / "someone")
    assert verify(folder).passed
    edit(folder, lambda found: found["guarantee"].update(epsilon=2.6))
    resign(folder, tmp_path / "someone")
    assert "epsilon" in verify(folder).failed


def test_the_base_case_is_what_it_should_be() -> None:
    assert TRAINING.parts == ((PoissonEvent(0.1, GaussianEvent(3.2)), 300),)
