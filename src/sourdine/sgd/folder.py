"""A run folder: checkpoints that survive a kill, and a lock against a second run.

The folder holds `checkpoint.pt` (model, optimizer, steps done, the reservation in the ledger, no
secrets), `steps` (how far the run may have come since) and `lock`. The key of the random streams lives
in the user's config folder and is destroyed when the run is done.

Guarantee: a run that goes on with the same key, data, settings and code draws the same lots and the
same noise, so steps that were lost and are run again show nothing new. In any other case it takes a
fresh key, and the steps that may have been run since the last checkpoint are charged once more.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import secrets
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from sourdine.errors import InputError, SourdineError
from sourdine.home import home
from sourdine.rng import Streams

AHEAD = 16
"""Steps that are noted as perhaps run at a time; each note waits for the disk."""


class Folder:
    """The run folder of one process among `rank`s; see the top of this file."""

    def __init__(self, path: str | Path, rank: int = 0) -> None:
        self.path, self.rank = Path(path), rank
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.path / f"lock{rank or ''}")
        self._noted = self.noted()
        state = self._read()
        self.found = state is not None
        self.state: dict[str, Any] = state or {"run": secrets.token_hex(8), "step": 0}

    @property
    def run(self) -> str:
        """The name of this run, by which its reservation is found."""
        return str(self.state["run"])

    @property
    def key(self) -> Path:
        return home() / "keys" / f"{self.run}.{self.rank}"

    def streams(self) -> Streams | None:
        return Streams.load(self.key)

    def secret(self) -> Any:
        """What belongs to the checkpoint but would give the noise away."""
        path = self._secret(self.state["step"])
        return torch.load(path, weights_only=True) if path.exists() else None

    def save(self, state: dict[str, Any], secret: Any = None) -> None:
        """Puts a checkpoint in the place of the last one, whole or not at all."""
        last = self._secret(self.state["step"])
        self.state = {"run": self.run, **state}
        new = self._secret(self.state["step"])
        if secret is not None:
            _write(new, _packed(secret))
        _write(self.path / "checkpoint.pt", _packed(self.state))
        if last != new:
            last.unlink(missing_ok=True)

    def note(self, step: int) -> None:
        """Before a step is drawn: writes down that it may have been run, some steps ahead."""
        if step > self._noted:
            self._noted = step + AHEAD
            _write(self.path / "steps", str(self._noted).encode())

    def noted(self) -> int:
        """How many steps may have been run."""
        try:
            return int((self.path / "steps").read_text())
        except (OSError, ValueError):
            return 0

    def destroy_keys(self) -> None:
        """At the end: from here on nobody can draw this noise again."""
        self.key.unlink(missing_ok=True)
        self._secret(self.state["step"]).unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._lock)

    def _secret(self, step: int) -> Path:
        return self.key.with_name(f"{self.key.name}.{step}.noise")

    def _read(self) -> dict[str, Any] | None:
        path = self.path / "checkpoint.pt"
        if not path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise InputError(f"the checkpoint {path} cannot be read: {error}.") from None
        return state


def agreement(settings: Iterable[object], dataset: Any, loss: Any) -> str:
    """One hash of all that must be equal for a run to be repeated bit by bit.

    Data: every example, pickled. Code: this room, the versions of torch and Python, and the loss's own
    bytecode; what the loss calls cannot be seen, so whoever changes it starts a new folder.
    """
    found = hashlib.sha256()
    for part in (sys.version, torch.__version__, *map(repr, settings)):
        found.update(part.encode() + b"\0")
    for file in sorted(Path(__file__).parent.glob("*.py")):
        found.update(file.read_bytes())
    code = getattr(loss, "__code__", None)
    found.update(code.co_code + repr(code.co_consts).encode() if code else repr(type(loss)).encode())
    for place in range(len(dataset)):
        found.update(pickle.dumps(_plain(dataset[place])))
    return found.hexdigest()


def _plain(x: Any) -> Any:
    """Tensors as bytes: pickled tensors hold more than their values."""
    if isinstance(x, torch.Tensor):
        whole = x.detach().cpu().contiguous()
        return (
            str(whole.dtype),
            tuple(whole.shape),
            whole.flatten().view(torch.uint8).numpy().tobytes(),
        )
    if isinstance(x, dict):
        return {name: _plain(value) for name, value in x.items()}
    return [_plain(value) for value in x] if isinstance(x, list | tuple) else x


def _locked(path: Path) -> int:
    """Holds a lock until the process ends, however it ends."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if sys.platform != "win32":
            import fcntl  # noqa: PLC0415 (not on Windows)

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise InputError(
            f"the folder {path.parent} is in use by another run; wait for it, or name another folder."
        ) from None
    return handle


def _packed(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


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
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise SourdineError(
            f"{path} cannot be written: {error.strerror}. The checkpoint before it is whole; make room "
            "and start the same command again to go on from there."
        ) from None
