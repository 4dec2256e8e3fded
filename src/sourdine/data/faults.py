"""A fault of one record makes that record nothing; it never decides whether a run is made or stopped.

A refusal that one record decides would be a release that nobody accounted for. So what cannot be read
of a record (bytes that are no text, a row with too many fields, a number that is none) counts as
missing. The record stays: how many there are does not change. Its owner hears how many such records
there are, exactly, on stderr, where nothing that is handed on comes from.

A fault of the whole source is refused as before: no header, an encoding that cannot read the header, a
quote that is never closed, so that nobody can tell where the next record begins.
"""

from __future__ import annotations

import codecs
import sys
from collections import Counter

NOT_FOR_RELEASE = "for you only, not for release"
"""Stands before exact facts about private records."""
NOTHING = "counted as nothing"
"""What every fault of a record leads to."""
UNREADABLE = "\udc80"
"""What stands for bytes that are no text in the encoding: no encoding that is read gives this."""


def tell_owner(sentence: str) -> None:
    """One sentence with exact facts about the records, marked as such."""
    print(f"sourdine ({NOT_FOR_RELEASE}): {sentence}", file=sys.stderr)


class Faults:
    """How many records of one source have which fault; for its owner alone."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def count(self, fault: str, records: int = 1) -> None:
        """fault: what these records have, in words that fit behind "3 records"."""
        if records:
            self._counts[fault] += records

    def sentences(self, name: str) -> list[str]:
        """One for each kind of fault, without anything that stands in a record."""
        return [
            f"{name}: {count:,} record{'' if count == 1 else 's'} {fault}."
            for fault, count in self._counts.items()
        ]

    def tell(self, name: str) -> None:
        """Tells the owner, once for each kind."""
        for sentence in self.sentences(name):
            tell_owner(sentence)
        self._counts.clear()


def _instead(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return UNREADABLE, error.end


ERRORS = "sourdine.unreadable"
"""The name of the error handler that puts UNREADABLE in the place of such bytes."""
codecs.register_error(ERRORS, _instead)
