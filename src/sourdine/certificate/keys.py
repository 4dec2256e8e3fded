"""The key that signs: 32 random bytes in the user's config folder, mode 0600, which go nowhere else.

Guarantee: without the key nobody can sign another document (Ed25519, RFC 8032). A signature shows who
stands behind a document, not that it is true.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from sourdine.certificate.shape import digits
from sourdine.errors import InputError
from sourdine.home import home, make_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_FILE = "signing.key"
_BYTES = 32


def key_path() -> Path:
    """Where the signing key lies, or will."""
    try:
        return home() / KEY_FILE
    except RuntimeError:
        raise InputError(
            "there is no home folder for the signing key; set SOURDINE_HOME to a folder of yours."
        ) from None


def public_key() -> str:
    """What others need to know to pin you as the signer: 64 hex digits. Makes a key on first use."""
    return _public(_private_key())


def own_public_key() -> str | None:
    """The same, but None where no key was ever made."""
    return public_key() if key_path().exists() else None


def sign(content: bytes) -> str:
    """The user's signature under some bytes, as 128 hex digits."""
    return _private_key().sign(content).hex()


def signed_by(content: bytes, signature: str, key: str) -> bool:
    """Whether the owner of a public key has signed exactly these bytes."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), content)
    except (InvalidSignature, ValueError):
        return False
    return True


def pinned(key: str) -> str:
    """A public key as 64 hex digits, given as such or as the path of a file that holds them."""
    text = key.strip().lower()
    if not digits(text, 64):
        try:
            text = Path(key).read_text(encoding="utf-8").strip().lower()
        except (OSError, ValueError):
            text = ""
    if not digits(text, 64):
        raise InputError(
            f"{key!r} is neither a public key of 64 hex digits nor a file that holds one; ask the "
            "signer for it (sourdine.certificate.public_key() prints it)."
        )
    return text


def _public(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()


def _private_key() -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    path = key_path()
    try:
        if not path.exists():
            make_key(path, _BYTES)
        mode, content = path.stat().st_mode, path.read_bytes()
    except OSError as error:
        raise InputError(
            f"the signing key {path} cannot be read or made: {error.strerror}; mend its permissions, "
            "or set SOURDINE_HOME to a folder of yours."
        ) from None
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        raise InputError(
            f"the signing key {path} can be read by others, who could sign in your name; remove it to "
            "get a new one, or if nobody has looked: chmod 600."
        )
    if len(content) != _BYTES:
        raise InputError(
            f"the signing key {path} is damaged: it must hold {_BYTES} bytes; put back a copy, or "
            "remove it to get a new key, which others do not know as yours yet."
        )
    return Ed25519PrivateKey.from_private_bytes(content)
