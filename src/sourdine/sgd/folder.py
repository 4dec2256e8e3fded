"""A run folder: checkpoints that survive a kill, and a lock against a second run.

The folder holds `run` (a name for the ledger), `checkpoint.pt` (model, optimizer, steps done, the
reservation in the ledger, no secrets; a hash at its end), `pace` (with which settings the optimizer
made each step) and `lock` (not on Windows). The key of the random streams lives in the user's config
folder and is destroyed when the run is over.

Guarantee: a run that goes on with the same key, data, settings and code draws the same lots and the
same noise, so steps that were lost and are run again show nothing new. In any other case it takes a
fresh key, and the steps that may have been run since the last checkpoint are charged once more: all up
to the next one, as no lot is drawn past it before it is saved.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from sourdine.errors import InputError, SourdineError
from sourdine.home import home
from sourdine.rng import Streams
from sourdine.sgd.processes import Processes

_DIGEST = 32  # bytes at the end of what is saved
_HASH, _MADE, _MARK = 16, 24, 32  # bytes in `pace` for each step: where its three parts end


class Folder:
    """The run folder; process 0 alone reads and writes it, and nothing is written before `take`."""

    WORKING = ("checkpoint.pt", "pace", "run", "lock")
    """Files that only a run that goes on needs; whoever hands the folder on removes them."""

    def __init__(self, path: str | Path, processes: Processes) -> None:
        self.path, self._processes = Path(path), processes
        self._lock, self._held = -1, False
        self._seen = self._stamp()
        self.state: dict[str, Any] = processes.once(self._read)
        if self.key.resolve().is_relative_to(self.path.resolve()):
            raise InputError(
                f"keys would lie inside the run folder {path}, and go where it goes; name another "
                "folder, or another place for keys with SOURDINE_HOME."
            )

    @property
    def run(self) -> str:
        """The name of this run, by which its reservation is found."""
        return str(self.state["run"])

    @property
    def key(self) -> Path:
        return home() / "keys" / f"{self.run}.{self._processes.rank}"

    def take(self) -> None:
        """Locks the folder until the process ends, however it ends, and names the run."""
        if self._lock >= 0:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.path / "lock")
        if self._lock == -1 or self._stamp() != self._seen:
            raise InputError(
                f"the folder {self.path} is in use by another run; wait for it, or name another folder."
            )
        for draft in (*self.path.glob("*.new"), *self.path.glob(".ledger.sqlite.*")):
            draft.unlink(missing_ok=True)  # of a run that was killed while it wrote them
        # The name under which a reservation is found again, before there is any checkpoint.
        _write(self.path / "run", self.run.encode())

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Locks the folder until the block ends, whoever closes it meanwhile."""
        self._processes.once(self.take)
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self.close()

    def streams(self) -> Streams | None:
        return Streams.load(self.key)

    def keep(self, streams: Streams) -> None:
        """Saves the key, outside the folder."""
        try:
            streams.save(self.key)
        except OSError as error:
            raise SourdineError(
                f"{self.key} cannot be written: {error.strerror}; nothing was drawn."
            ) from None

    def secret(self) -> Any:
        """What belongs to the checkpoint but would give the noise away; None if gone or damaged."""
        return _unpacked(self._secret())

    def save(self, state: dict[str, Any], secret: Any = None) -> None:
        """Puts a checkpoint in the place of the last one, whole or not at all."""
        last = self._secret()
        new = {"run": self.run, **state}
        if secret is not None:
            _write(self._secret(new["step"]), _packed(secret))
        _write(self.path / "checkpoint.pt", _packed(new))
        self.state = new
        if last != self._secret():
            last.unlink(missing_ok=True)

    def pace(self, step: int, settings: bytes, made: bytes, batch_size: int) -> bool:
        """Notes how this step is made; False if the same step was made otherwise before.

        settings: a hash of the optimizer's; made: one of how its batches were made (sgd/graphs.py).

        Waits for no disk: after a loss of power, steps that are not noted count as made alike.
        """
        size = batch_size.to_bytes(_MARK - _MADE, "big")
        mark = settings[:_HASH] + made[: _MADE - _HASH] + size
        handle = os.open(self.path / "pace", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            before = os.pread(handle, _MARK, step * _MARK)
            os.pwrite(handle, mark, step * _MARK)
        except OSError as error:
            raise _full(self.path / "pace", error) from None
        finally:
            os.close(handle)
        return before in (mark, b"", bytes(_MARK))

    def batch_size(self, step: int) -> int:
        """In physical batches of which size this step was made; 0 if it was not noted."""
        return int.from_bytes(self._mark(step)[_MADE:], "big")

    def made_as(self, step: int, made: bytes) -> bool:
        """Whether the batches of this step were made in this way before, as far as it was noted."""
        noted = self._mark(step)[_HASH:_MADE]
        return noted in (made[: _MADE - _HASH], b"", bytes(_MADE - _HASH))

    def _mark(self, step: int) -> bytes:
        if not (self.path / "pace").exists():
            return b""
        with (self.path / "pace").open("rb") as file:
            file.seek(step * _MARK)
            return file.read(_MARK)

    def forget(self, step: int) -> None:
        """Drops the notes from this step on: they belong to another key."""
        if (self.path / "pace").exists():
            os.truncate(self.path / "pace", step * _MARK)

    def destroy_keys(self) -> None:
        """At the end: from here on nobody can draw this noise again."""
        for path in (self.key, *self.key.parent.glob(f"{self.key.name}.*")):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._held:
            return
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def _secret(self, step: int | None = None) -> Path:
        of = self.state["step"] if step is None else step
        return self.key.with_name(f"{self.key.name}.{of}.noise")

    def _stamp(self) -> tuple[int, int] | None:
        """Changes whenever a checkpoint is written."""
        try:
            found = (self.path / "checkpoint.pt").stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _read(self) -> dict[str, Any]:
        path = self.path / "checkpoint.pt"
        if not path.exists():
            name = self.path / "run"
            run = name.read_text() if name.exists() else secrets.token_hex(8)
            return {"run": run, "step": 0, "reservation": None}
        state: dict[str, Any] | None = _unpacked(path)
        if state is None:
            raise InputError(
                f"the checkpoint {path} is damaged; restore it from a copy, or start in another "
                "folder. What this run has reserved stays charged."
            )
        return state


def _locked(path: Path) -> int:
    """A handle that holds the lock, or -1."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if sys.platform != "win32":
            import fcntl  # noqa: PLC0415 (not on Windows)

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return -1
    return handle


def _packed(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    packed = buffer.getvalue()
    return packed + hashlib.sha256(packed).digest()


def _unpacked(path: Path) -> Any:
    """What `_packed` was given; None if it is gone, or not what was written."""
    try:
        content = path.read_bytes()
        packed, end = content[:-_DIGEST], content[-_DIGEST:]
        whole = end == hashlib.sha256(packed).digest()
        buffer = io.BytesIO(packed)
        return torch.load(buffer, weights_only=True, map_location="cpu") if whole else None
    except Exception:  # torch.load has no error of its own, and damage has any shape
        return None


def _write(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all, and waits for the disk."""
    draft = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        if sys.platform != "win32":  # the new name has to reach the disk too
            place = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(place)
            finally:
                os.close(place)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise _full(path, error) from None


def _full(path: Path, error: OSError) -> SourdineError:
    return SourdineError(
        f"{path} cannot be written: {error.strerror}. The checkpoint before it is whole; make room and "
        "start the same command again to go on from there."
    )
