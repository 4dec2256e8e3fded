"""Planted secrets: texts of a public format whose holes are filled at random.

A format such as "the code of Ada is {digits:6}" stands for a million candidates, of which one is drawn
and put into the training text, once or many times. Whoever knows the format can ask a model how much
likelier it finds that one than the others (exposure.py), or make the model write it (prompting.py).
After Carlini et al. 2019, "The Secret Sharer".
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sourdine import checks
from sourdine.attacks.target import Record
from sourdine.errors import InputError
from sourdine.rng import Source, secure

ALPHABETS = {"digits": "0123456789", "letters": "abcdefghijklmnopqrstuvwxyz"}
_HOLE = re.compile(r"\{([^{}:]*):?([^{}]*)\}")
_LONGEST = 64
"""Signs of one hole: more would be no better hidden."""


@dataclass(frozen=True)
class Format:
    """A text with holes, {digits:6} or {letters:4}; all the rest is known to everyone.

    Holes have a fixed width, so that candidates with different signs are different texts: candidate
    number k is k written in the mixed base of the holes, and no two numbers give the same text.
    """

    text: str

    def __post_init__(self) -> None:
        if not self._holes:
            raise InputError(
                f"the format {self.text!r} has no hole for a secret; add one, such as {{digits:6}}."
            )

    @functools.cached_property
    def _holes(self) -> list[str]:
        """The alphabet of each secret sign, in their order."""
        holes = []
        for name, width in _HOLE.findall(self.text):
            if name not in ALPHABETS or not width.isdecimal() or not 1 <= int(width) <= _LONGEST:
                raise InputError(
                    f"the format {self.text!r} has the hole {{{name}:{width}}}, which is none; write "
                    f"{{digits:6}} or {{letters:4}}, with 1 to {_LONGEST} signs."
                )
            holes += [ALPHABETS[name]] * int(width)
        return holes

    @property
    def size(self) -> int:
        """How many candidates there are."""
        return math.prod(len(alphabet) for alphabet in self._holes)

    @property
    def prompt(self) -> str:
        """What stands before the first hole, without the space before it: what an attacker types."""
        return _HOLE.split(self.text)[0].rstrip()

    def signs(self, number: int) -> str:
        """The secret signs of a candidate, without the text around them."""
        found = []
        for alphabet in reversed(self._holes):
            number, place = divmod(number, len(alphabet))
            found.append(alphabet[place])
        if number != 0:
            raise InputError(f"the format has {self.size} candidates, numbered from 0.")
        return "".join(reversed(found))

    def fill(self, number: int) -> str:
        """Candidate number 0, 1, ..., size - 1 as a whole text."""
        signs = iter(self.signs(number))
        return _HOLE.sub(lambda hole: "".join(next(signs) for _ in range(int(hole[2]))), self.text)

    def candidates(self) -> Iterator[str]:
        """All of them, in the order of their numbers."""
        return (self.fill(number) for number in range(self.size))

    def others(self, number: int, count: int, source: Source | None = None) -> list[str]:
        """`count` different candidates, none of them this one; all others if there are not so many.

        Guarantee: every set of so many others is equally likely, so that a secret that was drawn
        uniformly, and that the model never met, is exchangeable with them.
        """
        if count >= self.size - 1:
            return [self.fill(other) for other in range(self.size) if other != number]
        places = _distinct(count, self.size - 1, source or secure())
        return [self.fill(place + (place >= number)) for place in places]


@dataclass(frozen=True)
class Canary:
    """A secret in its format, and how often it is put into the training text, by one made-up person."""

    format: Format
    number: int
    repetitions: int
    user: str

    @property
    def text(self) -> str:
        """What is put into the training text."""
        return self.format.fill(self.number)

    @property
    def secret(self) -> str:
        """The signs in the holes."""
        return self.format.signs(self.number)

    @property
    def ending(self) -> str:
        """What follows the prompt, up to the last hole: who writes this has given the secret up."""
        after = len(_HOLE.split(self.format.text)[-1])
        return self.text[len(self.format.prompt) : len(self.text) - after].strip()


def draw(
    formats: Sequence[Format | str],
    repetitions: Sequence[int] = (1, 10, 50),
    source: Source | None = None,
) -> list[Canary]:
    """A fresh secret for each format, repeated in turn 1, 10, 50, 1, ... times.

    A format that is given several times gets different secrets, which then compete for one prompt;
    texts that name different persons keep them apart. Secure by default: a seeded source is for tests.
    """
    source = source or secure()
    wanted = [Format(one) if isinstance(one, str) else one for one in formats]
    times = [checks.whole("repetitions", count) for count in repetitions]
    if not times:
        raise InputError("repetitions is empty; say how often each secret is repeated, as in (1, 10).")
    asked = Counter(wanted)
    for one, count in asked.items():
        if count > one.size:
            raise InputError(
                f"{one.text!r} is asked for {count} secrets but has {one.size} candidates."
            )
    drawn = {one: _distinct(count, one.size, source) for one, count in asked.items()}
    return [
        Canary(one, drawn[one].pop(), times[place % len(times)], f"canary-{place}")
        for place, one in enumerate(wanted)
    ]


def plant(
    records: Sequence[Record], canaries: Sequence[Canary], source: Source | None = None
) -> list[Record]:
    """The records, in their order, with every copy of every canary at a place drawn at random.

    Each canary is one person's, where records have persons: with unit user all its copies are
    protected at once, with unit example each copy by itself. Canaries bear no label.
    """
    if any(len(record.texts) != 1 for record in records):
        raise InputError("secrets are planted among single texts, but a record here has several.")
    persons = {record.user for record in records} - {None}
    if persons & {canary.user for canary in canaries}:
        raise InputError("a person here is already called as a canary is; plant canaries only once.")
    copies = [
        Record((canary.text,), user=canary.user if persons else None)
        for canary in canaries
        for _ in range(canary.repetitions)
    ]
    total = len(records) + len(copies)
    places = dict(zip(_distinct(len(copies), total, source or secure()), copies, strict=True))
    rest = iter(records)
    return [places[place] if place in places else next(rest) for place in range(total)]


def _distinct(count: int, bound: int, source: Source) -> list[int]:
    """So many different whole numbers below `bound`, in random order: Fisher and Yates, kept sparse."""
    moved: dict[int, int] = {}
    found = []
    for place in range(count):
        other = place + source.below(bound - place)
        found.append(moved.get(other, other))
        moved[other] = moved.get(place, place)
    return found
