"""Who may read a file: everybody what is handed on, nobody but its owner what is private.

Guarantee: below a folder that was passed to `for_release` every file has mode 0644 and every folder
0755, whatever wrote it and whatever the umask was, so that a copy on another machine can be read. What
is written through `private_folder` and `write_privately` has 0700 and 0600. File systems without modes
(and Windows) keep what they have.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

FILE, FOLDER = 0o644, 0o755
"""Modes of what is handed on."""


def for_release(folder: Path, besides: Collection[str] = ()) -> None:
    """Makes a finished folder readable for everybody; `besides` names files that are removed later."""
    for place, _, names in os.walk(folder):  # links to folders are not followed
        _set(Path(place), FOLDER)
        for name in names:
            path = Path(place, name)
            if path.relative_to(folder).as_posix() not in besides and not path.is_symlink():
                _set(path, FILE)


def private_folder(path: Path) -> Path:
    """Makes a folder that only its owner can look into; one that is there keeps its modes."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def write_privately(path: Path, text: str) -> None:
    """Writes a file that only its owner can read, whole or not at all."""
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(draft).replace(path)
    finally:
        Path(draft).unlink(missing_ok=True)


def _set(path: Path, mode: int) -> None:
    with suppress(OSError):  # no modes here, or a folder of somebody else's
        path.chmod(mode)
