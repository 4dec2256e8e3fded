"""Records of text for a task: one text or a pair, perhaps a label, perhaps whose it is.

Guarantee: as for tables, what one record holds decides neither whether `read_corpus` returns nor
whether a later step fails, and no message quotes a text, a label or a name. A record without a text, a
label or a person is nothing: it stays, teaches nothing, and its owner hears how many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from sourdine.data import columns, tables
from sourdine.data.faults import NOTHING, Faults, tell_owner
from sourdine.data.sources import Source, find
from sourdine.errors import InputError

FEWEST = 20
"""Records below which nothing can be learnt that is not about somebody."""


@dataclass(frozen=True, eq=False, repr=False)
class Corpus:
    """Records of one or two texts each. Made by `read_corpus`.

    texts: one list for each text column. labels: text, whatever they look like; "" where missing.
    users: whose record it is. name: where it came from, for messages. path: its file, if it was one.
    text, label, user: the names of the columns. candidates: other columns that may name the person.
    """

    texts: tuple[list[str], ...]
    labels: list[str] | None
    users: list[str] | None
    name: str
    path: Path | None
    text: tuple[str, ...]
    label: str | None = None
    user: str | None = None
    candidates: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.texts[0])

    def take(self, indices: Iterable[int]) -> Corpus:
        """The records at these places, in this order."""
        places = [int(index) for index in indices]
        if not all(0 <= place < len(self) for place in places):
            raise InputError(f"an index is outside of 0 to {len(self) - 1}, the places of the records.")
        return replace(
            self,
            texts=tuple([column[place] for place in places] for column in self.texts),
            labels=None if self.labels is None else [self.labels[place] for place in places],
            users=None if self.users is None else [self.users[place] for place in places],
        )

    def emptied(self, indices: Iterable[int], *, labels: bool = True) -> Corpus:
        """The same number of records, those at these places without text and, by default, label.

        Such a record teaches nothing. labels=False: labels stay, where they are public anyway.
        """
        places = frozenset(indices)
        if not places:
            return self

        def without(cells: list[str]) -> list[str]:
            return ["" if at in places else cell for at, cell in enumerate(cells)]

        kept = self.labels if self.labels is None or not labels else without(self.labels)
        return replace(self, texts=tuple(map(without, self.texts)), labels=kept)

    def table(self) -> tables.Table:
        """The same columns as a table, for its fingerprint."""
        named = dict(zip(self.text, self.texts, strict=True))
        if self.label is not None and self.labels is not None:
            named[self.label] = self.labels
        if self.user is not None and self.users is not None:
            named[self.user] = self.users
        arrays = {name: pa.array(cells, pa.large_string()) for name, cells in named.items()}
        return tables.Table(len(self), tuple(arrays), {}, arrays, self.name, self.path)

    def __repr__(self) -> str:
        # The generated one would print the texts.
        parts = [f"text={list(self.text)}"]
        parts += [f"label={self.label!r}"] * (self.label is not None)
        parts += [f"user={self.user!r}"] * (self.user is not None)
        return f"Corpus({self.name!r}, {len(self)} records, {', '.join(parts)})"


def read_corpus(
    source: str | Path | Mapping[str, Sequence[Any]] | Any,
    *,
    text: str | Sequence[str] | None,
    label: str | None,
    user: str | None = None,
    encoding: str = "utf-8",
    labelled: bool = True,
) -> Corpus:
    """Load and check the records of a task.

    source: all that `tables.read` takes. text: one column, or two for a task on pairs. label: the
    column of classes. user: the column that says whose record it is; it becomes the unit. Texts, labels
    and users stay as they were written, but for spaces around them. labelled: False for a task without
    labels; else a missing text or label column is an error that says which columns there are and which
    look right.
    """
    texts = _texts(text)
    found = find(source, encoding)
    if not texts or (labelled and label is None):
        raise InputError(columns.propose(found).sentence(found.name))
    names = [*texts, *(name for name in (label, user) if name is not None)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"column {twice!r} is named twice; text, label and user are different columns."
        )
    written = [name for name in names if name != user]
    users = [] if user is None else [user]
    table = tables.read(found, columns=names, names=users, written=written)
    whole = None if user is None else _persons(table, user)
    corpus = Corpus(
        tuple(_of(table, name, whole) for name in texts),
        None if label is None else _of(table, label, whole),
        None if user is None else table.text(user).to_pylist(),
        *(table.name, table.path, texts, label, user),
        _candidates(found, names) if user is None else (),
    )
    _check(corpus)
    return corpus


def _texts(text: object) -> tuple[str, ...]:
    if text is None:
        return ()
    names = (text,) if isinstance(text, str) else tuple(text) if isinstance(text, Iterable) else ()
    if len(names) not in {1, 2} or not all(isinstance(name, str) for name in names):
        raise InputError("text must name one column, or two for pairs, such as text='note'.")
    return names


def _persons(table: tables.Table, user: str) -> list[bool]:
    """For each record whether it names its person: else nobody's protection could count it."""
    found = [bool(name.strip()) for name in table.text(user).to_pylist()]
    faults = Faults()
    faults.count(f"without a person in column {user!r}, {NOTHING}", found.count(False))
    faults.tell(table.name)
    return found


def _of(table: tables.Table, name: str, whole: Sequence[bool] | None) -> list[str]:
    """A column of text, empty where the record is nothing."""
    cells: list[str] = table.text(name).to_pylist()
    if whole is None or all(whole):
        return cells
    return [cell if kept else "" for cell, kept in zip(cells, whole, strict=True)]


def _check(corpus: Corpus) -> None:
    records, name = len(corpus), corpus.name
    if records < FEWEST:
        raise InputError(
            f"{name} holds {records} records, and fewer than {FEWEST} cannot hide one among them; add "
            "records."
        )
    if corpus.users is not None and not any(user.strip() for user in corpus.users):
        raise InputError(f"column {corpus.user!r} of {name} names nobody; name the column of persons.")
    for title, column in zip(corpus.text, corpus.texts, strict=True):
        if not any(text.strip() for text in column):
            raise InputError(f"column {title!r} of {name} is empty in every row; name the one of text.")
    if corpus.labels is None:
        return
    classes = len(set(corpus.labels) - {""})
    if classes == 0:
        raise InputError(
            f"column {corpus.label!r} of {name} holds no label at all, so there is nothing to tell "
            "apart; name another column."
        )
    # One record may make a class of its own, so how many there are is told and decides nothing.
    if classes == 1:
        tell_owner(
            f"column {corpus.label!r} of {name} holds only one class, so there is nothing to tell "
            "apart. Stop, and name another column, unless that is meant."
        )
    if classes > columns.MOST_CLASSES or classes > records / 2:
        tell_owner(
            f"column {corpus.label!r} of {name} has {classes:,} different values in {records:,} rows, "
            "so it looks like an id or free text. Stop, and name the column of classes, unless it is."
        )


def _candidates(found: Source, used: Sequence[str]) -> tuple[str, ...]:
    """Columns whose name looks like a person and in which somebody stands more than once."""
    others = [name for name in found.columns if name not in used and found.columns.count(name) == 1]
    return tuple(name for name in columns.like_persons(others) if columns.repeats(found, name))
