"""The one place where randomness is made: secure by default, seeded only when asked.

A source is a ChaCha20 stream whose key comes from the operating system. Each block of output also
yields the next key, and old keys and used bytes are forgotten (fast key erasure, Bernstein 2017): from
the state of a source nobody can recompute noise that was drawn before.

Guarantee: nothing here records, prints, pickles or copies a key, a seed or a state; whoever holds one
subtracts the noise. All that a record may say of a source is its kind, "secure" or "seeded". What a
seeded source draws can be drawn again by anyone who guesses the seed: it is for tests and for teaching,
and no release that used one is private.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from fractions import Fraction
from typing import NoReturn

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from sourdine import checks
from sourdine.errors import InputError

_KEY = 32
_BLOCK = 4096
_NONCE = bytes(16)  # a key serves one block, so that the nonce never repeats under it


class Source:
    """Uniform random bits; make one with `secure()` or `seeded(seed)`."""

    __slots__ = ("__weakref__", "_buffer", "_key", "_lock", "kind")

    def __init__(self, key: bytes, kind: str) -> None:
        self.kind = kind
        self._key = key
        self._buffer = bytearray()
        self._lock = threading.Lock()
        _SOURCES.add(self)

    def bytes(self, count: int) -> bytes:
        """So many uniform bytes, to one caller only."""
        with self._lock:  # two threads must not draw the same noise
            while len(self._buffer) < count:
                cipher = Cipher(ChaCha20(self._key, _NONCE), mode=None)
                stream = cipher.encryptor().update(bytes(_BLOCK))
                self._key = stream[:_KEY]
                self._buffer += stream[_KEY:]
            taken = bytes(self._buffer[:count])
            self._buffer[:count] = bytes(count)
            del self._buffer[:count]
        return taken

    def below(self, bound: int) -> int:
        """A uniform whole number in 0, ..., bound - 1, by rejection: a modulus would favour some."""
        if bound < 1:
            raise InputError(f"there is no whole number from 0 to below {bound}.")
        bits = (bound - 1).bit_length()
        size, spare = (bits + 7) // 8, -bits % 8
        while True:
            drawn = int.from_bytes(self.bytes(size)) >> spare
            if drawn < bound:
                return drawn

    def bernoulli(self, probability: Fraction) -> bool:
        """True with exactly this probability."""
        return self.below(probability.denominator) < probability.numerator

    def _after_fork(self) -> None:
        """Parent and child must not draw the same noise: a difference would cancel it."""
        self._lock = threading.Lock()  # another thread of the parent may have held the old one
        if self.kind == "secure":
            self._key, self._buffer = os.urandom(_KEY), bytearray()

    def __repr__(self) -> str:
        return f"<{self.kind} source>"

    def __reduce__(self) -> NoReturn:
        raise InputError(
            "a random source cannot be copied or saved: whoever holds its state can subtract the "
            "noise. Make a new one where it is needed."
        )


_SOURCES: weakref.WeakSet[Source] = weakref.WeakSet()


def _after_fork() -> None:
    for source in list(_SOURCES):
        source._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def secure() -> Source:
    """A source keyed by the operating system."""
    return Source(os.urandom(_KEY), "secure")


def seeded(seed: int) -> Source:
    """A repeatable source, for tests and teaching; what it draws is not private."""
    seed = checks.whole("seed", seed, least=0)
    return Source(hashlib.sha256(b"sourdine seed %d" % seed).digest(), "seeded")
