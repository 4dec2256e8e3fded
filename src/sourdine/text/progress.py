"""What a run that goes on needs to know beside its checkpoint: what it has released so far.

Labels and metrics are noted as soon as they are drawn, so that a run that goes on shows the same ones.
Whoever is killed between drawing and noting has shown nothing: drawing again costs nothing more.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sourdine.errors import InputError, SourdineError
from sourdine.sgd.processes import Processes

PROGRESS = "progress.json"


class Progress:
    """A small file in the run folder, gone when the run is over; process 0 alone touches it."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.folder, self._processes = folder, processes
        self.state: dict[str, Any] = processes.once(self._read)

    def note(self, **facts: Any) -> None:
        """Adds facts that may be released, on the disk before anyone goes on."""
        self.state |= facts
        self._processes.once(self._write)

    def _read(self) -> dict[str, Any]:
        path = self.folder / PROGRESS
        if not path.exists():
            return {}
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise InputError(
                f"{path} is damaged; restore it, or start in another folder. What was reserved stays "
                "charged."
            ) from None
        return found

    def _write(self) -> None:
        path = self.folder / PROGRESS
        draft = path.with_name(f"{PROGRESS}.new")
        try:
            with draft.open("w", encoding="utf-8") as file:
                json.dump(self.state, file, ensure_ascii=False)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise SourdineError(
                f"{path} cannot be written: {error.strerror}; make room and go on with --resume."
            ) from None
