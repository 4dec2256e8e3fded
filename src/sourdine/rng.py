"""The one place where randomness is made: secure by default, seeded only when asked.

A source is a ChaCha20 stream whose key comes from the operating system. Each block of output also
yields the next key, and old keys and used bytes are forgotten (fast key erasure, Bernstein 2017): from
the state of a source nobody can recompute noise that was drawn before.

Guarantee: nothing here prints, pickles or copies a key, a seed or a state, and none is recorded but
where `Streams.save` is asked to; whoever holds one subtracts the noise. All that a record may say of a
source is its kind, "secure" or "seeded". What a seeded source draws can be drawn again by anyone who
guesses the seed: it is for tests and for teaching, and no release that used one is private.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import weakref
from fractions import Fraction
from pathlib import Path
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


class Streams:
    """Many independent sources from one key: one for each name and number, in any order.

    For work that must be able to stop and go on: the source of step 7 is the same whoever asks, and
    whenever. That needs the key to live as long as the work may be resumed; `save` puts it into a file
    that belongs outside everything that is handed on. Streams of a key are independent, as BLAKE2b
    under a key is a pseudorandom function.
    """

    __slots__ = ("_key", "kind")

    def __init__(self, key: bytes, kind: str) -> None:
        self._key, self.kind = key, kind

    def at(self, name: str, number: int = 0) -> Source:
        """The source of this name and number; asking twice gives the same bits twice."""
        text = f"{name}/{number}".encode()
        return Source(hashlib.blake2b(text, key=self._key, digest_size=_KEY).digest(), self.kind)

    def save(self, path: Path) -> None:
        """Keeps the key in a file that only its owner can read, whole or not at all."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".key.")  # with mode 0600
        with os.fdopen(handle, "wb") as file:
            file.write(self._key + self.kind.encode())
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)

    @staticmethod
    def load(path: Path) -> Streams | None:
        """The streams that were saved there, or None if the file is gone or damaged."""
        try:
            found = path.read_bytes()
        except OSError:
            return None
        kind = found[_KEY:].decode(errors="replace")
        return Streams(found[:_KEY], kind) if kind in ("secure", "seeded") else None

    def __repr__(self) -> str:
        return f"<{self.kind} streams>"

    def __reduce__(self) -> NoReturn:
        raise InputError(
            "random streams cannot be copied: whoever holds their key subtracts the noise."
        )


def streams(source: Source | None = None) -> Streams:
    """Streams keyed by a source, by default by a secure one."""
    source = source or secure()
    return Streams(source.bytes(_KEY), source.kind)


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
