"""Parts of a corpus, chosen for each record by a hash of that record alone.

The place of a record, or of all records of a person where persons are known, is

    u = SHA-256(salt, record) / 2^256,

read as a number in [0, 1), and a part is an interval of it. The record is its texts, without the
label. Where no persons are known, equal records lie in the same part, so that no copy of a training
record is held out.

Guarantee: under every adjacency, one unit lies in one part, and which part the others lie in does not
depend on it. Adding, removing or zeroing out a unit changes the part that it lies in and no other one.
Replacing it changes at most two: the part it leaves and the part it enters. So what is computed on the
parts composes in parallel under add-remove and zero-out, and counts twice under replace-one.

How many records a part holds follows from the records: whoever publishes it counts it as known, and
shows with it in which part the last unknown unit lies. Under a salt that is public this tells something
about its text; under `own_salt`, which nobody else knows, it does not.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from fractions import Fraction

from sourdine import checks
from sourdine.data.corpus import Corpus
from sourdine.data.fingerprint import own_key
from sourdine.errors import InputError

WHOLE = 1 << 256
RECORD, USER = b"record", b"user"


def split(
    corpus: Corpus, shares: Mapping[str, float], *, salt: str = "sourdine split 1"
) -> dict[str, list[int]]:
    """The indices of the records of each part, in order; a part has about its share of the units.

    shares: a name and a share for each part, together 1; their order matters. salt: another one makes
    another split, which is needed to split a part again. Whoever knows it can tell where a record
    lies; that is no secret. For ever the same on every machine. A part may come out empty.
    """
    ends = _ends(shares)
    parts: dict[str, list[int]] = {name: [] for name in shares}
    for index, place in enumerate(_places(corpus, salt)):
        name = next(name for name, end in ends.items() if place < end)
        parts[name].append(index)
    return parts


def own_salt() -> str:
    """A salt of the user's own, made from the key in the config folder: always the same, and secret."""
    return hmac.new(own_key(), b"sourdine split 1", hashlib.sha256).hexdigest()


def partition(corpus: Corpus, count: int, *, salt: str = "sourdine partition 1") -> list[list[int]]:
    """The indices of the records of each of `count` shards of about equal size; as `split` else.

    Its salt differs from that of `split`, so that the shards of a part are even.
    """
    shards: list[list[int]] = [[] for _ in range(checks.whole("count", count))]
    for index, place in enumerate(_places(corpus, salt)):
        shards[place * len(shards) // WHOLE].append(index)
    return shards


def _ends(shares: Mapping[str, float]) -> dict[str, int]:
    """Where the interval of each part ends, the last at the very end."""
    if not isinstance(shares, Mapping) or not shares:
        raise InputError("shares must give a share for each part, such as {'train': .8, 'test': .2}.")
    exact = [
        Fraction(checks.positive(f"the share of {name!r}", share)) for name, share in shares.items()
    ]
    total = sum(exact, Fraction())
    if abs(total - 1) > Fraction(1, 10**9):
        raise InputError(f"the shares add up to {float(total):.6g}, but they must add up to 1.")
    ends = [int(sum(exact[: at + 1]) * WHOLE) for at in range(len(exact))]
    return dict(zip(shares, [*ends[:-1], WHOLE], strict=True))


def _places(corpus: Corpus, salt: str) -> list[int]:
    """A number below 2^256 for each record, from it alone."""
    if not isinstance(salt, str):
        raise InputError("salt must be a text; leave it out for the usual split.")
    if corpus.users is not None:
        place = _hash(salt, USER)
        known = {user: place((user,)) for user in set(corpus.users)}
        return [known[user] for user in corpus.users]
    return list(map(_hash(salt, RECORD), zip(*corpus.texts, strict=True)))


def _hash(salt: str, kind: bytes) -> Callable[[tuple[str, ...]], int]:
    start = hashlib.sha256(_framed(salt.encode("utf-8", "surrogatepass")) + _framed(kind))

    def place(fields: tuple[str, ...]) -> int:
        hashed = start.copy()
        for field in fields:
            hashed.update(_framed(field.encode()))
        return int.from_bytes(hashed.digest(), "big")

    return place


def _framed(content: bytes) -> bytes:
    """With its length in front, so that ("ab", "c") and ("a", "bc") differ."""
    return len(content).to_bytes(8, "big") + content
