"""Private records that stand in a public text too: the same, or nearly so. NOT FOR RELEASE.

Texts are compared as words (data/words.py), so that case, space and signs do not matter. Two records
are nearly the same where at least `NEAR` of the runs of `RUN` words of the shorter one stand in the
other. Runs that stand in many public records (a salutation, a disclaimer) say nothing and do not count.

What to do about it. A public record that is left out because it is private would tell that it is, where
public records are handed on. A private record may be left out, as what becomes of it depends on it and
on public text alone: neighbours stay neighbours, and nobody else's record moves. That has to go without
a word to others, as whether there are such records, and how many, is private.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from sourdine.data.corpus import Corpus
from sourdine.data.words import words

RUN = 4
NEAR = 0.5
_FEWEST = 6  # runs of a record, below which only equal words count
_COMMON = 50  # public records with a run, above which it says nothing


@dataclass(frozen=True)
class Overlap:
    """The places of private records with the same, or nearly the same, words as a public one."""

    records: int
    same: tuple[int, ...]
    near: tuple[int, ...]

    def __bool__(self) -> bool:
        return bool(self.same or self.near)

    @property
    def places(self) -> frozenset[int]:
        """Of all of them."""
        return frozenset((*self.same, *self.near))

    @property
    def _rows(self) -> str:
        first = [f"{place + 1:,}" for place in sorted(self.places)[:5]]
        more = ", ..." if len(self.places) > len(first) else ""
        return f" (rows {', '.join(first)}{more})" if first else ""

    def sentence(self) -> str:
        """For the owner's eyes: how many, of how many."""
        return (
            f"{len(self.same):,} of {self.records:,} private records have the same words as a public "
            f"one, and {len(self.near):,} nearly the same{self._rows}."
        )


def overlap(private: Corpus, *public: Corpus) -> Overlap:
    """Which private records stand in the public texts."""
    texts = [_words(record) for each in public for record in zip(*each.texts, strict=True)]
    whole = {" ".join(found) for found in texts}
    holders: dict[int, list[int]] = defaultdict(list)
    lengths = []
    for place, found in enumerate(texts):
        own = set(_runs(found))
        lengths.append(len(own))
        for run in own:
            holders[run].append(place)
    same, near = [], []
    for place, record in enumerate(zip(*private.texts, strict=True)):
        found = _words(record)
        if not found:
            continue
        if " ".join(found) in whole:
            same.append(place)
        elif _is_near(set(_runs(found)), holders, lengths):
            near.append(place)
    return Overlap(len(private), tuple(same), tuple(near))


def _is_near(own: set[int], holders: dict[int, list[int]], lengths: list[int]) -> bool:
    if len(own) < _FEWEST:
        return False
    shared: Counter[int] = Counter()
    common = 0
    for run in own:
        places = holders.get(run, ())
        if len(places) > _COMMON:
            common += 1
        else:
            shared.update(places)
    kept = len(own) - common
    return any(
        count >= NEAR * max(_FEWEST, min(kept, lengths[place]))
        for place, count in shared.most_common(_COMMON)
    )


def _words(record: tuple[str, ...]) -> list[str]:
    return [word for text in record for word in words(text)]


def _runs(found: list[str]) -> Iterator[int]:
    """Runs of words by their hashes: within one process only, and never stored."""
    return (hash(tuple(found[at : at + RUN])) for at in range(len(found) - RUN + 1))
