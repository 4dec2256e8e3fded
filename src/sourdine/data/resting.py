"""What this machine keeps beside the folders that are handed on, and what of it may be erased.

Guarantee: nothing inside the config folder is ever erased here, whatever lies in it. The register and
the marks of runs say what was spent: without them a budget could be spent twice. The keys and the salt
decide which records are held out, and let a stopped run go on with the same noise. Only files that this
library wrote are erased, found by their places and names; links are never followed. What a living
process holds is left alone.

docs/where-data-rests.md lists all places, those of the folders that you name included.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sourdine.data.fetch import DRAFT, KNOWN, cache
from sourdine.errors import InputError
from sourdine.home import home

UNSAVED, COPIES = "sourdine-run-", "sourdine-verify-"
"""How folders in the temporary folder begin: runs that were not saved, ledgers that are verified."""
LOCK = "in-use"
"""Locked by whoever needs an unsaved run."""
DAYS, BYTES = 30, 2 << 30
"""Features that were not used for so many days go, and the oldest ones beyond so many bytes."""
_DAY = 86400.0
_NEW = ".new"


@dataclass(frozen=True)
class Kind:
    """One kind of data. rule: "erased", "with --all", or "kept"; why: what to know about it."""

    name: str
    rule: str
    why: str


FEATURES = Kind("features", "erased", "vectors of private texts; they are computed again when needed")
RUNS = Kind("unsaved runs", "erased", "runs that were never saved, and ledgers copied to be verified")
IN_USE = Kind("in use", "kept", "a process that is running may need it")
DOWNLOADS = Kind("downloads", "with --all", "public models and texts; sourdine fetch brings them back")
CONFIG = Kind(
    "config folder",
    "kept",
    "the register and the marks of runs say what was spent; keys and salt make a stopped run go on",
)


@dataclass(frozen=True)
class Resting:
    """A file or folder that lies somewhere. seconds: since it was last used."""

    kind: Kind
    path: Path
    bytes: int
    seconds: float


def resting() -> list[Resting]:
    """Everything that lies in the cache, the temporary and the config folder."""
    return [*_features(), *_unsaved(), *_downloads(), *_config()]


def erasable(found: Iterable[Resting], everything: bool = False) -> list[Resting]:
    """What may go: with `everything` also what can be fetched again, but never what is kept."""
    rules = ("erased", "with --all") if everything else ("erased",)
    return [each for each in found if each.kind.rule in rules and not _kept_safe(each.path)]


def erase(found: Iterable[Resting]) -> int:
    """Removes these places, and returns how many bytes that freed; what is in use by now stays."""
    freed = 0
    for each in found:
        if each.kind.rule == "kept" or _kept_safe(each.path) or _in_use(each.path):
            continue
        try:
            if each.path.is_dir() and not each.path.is_symlink():
                shutil.rmtree(each.path)
            else:
                each.path.unlink(missing_ok=True)
        except FileNotFoundError:
            pass  # its own process was quicker
        except OSError as error:
            raise InputError(
                f"{each.path} cannot be erased: {error.strerror}. Mend its permissions and try again."
            ) from None
        freed += each.bytes
    return freed


def features_folder() -> Path:
    """Where vectors of private texts are kept."""
    return cache() / "features"


def used(path: Path) -> None:
    """Notes that somebody needs these features: they count as new."""
    with suppress(OSError):
        os.utime(path)


def bound_features(days: float = DAYS, most: int = BYTES) -> None:
    """Removes features that nobody used for so many days, and the oldest beyond so many bytes."""
    newest_first = sorted(_features(), key=lambda each: each.seconds)
    total = 0
    for each in newest_first:
        total += each.bytes
        if each.seconds > days * _DAY or total > most:
            with suppress(OSError):
                each.path.unlink()


def _features() -> Iterator[Resting]:
    folder = features_folder()
    for path in _inside(folder):
        if path.suffix in (".npy", _NEW):
            yield from _seen(FEATURES, path)


def _unsaved() -> Iterator[Resting]:
    place = Path(tempfile.gettempdir())
    for path in _inside(place):
        if path.name.startswith((UNSAVED, COPIES)) and _own(path):
            yield from _seen(IN_USE if _in_use(path) else RUNS, path)


def _downloads() -> Iterator[Resting]:
    known = tuple(f"{name}-" for name in KNOWN)  # of any version
    for path in _inside(cache()):
        if path.name.startswith((*known, DRAFT)):
            yield from _seen(IN_USE if _in_use(path) else DOWNLOADS, path)


def _config() -> Iterator[Resting]:
    if home().is_dir():
        yield from _seen(CONFIG, home())


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _seen(kind: Kind, path: Path) -> Iterator[Resting]:
    """Size and age, unless it is gone by now."""
    size, newest = 0, 0.0
    with suppress(OSError):
        for each in (path, *_below(path)):
            found = each.lstat()
            newest = max(newest, found.st_mtime)
            size += found.st_size if stat.S_ISREG(found.st_mode) else 0
        yield Resting(kind, path, size, max(0.0, time.time() - newest))


def _below(path: Path) -> Iterator[Path]:
    if path.is_dir() and not path.is_symlink():
        for place, _, names in os.walk(path):
            yield from (Path(place, name) for name in names)


def _own(path: Path) -> bool:
    """Whether this is a folder of this user's: others may write to the temporary folder as well."""
    with suppress(OSError):
        found = path.lstat()
        return stat.S_ISDIR(found.st_mode) and (sys.platform == "win32" or found.st_uid == os.getuid())
    return False


def _kept_safe(path: Path) -> bool:
    """Whether it lies in the config folder, or holds it: then it stays, whatever it is called."""
    mine, config = path.resolve(), home().resolve()
    return mine.is_relative_to(config) or config.is_relative_to(mine)


def _in_use(path: Path) -> bool:
    """Whether a living process needs it: its lock tells, or where there is none, its age."""
    if not path.name.startswith((UNSAVED, COPIES, DRAFT)):
        return False
    held = _held(path / LOCK)
    with suppress(OSError):
        return time.time() - path.stat().st_mtime < _DAY if held is None else held
    return False


def _held(lock: Path) -> bool | None:
    """Whether somebody holds the lock; None where there is no lock to ask."""
    if sys.platform == "win32":
        return None
    import fcntl  # noqa: PLC0415 (not on Windows)

    try:
        handle = os.open(lock, os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(handle)
    return False
