"""A run folder: checkpoints that survive a kill, and a lock against a second run.

The folder holds `run` (a name for the ledger, and whether it was begun), `checkpoint.pt` (model,
optimizer, steps done, the reservation in the ledger, no secrets; a hash at its end) and `lock` (not on
Windows). The key of the random streams lives in the user's config folder, with a note beside it for
each step that met its noise: a hash of the sums, the optimizer's settings, the size of batches. Both
belong together, wherever copies of the folder are, and are destroyed when the run is over.

Guarantee: a run that goes on with the same key, data, settings and code draws the same lots and the
same noise for the same sums, so steps that were lost and are run again show nothing new. In any other
case it takes a fresh key, and the steps that may have been run since the checkpoint are charged once
more: all up to the next one, as no lot is drawn past it before it is saved, and all that are noted.
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

from sourdine.checks import file_locks
from sourdine.errors import InputError, SourdineError
from sourdine.home import home
from sourdine.rng import Streams
from sourdine.sgd.processes import Processes

_DIGEST = 32  # bytes at the end of what is saved
_SUMS, _SIZE, _MARK = 24, 32, 48  # bytes of the note of a step: where its three parts end


class Folder:
    """The run folder; process 0 alone reads and writes it, and nothing is written before `take`."""

    WORKING = ("checkpoint.pt", "run", "lock")
    """Files that only a run that goes on needs; whoever hands the folder on removes them."""

    def __init__(self, path: str | Path, processes: Processes) -> None:
        self.path, self._processes = Path(path), processes
        self._locks, self._held = list[int](), False
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
        """Locks the folder and its notes until the process ends, however it ends, and names the run."""
        if self._locks:
            return
        try:
            self._take()
        except BaseException:
            self._release()
            raise

    def _take(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)  # private until it is sealed
        except OSError as error:
            raise InputError(f"{self.path} cannot be a run folder: {error.strerror}.") from None
        self._locks = [_locked(self.path / "lock", must=True)]
        if -1 in self._locks or self._stamp() != self._seen:
            raise InputError(
                f"the folder {self.path} is in use by another run; wait, or name another folder. "
                "If that is an engine of this process, engine.pause() lets go of it."
            )
        try:
            self.key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._locks.append(_locked(self._notes, must=False))
        except OSError as error:
            raise SourdineError(
                f"{self._notes} cannot be written: {error.strerror}; nothing was drawn."
            ) from None
        if -1 in self._locks:
            raise InputError(
                f"a copy of the folder {self.path} is in use by another run, with the same noise; wait "
                "for it, or start in another folder."
            )
        for draft in (*self.path.glob("*.new"), *self.path.glob(".ledger.sqlite.*")):
            draft.unlink(missing_ok=True)  # of a run that was killed while it wrote them
        # The name under which a reservation is found again, before there is any checkpoint.
        self._name(self.begun)

    @property
    def begun(self) -> bool:
        """Whether this run has ever had a checkpoint, whatever has become of it."""
        name = self.path / "run"
        return name.exists() and name.read_text().split()[1:] == ["begun"]

    def gone(self) -> InputError:
        """For a run that the ledger knows, and whose checkpoint is not here."""
        return InputError(
            f"the checkpoint in {self.path} is gone; bring it back to go on with its run, or name "
            "another folder for a new one, which is charged anew."
        )

    def _name(self, begun: bool) -> None:
        _write(self.path / "run", f"{self.run}{' begun' * begun}".encode())

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Locks the folder until the block ends, whoever closes it meanwhile."""
        self._held = True
        try:
            self._processes.once(self.take)
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
        if not self.begun:
            self._name(begun=True)
        if last != self._secret():
            last.unlink(missing_ok=True)

    def note(self, step: int, sums: bytes, settings: bytes, batch_size: int) -> tuple[bool, bool]:
        """Notes a step before its noise is drawn; whether sums and settings are those of the last time.

        sums: a hash of what the noise is added to; settings: one of the optimizer's. Where other sums
        were noted, their note stays.

        Waits for no disk: after a loss of power, steps that are not noted count as made alike.
        """
        mark = sums[:_SUMS] + batch_size.to_bytes(_SIZE - _SUMS, "big") + settings[: _MARK - _SIZE]
        before = self._note(step) or mark
        alike = before[:_SUMS] == mark[:_SUMS]
        if alike:
            handle = os.open(self._notes, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                os.pwrite(handle, mark, step * _MARK)
            except OSError as error:
                raise _full(self._notes, error) from None
            finally:
                os.close(handle)
        return alike, before[_SIZE:] == mark[_SIZE:]

    def batch_size(self, step: int) -> int:
        """In physical batches of which size this step was made; 0 if it was not noted."""
        return int.from_bytes(self._note(step)[_SUMS:_SIZE], "big")

    def noted(self) -> int:
        """How many steps have met the noise of the key, as far as they were noted."""
        return -(-self._notes.stat().st_size // _MARK) if self._notes.exists() else 0

    def _note(self, step: int) -> bytes:
        """The note of a step, or nothing."""
        if not self._notes.exists():
            return b""
        with self._notes.open("rb") as file:
            file.seek(step * _MARK)
            found = file.read(_MARK)
        return found if len(found) == _MARK and any(found) else b""

    @property
    def _notes(self) -> Path:
        return self.key.with_name(f"{self.run}.0.steps")

    def forget(self, step: int) -> None:
        """Drops the notes from this step on: they belong to another key."""
        if self._notes.exists():
            os.truncate(self._notes, min(step * _MARK, self._notes.stat().st_size))

    def destroy_key(self) -> None:
        """The noise of this key is never drawn again; which steps have met it stays known."""
        self.key.unlink(missing_ok=True)

    def destroy_keys(self) -> None:
        """At the end: from here on nobody can draw this noise again."""
        for path in (self.key, *self.key.parent.glob(f"{self.key.name}.*")):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._held:
            return
        self._release()

    def _release(self) -> None:
        for handle in self._locks:
            if handle >= 0:
                os.close(handle)
        empty = self._locks and not self.key.exists() and self._notes.exists() and not self.noted()
        if empty and -1 not in self._locks:
            self._notes.unlink(missing_ok=True)  # nothing was drawn
        self._locks = []

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
            found = name.read_text().split() if name.exists() else []
            return {"run": (found or [secrets.token_hex(8)])[0], "step": 0, "reservation": None}
        state: dict[str, Any] | None = _unpacked(path)
        if state is None:
            raise InputError(
                f"the checkpoint {path} is damaged; restore it from a copy, or start in another "
                "folder. What this run has reserved stays charged."
            )
        return state


def _locked(path: Path, must: bool) -> int:
    """A handle that holds the lock, or -1 if another does; on a file system without locks, just one."""
    fcntl = file_locks()
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return -1
    except OSError as error:  # a file system without locks
        if must:
            os.close(handle)
            raise InputError(
                f"{path} cannot be locked: {error.strerror}; name a folder on another file system."
            ) from None
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
