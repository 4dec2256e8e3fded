"""How text is cut into words, and how many persons used each.

The rule is public and looks at one text alone: letters are case-folded and composed (Unicode NFC); a
word is a longest run of letters and digits, with the marks that belong to them; an apostrophe, straight
or curly, stays inside where a letter or digit stands on both sides, and is written straight. So "Don't"
is the word "don't" and "dogs'" is "dogs". An underscore separates like any other sign.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sourdine import checks
from sourdine.errors import InputError

BLOCK = 1 << 14
"""Rows that are cut at one time."""
BETWEEN = b"\xff"
"""Stands between rows while they are cut: no UTF-8 text has this byte."""
KEPT = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789'") | set(range(128, 256))
PLAIN = bytes(c if c in KEPT else 32 for c in bytes(range(256)).lower())
"""ASCII as the rule sees it: small letters, digits, apostrophes, and a space for everything else."""
STRAY = re.compile(rb"'(?:(?<![a-z0-9\x80-\xfe]')|(?![a-z0-9\x80-\xfe]))")
"""An apostrophe that is not inside a word."""


def words(text: str) -> list[str]:
    """The words of a text in their order, by the rule above."""
    return _pattern().findall(_folded(text))


def persons_by_word(
    texts: Any,
    owners: npt.NDArray[np.integer[Any]] | None,
    vocabulary: Sequence[str] | None,
    most: int,
) -> dict[str, int]:
    """How many persons used each word, where a person counts for at most `most` different words.

    texts: an Arrow column of strings, or a sequence of them. owners: a number for each text that says
    whose it is; with None every text is a person of its own. A person counts for the first `most`
    different words, in the order of the rows; with a vocabulary, only its words are looked at.

    Guarantee: what a person counts for depends on that person's texts alone. Adding or removing them
    changes at most `most` counts, by one each; exchanging them for others, at most 2 `most`.

    The result has every word of the vocabulary, folded, in its order, also those that nobody used.
    Without a vocabulary it has the words that were used, sorted; which they are is private.
    """
    most = checks.whole("most", most)
    entries = None if vocabulary is None else _entries(vocabulary)
    known = None if entries is None else frozenset(entries)
    column = _column(texts)
    persons = _rows(column) if owners is None else _joined(column, owners)
    counts = Counter(itertools.chain.from_iterable(_counted(cut, known, most) for cut in persons))
    return {word.decode(): counts[word] for word in (sorted(counts) if entries is None else entries)}


def _counted(cut: list[bytes], known: frozenset[bytes] | None, most: int) -> Collection[bytes]:
    """The words that one person counts for, from all that the person used."""
    if known is None:
        return list(itertools.islice(dict.fromkeys(cut), most))
    used = known.intersection(cut)
    # Mostly all of them count, and then their order does not matter.
    if len(used) <= most:
        return used
    return list(itertools.islice(dict.fromkeys(filter(used.__contains__, cut)), most))


def _rows(column: Any) -> Iterator[list[bytes]]:
    """`words` of each row as UTF-8: many rows at once, ASCII apart from the rest."""
    for start in range(0, len(column), BLOCK):
        block = BETWEEN.join(column.slice(start, BLOCK).to_pylist()).translate(PLAIN)
        for row in STRAY.sub(b" ", block).split(BETWEEN):
            pieces = row.split()
            yield pieces if row.isascii() else list(itertools.chain.from_iterable(map(_piece, pieces)))


@functools.lru_cache(maxsize=1 << 16)
def _piece(piece: bytes) -> tuple[bytes, ...]:
    """The words of a piece without spaces. No word, letter or mark reaches over an ASCII sign."""
    return (piece,) if piece.isascii() else tuple(word.encode() for word in words(piece.decode()))


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFC", text.casefold()).replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")


@functools.cache
def _pattern() -> re.Pattern[str]:
    # Python's \w leaves out marks, such as the vowel signs of Hindi, and would cut words at them.
    marks = "".join(
        char for char in map(chr, range(0x300, 0x20000)) if unicodedata.category(char)[0] == "M"
    )
    run = rf"[^\W_]+(?:[{marks}]+[^\W_]*)*"
    return re.compile(rf"{run}(?:'{run})*")


def _entries(vocabulary: Sequence[str]) -> list[bytes]:
    """The words of a vocabulary, folded. They are public, so messages may name them."""
    if isinstance(vocabulary, str) or not isinstance(vocabulary, Iterable) or not list(vocabulary):
        raise InputError("vocabulary must be a list of words, for instance ['good', 'bad'].")
    seen: dict[str, str] = {}
    for entry in vocabulary:
        word = _folded(entry.strip()) if isinstance(entry, str) else ""
        if not _pattern().fullmatch(word):
            raise InputError(
                f"{entry!r} in the vocabulary is not one word (letters and digits, no sign between "
                "them but an apostrophe); take it out, or give its words one by one."
            )
        if word in seen:
            raise InputError(
                f"{seen[word]!r} and {entry!r} in the vocabulary are the same word; keep one of them."
            )
        seen[word] = entry
    return [word.encode() for word in seen]


def _column(texts: Any) -> Any:
    """The texts as one Arrow array of UTF-8 bytes."""
    try:
        column = (
            texts
            if isinstance(texts, pa.Array | pa.ChunkedArray)
            else pa.array(list(texts), pa.string())
        )
        column = column.cast(pa.large_string()).fill_null("")
        column.validate(full=True)
    except (pa.ArrowException, TypeError, ValueError):
        column = None
    if column is None:
        raise InputError("words are counted in a column of text; give strings.")
    column = column.cast(pa.large_binary())
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _joined(column: Any, owners: npt.NDArray[np.integer[Any]]) -> Iterator[list[bytes]]:
    """The words of each person, in the order of the rows."""
    owner = np.asarray(owners)
    if owner.shape != (len(column),) or owner.dtype.kind not in "iu":
        raise InputError("owners must give one whole number for each text, to say whose it is.")
    order = np.argsort(owner, kind="stable")
    new = np.flatnonzero(np.diff(owner[order])) + 1
    rows = _rows(column.take(pa.array(order)))
    for size in np.diff(np.concatenate(([0], new, [len(owner)]))).tolist():
        yield list(itertools.chain.from_iterable(itertools.islice(rows, size)))
