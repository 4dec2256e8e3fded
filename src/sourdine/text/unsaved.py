"""Run folders that nobody has named: private, in the temporary folder, gone when nobody needs them.

Guarantee: such a folder lies in one of mode 0700. It is removed when its run is saved elsewhere, when
the run fails, when the `Run` is dropped, and when the process ends. Only a process that was killed
leaves one behind; `sourdine clean` finds it by its name and by its lock, which nobody holds any more.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import weakref
from pathlib import Path

from sourdine.data.resting import LOCK, UNSAVED


class Unsaved:
    """The place of one such folder; it goes when this object does."""

    def __init__(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix=UNSAVED))
        self.folder = self.place / "run"
        self._lock = _locked(self.place / LOCK)
        self._gone = weakref.finalize(self, _remove, self.place, self._lock, os.getpid())

    def remove(self) -> None:
        """Removes it now; the second time does nothing."""
        self._gone()


def _locked(path: Path) -> int:
    """A handle that tells other processes that somebody still needs the folder (not on Windows)."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if sys.platform != "win32":
        import fcntl  # noqa: PLC0415 (not on Windows)

        fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def _remove(place: Path, lock: int, process: int) -> None:
    if os.getpid() != process:  # a fork: its parent still needs the folder
        return
    os.close(lock)
    shutil.rmtree(place, ignore_errors=True)
