"""Sealing a run folder: every file is hashed into the certificate, which is then signed."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sourdine.certificate import keys
from sourdine.certificate.document import Certificate
from sourdine.errors import InputError
from sourdine.modes import for_release

CERTIFICATE, LEDGER, METRICS = "certificate.json", "ledger.sqlite", "metrics.json"
REQUIRED = (LEDGER, METRICS, "README.md", "report.html")
WEIGHTS = "*.safetensors"
WORKING = ("checkpoint.pt", "pace", "lock", "*.new", "*.key", "*-journal", "*-wal", "*-shm")
"""What a run keeps for itself while it works: it may hold what was never charged."""
_DOMAIN = b"sourdine certificate\n"


@dataclass(frozen=True)
class Listing:
    """The files of a folder by name, without its certificate, and what is there but is no file."""

    files: tuple[str, ...]
    strange: tuple[str, ...]

    @property
    def working(self) -> list[str]:
        """Files that are not for release."""
        return [
            name
            for name in self.files
            if any(fnmatch.fnmatch(Path(name).name, pattern) for pattern in WORKING)
        ]

    @property
    def missing(self) -> list[str]:
        """Required files that are not there."""
        needed = [name for name in REQUIRED if name not in self.files]
        weights = any(fnmatch.fnmatch(name, WEIGHTS) for name in self.files)
        return needed if weights else [*needed, f"weights ({WEIGHTS})"]


def listing(folder: Path) -> Listing:
    """Everything below a folder; links and devices are never followed or opened."""
    files, strange = [], []
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(place, name)
            mode = path.lstat().st_mode
            relative = path.relative_to(folder).as_posix()
            if stat.S_ISREG(mode):
                files.append(relative)
            elif not stat.S_ISDIR(mode):
                strange.append(relative)
    return Listing(tuple(sorted(set(files) - {CERTIFICATE})), tuple(sorted(strange)))


def digest(path: Path) -> str:
    """SHA-256 of a file, as 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def signed_bytes(document: Mapping[str, Any]) -> bytes:
    """What is signed: the whole document but the signature's value, in one canonical spelling."""
    signer = {name: found for name, found in document["signature"].items() if name != "value"}
    content = {**document, "signature": signer}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return _DOMAIN + text.encode()


def seal(folder: str | Path, certificate: Certificate, *, besides: Collection[str] = ()) -> Path:
    """Complete a certificate with the hashes of all files in the folder, sign it and write it there.

    Links, working files and a folder without its required files are refused: nothing is written. The
    certificate appears whole or not at all; one that was there before is replaced. Whatever is sealed
    can be read by everybody (modes.py). besides: files that the caller removes right afterwards, so
    that a run can go on if it is killed before.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder} to seal.")
    if keys.key_path().resolve().is_relative_to(folder.resolve()):
        raise InputError(
            f"the signing key lies inside {folder} and would go where it goes; set SOURDINE_HOME to "
            "another place."
        )
    try:
        (folder / f"{CERTIFICATE}.new").unlink(missing_ok=True)  # of a seal that was interrupted
        found = listing(folder)
        found = Listing(tuple(x for x in found.files if x not in besides), found.strange)
        _check_listing(folder, found)
        document = certificate.document
        document["released"]["files"] = {name: digest(folder / name) for name in found.files}
        document["signature"] = {"algorithm": "Ed25519", "public_key": keys.public_key()}
        document["signature"]["value"] = keys.sign(signed_bytes(document))
        written = _write(folder / CERTIFICATE, Certificate.of(document).to_json())
        for_release(folder, besides)
        return written
    except OSError as error:
        raise InputError(
            f"the folder {folder} cannot be sealed: {error.strerror}; mend that and seal it again."
        ) from None


def _check_listing(folder: Path, found: Listing) -> None:
    if found.strange:
        raise InputError(
            f"{found.strange[0]} in {folder} is a link or no plain file, so that its content is not "
            "sealed with the folder; put the file itself there."
        )
    if found.working:
        raise InputError(
            f"{found.working[0]} in {folder} is a working file that is not for release; end the run "
            "first, or move the file elsewhere."
        )
    if found.missing:
        raise InputError(f"{folder} is no complete run folder: {', '.join(found.missing)} is missing.")


def _write(path: Path, text: str) -> Path:
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    if os.name == "posix":
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    return path
