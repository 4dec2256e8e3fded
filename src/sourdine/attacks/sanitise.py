"""A sanitiser as a baseline: names and numbers replaced by ids, by rules.

It gives NO guarantee of any kind. What it replaces depends on what the rules of passages.py know. It
leaves, among others: names in small letters, single first names that it was not told, nicknames, what
somebody is ("the mayor of our village"), numbers in words, mail addresses and links but for the digits
that stand alone, and every secret that is neither a name nor a number. It leaves the same text as often
as it stood there, so that a model memorises it as before. It is here to show what it does not stop;
differential privacy is what does.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sourdine.attacks.passages import TITLES, spans

_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)*")


@dataclass(frozen=True)
class Sanitiser:
    """Replaces names by [NAME-1], [NAME-2], ... and numbers by [NUMBER-1], ..., anew in each record.

    names: names that are replaced wherever they stand as whole words, beside those that the rules find.
    The same name or number has the same id in all of one record; a part of a name that was met in full
    has the id of the full one. Ids say nothing across records: [NAME-1] is someone else in the next.
    """

    names: Collection[str] = ()

    def clean(self, text: str) -> str:
        """The text of one record with ids in place of names and numbers."""
        ids: dict[str, str] = {}
        for name in self._found(text):
            parts = _parts(name)
            # "Dr. Berg" is the Berg of before; "Ada Fox" is not the Ada of before.
            known = ids.get(parts[0]) if len(parts) == 1 else None
            ids[name] = known or f"[NAME-{len(set(ids.values())) + 1}]"
            for part in parts:
                ids.setdefault(part, ids[name])
        if ids:
            text = _anyone(ids).sub(lambda match: ids[match[0]], text)
        numbers: dict[str, str] = {}

        def numbered(match: re.Match[str]) -> str:
            return numbers.setdefault(match[0], f"[NUMBER-{len(numbers) + 1}]")

        # The ids of names hold digits too: only what stands between them is looked at.
        pieces = re.split(r"(\[NAME-\d+\])", text)
        pieces[::2] = [_NUMBER.sub(numbered, piece) for piece in pieces[::2]]
        return "".join(pieces)

    def clean_all(self, texts: Sequence[str]) -> list[str]:
        """Each text by itself."""
        return [self.clean(text) for text in texts]

    def _found(self, text: str) -> list[str]:
        """Names in the order in which they are met: those of the rules, then those that were told."""
        by_rule = [text[span.start : span.end] for span in spans(text) if span.kind == "name"]
        told = [name for name in self.names if _anyone([name]).search(text)]
        return list(dict.fromkeys([*by_rule, *told]))


def _parts(name: str) -> list[str]:
    """The words of a name that may stand for it alone: no titles, initials or small words."""
    return [
        word
        for word in name.split()
        if word[0].isupper() and len(word) > 2 and word.rstrip(".") not in TITLES
    ]


def _anyone(names: Collection[str]) -> re.Pattern[str]:
    """Any of the names as a whole word, the longest first."""
    ordered = sorted(names, key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, ordered))})(?!\w)")
