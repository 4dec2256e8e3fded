"""What the owner of a corpus should know before training. NOT FOR RELEASE: it is exact, about the data.

One person's protection is counted in units. Who wrote several records, or stands in copies of one, is
protected k times less where the unit is a record: (k epsilon, k e^(k epsilon) delta)-DP, group privacy
(Dwork and Roth 2014, theorem 2.2; Vadhan 2017, lemma 2.2, for delta above zero).
"""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sourdine.data.corpus import Corpus

HEADING = "NOT FOR RELEASE"
BESIDE = ".not-for-release"
"""Behind the name of a folder: its neighbour for the owner's eyes."""
BETWEEN = "\x1f"
"""Stands between the texts of a pair: splitting at space takes it out of the texts."""
HEAD = 6
"""Words by which records are told apart first."""


@dataclass(frozen=True)
class Copies:
    """Records that are equal to another one: how many, in how many groups, the largest of them."""

    records: int
    groups: int
    largest: int


@dataclass(frozen=True)
class People:
    """How many records persons have: how many persons, the most, the median, how many have several."""

    users: int
    most: int
    median: float
    several: int


@dataclass(frozen=True)
class Findings:
    """What `examine` saw. `similar` counts copies but for case and space, the exact ones among them."""

    name: str
    records: int
    empty: int
    unlabelled: int
    copies: Copies
    similar: Copies
    labels: dict[str, int]
    people: People | None
    proposed_user: str | None
    tested: int = 0
    """How many of the records stand among test records that were given apart from them."""

    def sentences(self) -> list[str]:
        """Plain sentences, without anything that stands in a record."""
        said = [f"{self.name} holds {_count(self.records, 'record')}."]
        if self.empty:
            said.append(f"Without text: {_count(self.empty, 'record')}, of which nothing is learnt.")
        if self.unlabelled:
            said.append(f"Without a label: {_count(self.unlabelled, 'record')}, of no class.")
        if self.labels:
            least, most = min(self.labels.values()), max(self.labels.values())
            said.append(
                f"There are {len(self.labels)} classes; the smallest has {_count(least, 'record')}, "
                f"the largest {most:,}."
            )
        if self.tested:
            said.append(
                f"{_are(self.tested, 'record')} among the test records too, the same or nearly so: "
                "what is measured there looks better than it is."
            )
        return said + self._about_copies() + self._about_people()

    def _about_copies(self) -> list[str]:
        if not self.similar.records:
            return []
        exact, near = self.copies.records, self.similar.records - self.copies.records
        said = []
        if exact:
            said.append(
                f"{_are(exact, 'record')} copies of one another, in groups of up to "
                f"{self.copies.largest:,}."
            )
        if near:
            more = " more" if exact else ""
            said.append(f"{_are(near, 'record', more)} copies but for case and space.")
        said.append(
            "A copy protects nobody twice: who stands in k copies gets k times epsilon, and a larger "
            "delta (group privacy)."
        )
        return said

    def _about_people(self) -> list[str]:
        if self.people is not None:
            return [
                f"{_count(self.people.users, 'person')} wrote them: {self.people.several:,} wrote more "
                f"than one, at most {self.people.most:,}, the median is {self.people.median:g}. With "
                "unit user each of them is protected as a whole."
            ]
        if self.proposed_user is None:
            return []
        return [
            "With unit example a person who wrote 5 rows gets 5 times epsilon, and a larger delta "
            f"(group privacy). A column {self.proposed_user!r} looks like a person: train with --user "
            f"{self.proposed_user}."
        ]

    def to_markdown(self) -> str:
        """A page for the owner, with the exact number of records of each class."""
        lines = [
            f"# {HEADING}",
            "",
            "Exact numbers about private records. Keep this page to yourself.",
            "",
        ]
        lines += [f"- {sentence}" for sentence in self.sentences()]
        if self.labels:
            lines += ["", "| class | records |", "| --- | ---: |"]
            lines += [f"| {_cell(name)} | {count:,} |" for name, count in self.labels.items()]
        return "\n".join(lines) + "\n"


def examine(corpus: Corpus) -> Findings:
    """Count copies, gaps, classes and persons of a corpus."""
    labels = Counter(corpus.labels or ())
    unlabelled = labels.pop("", 0)
    return Findings(
        corpus.name,
        len(corpus),
        sum(not any(text.strip() for text in record) for record in zip(*corpus.texts, strict=True)),
        unlabelled,
        _copies(zip(*corpus.texts, strict=True)),
        _similar(corpus.texts),
        dict(labels.most_common()),
        None if corpus.users is None else _people(corpus.users),
        next(iter(corpus.candidates), None),
    )


def _copies(records: Iterable[object]) -> Copies:
    groups = [size for size in Counter(records).values() if size > 1]
    return Copies(sum(groups), len(groups), max(groups, default=1))


def _similar(texts: tuple[list[str], ...]) -> Copies:
    """Copies but for case and space; only records that begin alike are compared whole."""
    heads = [
        _level(text.split(None, HEAD)[:HEAD] for text in record) for record in zip(*texts, strict=True)
    ]
    common = Counter(heads)
    return _copies(
        _level(text.split() for text in record)
        for head, record in zip(heads, zip(*texts, strict=True), strict=True)
        if common[head] > 1
    )


def _level(record: Iterable[list[str]]) -> bytes:
    """A short name of the words of a record without their case: in full they would fill memory."""
    plain = BETWEEN.join(" ".join(words) for words in record).casefold()
    return hashlib.blake2b(plain.encode(), digest_size=16).digest()


def _people(users: list[str]) -> People:
    rows = Counter(users).values()
    if not rows:
        return People(0, 0, 0.0, 0)
    return People(len(rows), max(rows), statistics.median(rows), sum(n > 1 for n in rows))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _are(number: int, noun: str, more: str = "") -> str:
    return f"{_count(number, noun).replace(' ', more + ' ', 1)} {'is' if number == 1 else 'are'}"


def _cell(text: str) -> str:
    """A label as one cell of a Markdown table."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|") or "(space)"
