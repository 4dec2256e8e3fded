"""A run of PATE that a stranger can check: the student, the answers, the ledger, a certificate.

Guarantee: the certificate is drawn up from the ledger, which was charged for the whole plan before the
first question. It holds data-independent costs only; what the votes at hand would cost is private
(pate/analysis.py) and lies beside the folder, for the owner (pate/owner.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sourdine import certificate as papers
from sourdine.certificate import Access, Certificate
from sourdine.errors import InputError, SourdineError
from sourdine.events import NOTHING
from sourdine.ledger import Ledger
from sourdine.ledger.shared import published
from sourdine.pate.labelling import Answers, Labelling, no_answers
from sourdine.report.card import card
from sourdine.report.page import page

ANSWERS = "answers.jsonl"
_NUMBERS = "whole votes and exact integer noise on a grid (sourdine.mechanisms)"


@dataclass(frozen=True)
class About:
    """What the certificate says beside the plan. accesses: what else was done with the records."""

    fingerprint: str
    records: int
    users: int | None
    text: tuple[str, ...]
    label: str | None
    base: str
    teachers: int
    parameters: int
    public: int
    student: Mapping[str, float]
    accesses: Sequence[Access] = ()


def write_answers(path: Path, answers: Answers, start: int = 0) -> None:
    """Adds answers to the file, one line each, and comes back when they are on the disk."""
    with path.open("a", encoding="utf-8") as file:
        for at in range(len(answers)):
            said = {
                "question": start + at,
                "label": int(answers.labels[at]),
                "asked": bool(answers.asked[at]),
                "answered": bool(answers.answered[at]),
            }
            file.write(json.dumps(said) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_answers(path: Path) -> Answers:
    """What was answered until now. A last line that a crash cut off was shown to nobody."""
    if not path.exists():
        return no_answers()
    whole = path.read_text(encoding="utf-8")
    lines = whole[: whole.rfind("\n") + 1].splitlines()
    try:
        rows = [json.loads(line) for line in lines]
        labels, asked, answered = ([row[n] for row in rows] for n in ("label", "asked", "answered"))
        if [row["question"] for row in rows] != list(range(len(rows))):
            raise KeyError
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path} is damaged; the answers in it cannot be gone on with.") from None
    if len(whole) > len("".join(f"{line}\n" for line in lines)):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return Answers(np.array(labels, np.int64), np.array(asked, bool), np.array(answered, bool))


def seal(
    folder: Path,
    save: Callable[[Path], None],
    metrics: Mapping[str, Any],
    labelling: Labelling,
    about: About,
    working: Sequence[str] = (),
) -> Certificate:
    """Writes student, metrics, card and report, and seals the folder, which holds ledger and answers.

    save: writes the student into the folder. working: files that only a run that goes on needs, which
    are removed last.
    """
    shown = read_answers(folder / ANSWERS)
    if (int(shown.asked.sum()), int(shown.answered.sum())) != (labelling.asked, labelling.answered):
        raise InputError(f"{folder / ANSWERS} holds other answers than were given; nothing is sealed.")
    labelling.close()
    try:
        save(folder)
        text = json.dumps(dict(metrics), indent=2, allow_nan=False) + "\n"
        (folder / "metrics.json").write_text(text, encoding="utf-8")
        ledger = published(labelling.ledger, [labelling.entry.id], folder)
        draft = _draft(labelling, ledger, about, metrics, _plan(labelling, about))
        (folder / "README.md").write_text(card(draft.document, metrics), encoding="utf-8")
        (folder / "report.html").write_text(page(draft.document, metrics), encoding="utf-8")
        papers.seal(folder, draft, besides=working)
        for name in working:
            (folder / name).unlink(missing_ok=True)
        return Certificate.from_json((folder / "certificate.json").read_text("utf-8"))
    except OSError as error:
        raise SourdineError(
            f"the run folder {folder} cannot be written: {error.strerror}. The answers are kept; make "
            "room and start the same command with --resume."
        ) from None


def _plan(labelling: Labelling, about: About) -> dict[str, Any]:
    return {
        "teachers": about.teachers,
        "aggregator": labelling.aggregator.name,
        **asdict(labelling.aggregator),
        "questions": labelling.questions,
        "answers": labelling.answers,
        "asked": labelling.asked,
        "answered": labelling.answered,
        "public_texts": about.public,
        **{f"student {name}": value for name, value in about.student.items()},
    }


def _draft(
    labelling: Labelling,
    ledger: Ledger,
    about: About,
    metrics: Mapping[str, Any],
    training: Mapping[str, Any],
) -> Certificate:
    budget, event = labelling.ledger.budget, labelling.event
    unit = "all records of a person lie" if budget.unit == "user" else "a record lies"
    accesses = [
        Access(
            f"votes of {about.teachers} teachers on at most {training['questions']} public texts, of "
            f"which at most {training['answers']} are answered",
            event,
            f"data-independent, charged as a whole before the first; {unit} with one teacher",
        ),
        Access("the label set", NOTHING, "declared by the owner, not read off the data"),
        Access(
            "threshold, noise and number of questions",
            NOTHING,
            "given by the owner, or planned on simulated votes",
        ),
    ]
    if "accuracy" in metrics:
        accesses.append(Access("an exact test", NOTHING, "the owner declares its records public"))
    accesses += about.accesses
    known = budget.adjacency == "zero-out"  # else how many units there are is private
    if known:
        why = "public under zero-out: a unit is replaced by nothing, not removed"
        accesses.append(Access(f"the number of {budget.unit}s", NOTHING, why))
    sampling = papers.sampling(event)
    return papers.draft(
        ledger,
        shared=labelling.shared,
        what="a text classifier (the student), the answers it learnt from, and its metrics",
        to="anyone: the attacker sees every file of this folder and knows the public texts",
        contribution_bound=1,
        accesses=accesses,
        sampling_assumed=sampling,
        sampling_executed=sampling,
        source=labelling.source.kind,
        numbers=_NUMBERS,
        utility=metrics,
        data={
            "fingerprint": about.fingerprint,
            "records": about.records if known and about.users is None else "UNKNOWN",
            "users": about.users if known and about.users is not None else "UNKNOWN",
            "text": list(about.text),
            "label": about.label,
        },
        model={"base": about.base, "trained": "head, by PATE", "parameters": about.parameters},
        training=dict(training),
        not_covered=_not_covered(budget.unit),
    )


def _not_covered(unit: str) -> list[str]:
    said = [
        "facts about a person that stand in other people's texts, or in the public text",
        "what the pretrained model learnt from its own training text",
        "that the public text is public, and the threshold and noise chosen without the private votes: "
        "the owner's word, where sourdine did not choose them",
        "the time that the run took, and other runs on these records under another ledger",
    ]
    if unit == "example":
        said.insert(0, "persons with several records: k records are protected k times less")
    return said
