"""A keyed fingerprint of a table: the same table gives the same one, and only its owner can tell.

A plain hash would let anyone who guesses a table, or one row of a small one, confirm the guess. So
the hash is an HMAC under 32 random bytes that stay in the user's config folder and go nowhere else.

Guarantee: without the key, a fingerprint is as good as random (HMAC-SHA256 is a pseudorandom
function); with it, two tables with the same fingerprint are equal, unless SHA-256 is broken. Equal
means the same column names in the same order, the same kinds and the same cells. It does not
matter which loader made the table, in how many chunks, or what its file was called.
"""

from __future__ import annotations

import hashlib
import hmac
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sourdine.data.tables import Table
from sourdine.errors import InputError
from sourdine.home import home, make_key

DOMAIN = b"sourdine table fingerprint 1"
FILE_DOMAIN = b"sourdine file fingerprint 1"
KEY_BYTES = 32
KEY_FILE = "fingerprint.key"


def fingerprint(table: Table, *, key: bytes | None = None) -> str:
    """HMAC-SHA256 of names, kinds and cells, as 64 hex digits. `key` replaces the user's own."""
    secret = own_key() if key is None else key
    if not isinstance(secret, bytes) or len(secret) != KEY_BYTES:
        raise InputError(f"a fingerprint key is {KEY_BYTES} bytes; leave key out to use your own.")
    mac = hmac.new(secret, DOMAIN + _whole(table.rows) + _whole(len(table.columns)), hashlib.sha256)
    # Hashing lets other threads run: one column each.
    with ThreadPoolExecutor() as threads:
        for name, digest in zip(
            table.columns, threads.map(lambda name: _digest(table, name), table.columns), strict=True
        ):
            title = name.encode("utf-8", "surrogatepass")
            mac.update(_whole(len(title)) + title + digest)
    return mac.hexdigest()


def file_fingerprint(path: Path, *, key: bytes | None = None) -> str:
    """HMAC-SHA256 of a file as it is, whichever of its columns are read."""
    mac = hmac.new(own_key() if key is None else key, FILE_DOMAIN, hashlib.sha256)
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                mac.update(block)
    except OSError as error:
        raise InputError(f"the file {path} cannot be read: {error.strerror}.") from None
    return mac.hexdigest()


def own_key() -> bytes:
    """The user's key, made on first use. Processes that start at once agree on one."""
    path = Path(KEY_FILE)
    try:
        path = home() / KEY_FILE
        if not path.exists():
            make_key(path, KEY_BYTES)
        key = path.read_bytes()
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "there is no home folder"
        raise InputError(
            f"the fingerprint key {path} cannot be read or made: {reason}; mend its permissions, or "
            "set SOURDINE_HOME to a folder of yours."
        ) from None
    if len(key) != KEY_BYTES:
        raise InputError(
            f"the fingerprint key {path} is damaged: it must hold {KEY_BYTES} bytes; put back a copy, "
            "or remove it to get a new key, under which earlier fingerprints no longer match."
        )
    return key


def _digest(table: Table, name: str) -> bytes:
    """The kind of a column and the hash of its cells."""
    if name in table.numbers:
        return b"number" + hashlib.sha256(_little(table.numbers[name], "<f8")).digest()
    lengths, content = _strings(table.texts[name])
    hashed = hashlib.sha256(_little(lengths, "<i8"))
    hashed.update(content)
    return b"text.." + hashed.digest()


def _strings(column: Any) -> tuple[npt.NDArray[np.int64], memoryview]:
    """The lengths of the strings in bytes, and all of them end to end."""
    _, offsets, content = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    return np.diff(ends), memoryview(content or b"")[ends[0] : ends[-1]]


def _little(values: npt.NDArray[Any], order: str) -> memoryview:
    """The bytes of the numbers, the same on every machine."""
    return np.ascontiguousarray(values, dtype=order).data.cast("B")


def _whole(number: int) -> bytes:
    return number.to_bytes(8, "little")
