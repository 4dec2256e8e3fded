"""Sealing: what is signed, what is refused, and where the key lives."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from run_folder import another, document, drafted, fill, make_ledger, sealed

from sourdine.certificate import Certificate, public_key, seal, verify
from sourdine.certificate.keys import key_path, own_public_key
from sourdine.errors import InputError


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return drafted(make_ledger(None))  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fill(tmp_path / "run")
    make_ledger(tmp_path / "run" / "ledger.sqlite")
    return tmp_path / "run"


def test_every_file_is_hashed(folder: Path, certificate: Certificate) -> None:
    path = seal(folder, certificate)
    assert path == folder / "certificate.json"
    listed = set(document(folder)["released"]["files"])
    there = {item.relative_to(folder).as_posix() for item in folder.rglob("*") if item.is_file()}
    assert listed == there - {"certificate.json"} and "tokenizer/vocabulary.json" in listed
    assert document(folder)["signature"]["public_key"] == public_key()
    assert Certificate.from_json(path.read_text(encoding="utf-8")).signed


def test_no_key_and_no_seed_is_written(folder: Path, certificate: Certificate) -> None:
    seal(folder, certificate)
    secret = key_path().read_bytes()
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert secret not in content and secret.hex().encode() not in content


def test_sealing_again_after_a_change(folder: Path, certificate: Certificate) -> None:
    seal(folder, certificate)
    (folder / "README.md").write_text("# better\n", encoding="utf-8")
    assert "files" in verify(folder).failed
    seal(folder, Certificate.from_json((folder / "certificate.json").read_text(encoding="utf-8")))
    assert verify(folder).passed


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint.pt",
        "pace",
        "lock",
        "metrics.json.new",
        "signing.key",
        "ledger.sqlite-journal",
        "in/lock",
    ],
)
def test_working_files_are_refused(folder: Path, certificate: Certificate, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"x")
    with pytest.raises(InputError, match=r"working file that is not for release"):
        seal(folder, certificate)
    assert not (folder / "certificate.json").exists()


@pytest.mark.parametrize("what", ["file", "folder", "nothing"])
def test_links_are_refused(folder: Path, tmp_path: Path, certificate: Certificate, what: str) -> None:
    target = {"file": folder / "README.md", "folder": tmp_path, "nothing": tmp_path / "gone"}[what]
    (folder / "link").symlink_to(target)
    with pytest.raises(InputError, match=r"link in .* is a link or no plain file"):
        seal(folder, certificate)


@pytest.mark.parametrize("name", ["ledger.sqlite", "metrics.json", "README.md", "report.html"])
def test_an_incomplete_folder_is_refused(folder: Path, certificate: Certificate, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(InputError, match=f"{name} is missing"):
        seal(folder, certificate)


def test_a_folder_without_weights_or_that_is_none(folder: Path, certificate: Certificate) -> None:
    for path in folder.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(InputError, match="weights"):
        seal(folder, certificate)
    with pytest.raises(InputError, match="there is no folder"):
        seal(folder / "README.md", certificate)


def test_an_interrupted_seal_leaves_the_old_certificate(
    folder: Path, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal(folder, certificate)
    before = (folder / "certificate.json").read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(InputError, match="cannot be sealed: No space left"):
            seal(folder, certificate)
    assert (folder / "certificate.json").read_bytes() == before
    assert not (folder / "certificate.json.new").exists()
    (folder / "certificate.json.new").write_text("half a cert", encoding="utf-8")  # killed on the way
    seal(folder, certificate)
    assert verify(folder).passed


def test_the_key_is_for_its_owner_alone(folder: Path, certificate: Certificate, tmp_path: Path) -> None:
    with another(tmp_path / "fresh"):
        assert own_public_key() is None, "looking makes no key"
        found = public_key()
        path = tmp_path / "fresh" / "signing.key"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert public_key() == found == own_public_key() != path.read_bytes().hex()
        path.chmod(0o644)
        with pytest.raises(InputError, match="can be read by others"):
            seal(folder, certificate)
        path.chmod(0o600)
        path.write_bytes(b"short")
        with pytest.raises(InputError, match="is damaged"):
            public_key()


def test_verifying_makes_no_key(tmp_path: Path) -> None:
    sealed(tmp_path / "run")
    with another(tmp_path / "stranger"):
        assert verify(tmp_path / "run").passed
        assert not (tmp_path / "stranger").exists()


def test_processes_that_start_at_once_agree_on_one_key(tmp_path: Path) -> None:
    code = "from sourdine.certificate.keys import public_key; print(public_key())"
    environment = {**os.environ, "SOURDINE_HOME": str(tmp_path / "home")}

    def start(_: int) -> str:
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout

    with ThreadPoolExecutor(3) as threads:
        assert len(set(threads.map(start, range(3)))) == 1
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["signing.key"]


def test_a_key_inside_the_folder_is_refused(folder: Path, certificate: Certificate) -> None:
    with another(folder / "config"), pytest.raises(InputError, match="would go where it goes"):
        seal(folder, certificate)


def test_there_is_no_certificate(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no certificate"):
        verify(tmp_path)
    with pytest.raises(InputError, match="there is no certificate"):
        verify(tmp_path / "nowhere")


@pytest.mark.parametrize("key", ["", "abc", "zz" * 32, "no/such/file"])
def test_a_key_that_is_none(folder: Path, certificate: Certificate, key: str) -> None:
    seal(folder, certificate)
    with pytest.raises(InputError, match="neither a public key"):
        verify(folder, key=key)
