"""A folder of results that several processes fill: each is claimed, worked out, and kept once.

Guarantee: a result is on the disk whole or not at all. Nobody works on what another process holds. A
claim ends with its process, however that ends (flock; Windows has none, so there one process works).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sourdine.checks import file_locks
from sourdine.data.owner import BESIDE
from sourdine.errors import InputError, SourdineError
from sourdine.modes import private_folder


class Desk:
    """The folder, and the one beside it that is not for release: claims and unfinished work."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        self.runs = self.folder / "runs"
        self.beside = Path(f"{self.folder}{BESIDE}")
        if self.folder.is_file():
            raise InputError(f"{self.folder} is a file; name a folder.")

    def result(self, name: str) -> dict[str, Any] | None:
        """What was kept under this name."""
        return read(self.runs / f"{name}.json")

    def keep(self, name: str, content: Mapping[str, Any]) -> None:
        """Keeps a result for good."""
        write(self.runs / f"{name}.json", content)

    def work(self, name: str) -> Path:
        """Where the work on a result lies until it is done."""
        return self.beside / "work" / name

    @contextlib.contextmanager
    def claim(self, name: str, *, wait: bool = False) -> Iterator[bool]:
        """Whether this process holds the claim while the block runs; `wait` until it does.

        Its file goes only after the result is there, so whoever got hold of a file that is gone looks
        for the result before working.
        """
        path = self.beside / f"{name}.lock"
        try:
            private_folder(path.parent)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise SourdineError(f"{path} cannot be written: {error.strerror}.") from None
        try:
            mine = _locked(handle, wait)
            yield mine
            if mine and (self.runs / f"{name}.json").exists():
                path.unlink(missing_ok=True)
        finally:
            os.close(handle)

    def clear(self) -> None:
        """Removes unfinished work, once every result is there."""
        shutil.rmtree(self.beside, ignore_errors=True)


def read(path: Path) -> dict[str, Any] | None:
    """The JSON object of a file, or None if there is none."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise InputError(f"{path} is damaged; restore it, or name another folder.") from None
    return found


def write(path: Path, content: Mapping[str, Any] | str) -> None:
    """A text or a JSON object, whole or not at all, on the disk before anyone goes on."""
    text = (
        content
        if isinstance(content, str)
        else json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    )
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise SourdineError(
            f"{path} cannot be written: {error.strerror}; make room and start the same command again."
        ) from None


def _locked(handle: int, wait: bool) -> bool:
    fcntl = file_locks()
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True
