"""A survey by randomized response: what is asked, how it is answered, and what the crowd said.

The survey is public: its question, its choices and its noise. Each person's answer is randomized where
the person is, before it leaves; the collected answers need no protection any more.

Guarantee: epsilon-DP for each person under replace-one, against everyone including the collector. The
survey is one event for each person, charged to its ledger when it is made; answers of different persons
do not add up. A person who answers twice spends twice, so a name answers once.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sourdine.checks import file_locks
from sourdine.data.faults import Faults
from sourdine.errors import InputError
from sourdine.mechanisms import RandomizedResponse, Share
from sourdine.rng import Source, secure

FORMAT, VERSION = "sourdine.survey", 1
HEADER = ("person", "answer")


@dataclass(frozen=True)
class Survey:
    """A question with its randomized response."""

    question: str
    response: RandomizedResponse

    def answer(self, truth: str, source: Source | None = None) -> str:
        """What one person says; to be drawn where the person is."""
        return self.response.release(truth, source or secure())

    def estimate(self, answers: Iterable[str], confidence: float = 0.95) -> dict[str, Share]:
        """The share of each choice among those who answered."""
        return self.response.estimate(answers, confidence)

    def save(self, path: str | Path) -> None:
        """Write the survey to a new file; an existing one is never replaced."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "question": self.question,
            "choices": list(self.response.choices),
            "flip": self.response.flip,
        }
        try:
            with Path(path).open("x", encoding="utf-8") as file:
                file.write(json.dumps(document, indent=1) + "\n")
        except FileExistsError:
            raise InputError(f"{path} exists already; name another file for a new survey.") from None
        except OSError as error:
            raise InputError(f"the survey cannot be written to {path}: {error.strerror}.") from None

    @classmethod
    def load(cls, path: str | Path) -> Survey:
        """Read a survey that `save` wrote."""
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"the survey {path} cannot be read: {error.strerror}.") from None
        except ValueError:
            document = None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise InputError(f"{path} is no survey; make one with sourdine survey new.")
        if document.get("version") != VERSION:
            raise InputError(
                f"the survey {path} has version {document.get('version')!r}, and this sourdine reads "
                f"version {VERSION}: update sourdine."
            )
        try:
            response = RandomizedResponse(document["flip"], tuple(document["choices"]))
            survey = cls(str(document["question"]), response)
        except (KeyError, TypeError):
            raise InputError(f"the survey {path} is damaged: a field is missing.") from None
        if response.flip in (0.0, 1.0):
            raise InputError(
                f"the survey {path} would publish true answers as they are; do not answer it."
                if response.flip == 0
                else f"the survey {path} makes every answer a coin that tells nothing."
            )
        return survey


def one_truth_each(
    survey: Survey, names: Iterable[str], truths: Iterable[str], source: Source
) -> tuple[dict[str, str], Faults]:
    """The truth of each person in a table, and what was wrong with single records.

    A row that names nobody, or a person for the second time, is left out: who takes part is no secret
    of a survey. A truth that is none of the choices is nothing, and one of them, drawn at random,
    stands in for it: the answer is then an average over all truths, as private as every other answer.
    """
    choices, found, faults = survey.response.choices, dict[str, str](), Faults()
    for name, truth in zip(names, truths, strict=True):
        if not name.strip() or name in found:
            faults.count("without a person, or with one who has answered in an earlier row, left out")
            continue
        faults.count("with none of the choices, answered for at random", truth not in choices)
        found[name] = truth if truth in choices else choices[source.below(len(choices))]
    return found, faults


def collect(survey: Survey, truths: Mapping[str, str], path: Path, source: Source) -> None:
    """Draw a random answer for each person and append it to a file, unless somebody is in it already.

    The file is held while it is looked at, drawn for and written: nobody answers twice by being quick.
    """
    file_locks()  # before the file is made
    if not set(truths.values()) <= set(survey.response.choices):
        raise InputError(f"an answer is none of the choices {', '.join(survey.response.choices)}.")
    try:
        with path.open("a+", encoding="utf-8", newline="") as file:
            _hold(file)
            if file.tell() and read_answers([path]).keys() & truths.keys():
                raise InputError(
                    f"somebody has answered already in {path}; a second random answer would cost a "
                    "second epsilon."
                )
            writer = csv.writer(file)
            answers = [(person, survey.answer(truth, source)) for person, truth in truths.items()]
            if not file.tell():
                writer.writerow(HEADER)
            writer.writerows(answers)
    except OSError as error:
        raise InputError(f"the answers cannot be written to {path}: {error.strerror}.") from None


def _hold(file: IO[str]) -> None:
    """Wait for other writers."""
    fcntl = file_locks()
    fcntl.flock(file, fcntl.LOCK_EX)
    file.seek(0, 2)


def read_answers(paths: Iterable[Path]) -> dict[str, str]:
    """The answers of several files by person; nobody may be in them twice."""
    answers: dict[str, str] = {}
    for path in paths:
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                lines = list(csv.reader(file))
        except OSError as error:
            raise InputError(f"the answers {path} cannot be read: {error.strerror}.") from None
        except (UnicodeDecodeError, csv.Error):
            raise InputError(f"{path} is no file of answers.") from None
        if not lines or tuple(lines[0]) != HEADER or any(len(line) != len(HEADER) for line in lines):
            raise InputError(
                f"{path} is no file of answers: its columns must be {' and '.join(HEADER)}."
            )
        for person, answer in lines[1:]:
            if person in answers:
                raise InputError(
                    f"a person is twice in the answers (again in {path}); each counts once."
                )
            answers[person] = answer
    return answers
