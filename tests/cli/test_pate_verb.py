"""`sourdine pate` as a newcomer uses it: a run, its check, its papers, going on, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sourdine.cli import main
from sourdine.ledger import Ledger
from sourdine.pate import labelling, release, teachers

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("read_once")

WORDS = ("rain", "sun", "wind", "day", "night", "house", "tree", "road", "cup", "song", "bird", "sea")
KINDS = {"yes": ("good", "fine", "great"), "no": ("bad", "poor", "sad")}


def table(path: Path, count: int, seed: int, *, labels: bool = True, users: int = 0) -> Path:
    chance = np.random.default_rng(seed)
    rows = ["note,kind,who" if labels else "note"]
    for at in range(count):
        kind = "yes" if chance.random() < 0.5 else "no"
        note = f"{chance.choice(KINDS[kind])} {' '.join(chance.choice(WORDS, 8))} {seed}x{at}"
        rows.append(f"{note},{kind},p{at % users if users else at}" if labels else note)
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pate")
    table(root / "notes.csv", 400, 1, users=200)
    table(root / "public.csv", 120, 2, labels=False)
    table(root / "test.csv", 80, 3)
    return root


def arguments(root: Path, **changes: str | None) -> list[str]:
    given: dict[str, str | None] = {
        **{"public": str(root / "public.csv"), "text": "note", "label": "kind", "labels": "yes,no"},
        **{"teachers": "20", "epsilon": "4", "model": "bytes", "device": "cpu"},
        **changes,
    }
    flags = [
        (f"--{name.replace('_', '-')}", value) for name, value in given.items() if value is not None
    ]
    return ["pate", str(root / "notes.csv"), *(word for pair in flags for word in pair if word)]


@pytest.fixture(scope="module")
def run(root: Path) -> Path:
    out = root / "run"
    assert main(arguments(root, test=str(root / "test.csv"), out=str(out))) == 0
    return out


def test_the_folder_can_be_checked_and_used(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(run)]) == 0
    epsilon = float(capsys.readouterr().out.split("epsilon <= ")[1].split()[0])
    assert 3.9 < epsilon <= 4
    from sourdine import load

    assert set(load(run).predict(["good sun", "bad rain"])) <= {"yes", "no"}
    assert not (run / "plan.json").exists()


def test_an_accuracy_never_stands_alone(
    root: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads((run / "metrics.json").read_text())
    assert found["largest_class"]["name"] in ("yes", "no") and found["classes"] == ["yes", "no"]
    assert isinstance(found["beats_largest_class"], bool) and "matthews" in found
    capsys.readouterr()
    out = tmp_path / "out"
    assert main(arguments(root, out=str(out))) == 0
    assert "There was no test, so nothing is known about the accuracy." in capsys.readouterr().out
    assert "give public labelled texts with --test FILE" in (out / "report.html").read_text()
    uses = json.loads((out / "certificate.json").read_text())["accesses"]
    assert not any("an exact test" in use["what"] for use in uses)
    assert main(["verify", str(out)]) == 0


def test_the_certificate_holds_nothing_that_the_votes_tell(run: Path) -> None:
    document = json.loads((run / "certificate.json").read_text())
    training = document["training"]
    assert training["teachers"] == 20 and training["aggregator"] == "GNMax"
    assert training["asked"] == training["questions"] and training["answered"] <= training["answers"]
    assert document["data"]["records"] == 400
    kinds = {part["event"]["kind"] for part in document["events"]["event"]["items"]}
    assert kinds == {"discrete-gaussian"}  # never "pate-data-dependent"
    everything = "".join(
        path.read_text(errors="replace")
        for path in run.iterdir()
        if path.suffix in (".json", ".md", ".html", ".jsonl")
    )
    for private in ("data-dependent", "these votes", "as it came out"):
        assert private not in everything


def test_the_owner_has_a_page_beside_the_folder(run: Path) -> None:
    page = run.with_name("run.not-for-release") / "votes.html"
    said = page.read_text()
    assert "NOT FOR RELEASE" in said and "private" in said and "data:image/png" in said


def test_the_report_tells_how_it_was_asked(run: Path) -> None:
    said = (run / "report.html").read_text()
    assert "questions asked" in said and "20 teachers were asked" in said


def test_answers_are_one_line_each(run: Path) -> None:
    answers = release.read_answers(run / release.ANSWERS)
    document = json.loads((run / "certificate.json").read_text())
    assert answers.asked.sum() == document["training"]["asked"]
    assert answers.answered.sum() == document["training"]["answered"]


def test_a_person_is_a_unit(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = root / "users"
    assert main([*arguments(root, user="who", out=str(out), teachers="10"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unit"] == "user" and found["epsilon"] <= 4
    assert main(["verify", str(out)]) == 0
    document = json.loads((out / "certificate.json").read_text())
    assert document["data"]["users"] == 200 and document["data"]["records"] == "UNKNOWN"
    assert "which lie with one teacher" in (out / "report.html").read_text()


@pytest.mark.parametrize(
    "more", [{"aggregator": "confident", "threshold": "15"}, {"aggregator": "lnmax", "questions": "30"}]
)
def test_other_aggregators(root: Path, tmp_path: Path, more: dict[str, str]) -> None:
    out = tmp_path / "run"
    code = main(arguments(root, out=str(out), epsilon="9", **more))
    assert code == 0 and main(["verify", str(out)]) == 0
    training = json.loads((out / "certificate.json").read_text())["training"]
    if "threshold" in more:
        assert training["threshold"] == 15 and training["answered"] <= training["asked"]
    else:
        assert training["questions"] == 30


def test_killed_while_asking_it_goes_on_and_is_charged_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real = tmp_path / "run", labelling.Labelling.ask
    calls = []

    def dies(self: labelling.Labelling, *given: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, *given)

    monkeypatch.setattr("sourdine.text.teaching.CHUNK", 20)
    with monkeypatch.context() as patch:
        patch.setattr(labelling.Labelling, "ask", dies)
        assert main(arguments(root, out=str(out))) == 130
    before = (out / release.ANSWERS).read_text()
    assert len(before.splitlines()) == 40
    # A line that was being written when the power went.
    (out / release.ANSWERS).write_text(before + '{"question": 40, "la')
    assert main(arguments(root, out=str(out))) == 2  # without --resume
    assert main([*arguments(root, out=str(out), epsilon="5"), "--resume"]) == 2
    assert main([*arguments(root, out=str(out)), "--resume"]) == 0
    assert (out / release.ANSWERS).read_text().startswith(before)
    kinds = [entry.kind for entry in Ledger(out / "ledger.sqlite").history()]
    assert kinds == ["reserve", "settle"]
    assert main(["verify", str(out)]) == 0


def test_killed_while_sealing_it_goes_on(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"

    def full(*given: Any, **named: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("sourdine.pate.release.papers.seal", full)
        assert main(arguments(root, out=str(out))) == 1
    assert not (out / "certificate.json").exists()
    assert main([*arguments(root, out=str(out)), "--resume"]) == 0
    assert main(["verify", str(out)]) == 0


def test_public_text_that_holds_private_records(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = (root / "notes.csv").read_text().splitlines()
    copied = private[5].split(",")[0].upper()
    near = private[9].split(",")[0].replace("9x", "") + " indeed so"
    public = tmp_path / "public.csv"
    public.write_text((root / "public.csv").read_text() + f"{copied}\n{near}\n")
    out = tmp_path / "run"
    assert main(arguments(root, public=str(public), out=str(out))) == 2
    said = capsys.readouterr().err
    assert "1 of 400 private records have the same words as a public one, and 1 nearly" in said
    assert "--leave-out-copies" in said and not out.exists()
    assert main([*arguments(root, public=str(public), out=str(out)), "--leave-out-copies"]) == 0
    assert "copies" not in capsys.readouterr().err  # how many there were is for the owner's page
    page = out.with_name("run.not-for-release") / "votes.html"
    assert "1 of 400 private records have the same words" in page.read_text()
    document = json.loads((out / "certificate.json").read_text())
    assert document["data"]["records"] == 400
    compared = next(a for a in document["accesses"] if "comparison" in a["what"])
    assert compared["cost"] == "none" and "nobody is told" in compared["why"]
    assert main(["verify", str(out)]) == 0


def test_copies_teach_nothing(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    real = teachers.fit_heads
    monkeypatch.setattr(
        teachers, "fit_heads", lambda x, y, *more: seen.append(list(y)) or real(x, y, *more)
    )
    private = [line.split(",")[0] for line in (root / "notes.csv").read_text().splitlines()[1:]]
    near = private[9].rsplit(" ", 1)[0] + " indeed so"
    public = tmp_path / "public.csv"
    public.write_text((root / "public.csv").read_text() + f"{private[4]}\n{near}\n")
    asked = arguments(root, public=str(public), out=str(tmp_path / "run"))
    assert main([*asked, "--leave-out-copies"]) == 0
    assert [at for at, own in enumerate(seen[0]) if own == -1] == [4, 9]


def test_a_run_without_copies_says_what_one_with_them_says(run: Path) -> None:
    document = json.loads((run / "certificate.json").read_text())
    compared = next(a for a in document["accesses"] if "comparison" in a["what"])
    assert compared["cost"] == "none" and "nobody is told" in compared["why"]
    checked = next(a for a in document["accesses"] if "checks at load" in a["what"])
    assert checked["cost"] == "NOT ACCOUNTED" and "stand in public texts" in checked["why"]


def test_private_records_are_read_alone(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a batch the last digits of a vector depend on its neighbours, and votes on edge with them."""
    from sourdine.text import examples, frozen

    monkeypatch.setattr(frozen, "features", examples.features)  # read anew
    read: list[tuple[int, bool]] = []
    sizes: set[int] = set()
    real, features = frozen.Frozen.__call__, frozen.Classifier.features

    def call(self: Any, texts: Any, alone: bool = False) -> Any:
        read.append((len(texts[0]), alone))
        sizes.clear()
        found = real(self, texts, alone)
        assert sizes == {1} if alone else max(sizes) > 1
        return found

    def noted(self: Any, batch: Any) -> Any:
        sizes.add(len(batch["input_ids"]))
        return features(self, batch)

    monkeypatch.setattr(frozen.Frozen, "__call__", call)
    monkeypatch.setattr(frozen.Classifier, "features", noted)
    assert main(arguments(root, out=str(tmp_path / "run"))) == 0
    assert (400, True) in read and (120, False) in read


def test_two_processes_cannot_ask_on_one_charge(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, second = tmp_path / "run", []
    real = labelling.Labelling.ask

    def meanwhile(self: labelling.Labelling, *given: Any) -> Any:
        if not second:
            second.append(0)
            second[0] = main([*arguments(root, out=str(out)), "--resume"])
        return real(self, *given)

    monkeypatch.setattr(labelling.Labelling, "ask", meanwhile)
    assert main(arguments(root, out=str(out))) == 0
    assert second == [2] and "another process works on" in capsys.readouterr().err
    assert not (out.with_name("run.not-for-release") / "run.lock").exists()


def test_answers_that_are_not_the_labellings_are_not_sealed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real = tmp_path / "run", release.read_answers

    def more(path: Path) -> Any:
        found = real(path)
        return found + found if len(found) else found

    monkeypatch.setattr(release, "read_answers", more)
    assert main(arguments(root, out=str(out))) == 2
    assert not (out / "certificate.json").exists()


def test_resumed_with_other_public_texts(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, public = tmp_path / "run", tmp_path / "public.csv"
    lines = (root / "public.csv").read_text().splitlines()
    public.write_text("\n".join(lines) + "\n")
    with monkeypatch.context() as patch:
        patch.setattr(
            labelling.Labelling, "ask", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        assert main(arguments(root, public=str(public), out=str(out))) == 130
    public.write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    assert main([*arguments(root, public=str(public), out=str(out)), "--resume"]) == 2
    assert "public differ" in capsys.readouterr().err
    (out / "plan.json").write_text("{")
    assert main([*arguments(root, out=str(out)), "--resume"]) == 2


def test_the_private_file_is_no_public_test(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = arguments(root, test=str(root / "notes.csv"), out=str(tmp_path / "run"))
    assert main(asked) == 2
    assert "--test names the table of private records itself" in capsys.readouterr().err


def test_an_encoder_that_was_trained_on_somebodys_text_is_refused(root: Path, run: Path) -> None:
    assert main(arguments(root, model=str(run), out=str(root / "other"))) == 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"public": None}, "--public"),
        ({"labels": None}, "--labels"),
        ({"labels": "yes"}, "--labels"),
        ({"labels": "yes,no,yes"}, "--labels"),
        ({"epsilon": None}, "--epsilon"),
        ({"epsilon": "0"}, "epsilon"),
        ({"teachers": "1"}, "teachers"),
        ({"teachers": "200"}, "fewer than 5 each"),
        ({"aggregator": "median"}, "aggregator"),
        ({"threshold": "5"}, "--aggregator confident"),
        ({"delta": "0.5"}, "delta"),
        ({"public": "nowhere.csv"}, "nowhere.csv"),
        ({"label": "class"}, "class"),
        ({"questions": "0"}, "questions"),
        ({"labels": "ja,nein"}, "no record has 'ja', 'nein'"),
        ({"assume": "75"}, "accuracy to assume"),
    ],
)
def test_bad_input_is_one_sentence(
    root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, str | None],
    why: str,
) -> None:
    out = tmp_path / "run"
    assert main(arguments(root, **({"out": str(out)} | change))) == 2
    said = capsys.readouterr().err
    assert why in said and "Traceback" not in said and said.count("\n") <= 2
    assert not (out / "ledger.sqlite").exists()


def test_the_owner_hears_what_is_odd_about_the_records(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (root / "notes.csv").read_text().splitlines()
    lines[7] = lines[7].replace(",yes,", ",maybe,").replace(",no,", ",maybe,")
    lines[8] = lines[8].replace(",yes,", ",,").replace(",no,", ",,")
    (tmp_path / "notes.csv").write_text("\n".join(lines) + "\n")
    public = tmp_path / "public.csv"
    public.write_text((root / "public.csv").read_text() + '""\n')
    table = arguments(root, public=str(public), out=str(tmp_path / "run"))
    given = [table[0], str(tmp_path / "notes.csv"), *table[2:]]
    assert main(given) == 2
    said = capsys.readouterr().err
    assert "1 of 400 records have a label that was not declared; 1 have no label" in said
    assert main([*given, "--other-labels", "drop"]) == 0
    said = capsys.readouterr().err
    assert "1 of the 121 public texts are empty" in said


def test_nothing_to_go_on_with(
    root: Path, tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments(root, out=str(tmp_path / "none")), "--resume"]) == 2
    assert "no unfinished run" in capsys.readouterr().err
    assert main([*arguments(root, out=str(run)), "--resume"]) == 2
    assert "is finished" in capsys.readouterr().err
