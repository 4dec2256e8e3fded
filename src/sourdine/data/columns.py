"""What columns look like: which one may hold the text, the label, the person. For the owner's eyes.

Only names of columns are said, never what stands in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from sourdine.data import kinds
from sourdine.data.sources import Source
from sourdine.errors import InputError

MOST_CLASSES = 1000
"""Past it, a label is an id or free text."""
SHOWN = 12
LABELS = frozenset(
    {"label", "labels", "class", "target", "category", "sentiment", "diagnosis", "product"}
)
PERSONS = (
    *("author", "user", "username", "userid", "patient", "customer", "client", "sender", "person"),
    *("member", "employee", "reviewer", "writer", "speaker", "participant", "respondent", "student"),
    *(
        "subject",
        "account",
        "owner",
        "poster",
        "handle",
        "worker",
        "uid",
        "mrn",
        "ssn",
        "email",
        "phone",
    ),
    *("name", "from", "id"),
)
"""Words in the name of a column that names persons, the surest first."""
NO_PERSON = frozenset(
    {*("type", "kind", "role", "group", "class", "category", "count", "number", "age", "gender", "sex")}
    | {*("score", "rating", "city", "country", "status", "date", "time", "year", "agent", "line")}
)
"""Words that say that it is about persons, and names none."""


@dataclass(frozen=True)
class Proposal:
    """Which columns there are, and which of them look like the text and the label."""

    columns: tuple[str, ...]
    text: str | None
    label: str | None

    def sentence(self, table: str) -> str:
        """What to tell somebody who named no columns."""
        more = f" and {len(self.columns) - SHOWN} more" if len(self.columns) > SHOWN else ""
        shown = ", ".join(repr(name[:40]) for name in self.columns[:SHOWN])
        looks = [f"{self.text!r} looks like text"] * (self.text is not None)
        looks += [f"{self.label!r} like a label"] * (self.label is not None)
        hint = f"; {' and '.join(looks)}" if looks else ""
        asked = f"--text {self.text or 'COLUMN'} --label {self.label or 'COLUMN'}"
        return f"{table} has the columns {shown}{more}{hint}: say which to use, such as {asked}."


def propose(found: Source) -> Proposal:
    """Text: the longest cells on average. Label: few different values, or a name that says so."""
    lengths: dict[str, float] = {}
    classes: dict[str, int] = {}
    for name, cells in _readable(found):
        lengths[name] = pc.mean(pc.utf8_length(cells)).as_py() or 0.0
        known = pc.count_distinct(cells.filter(pc.not_equal(cells, ""))).as_py()
        if 2 <= known <= min(MOST_CLASSES, len(cells) / 2):
            classes[name] = known
    text = max(lengths, key=lengths.__getitem__, default=None)
    others = [name for name in classes if name != text]
    label = min(others, key=lambda n: (LABELS.isdisjoint(_words(n)), classes[n]), default=None)
    return Proposal(found.columns, text, label)


def like_persons(names: Iterable[str]) -> list[str]:
    """The names that look like a person's, the surest first."""
    ranks = {name: _rank(name) for name in names}
    known = [name for name, rank in ranks.items() if rank is not None]
    return sorted(known, key=lambda name: (ranks[name], name))


def repeats(found: Source, name: str) -> bool:
    """Whether a column has at least two values and one of them more than once."""
    try:
        [column] = found.load([found.columns.index(name)])
        cells = kinds.written(column, f"column {name!r}").drop_null()
    except InputError:
        return False  # not a column of names, and nobody has asked for it
    cells = cells.filter(pc.not_equal(cells, ""))
    return 2 <= int(pc.count_distinct(cells).as_py()) < len(cells)


def _rank(name: str) -> int | None:
    words = _words(name)
    if not words or not NO_PERSON.isdisjoint(words):
        return None
    return next((at for at, person in enumerate(PERSONS) if person in words), None)


def _words(name: str) -> list[str]:
    """The words of a name such as userId, USER_ID or "user id"."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def _readable(found: Source) -> Iterable[tuple[str, Any]]:
    """The columns that are numbers or text, each as text."""
    for at, name in enumerate(found.columns):
        try:
            [column] = found.load([at])
            yield name, kinds.written(column, f"column {name!r}").fill_null("")
        except InputError:
            continue
