"""What rests on this machine: what is found, what is bounded, and what is never erased."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from sourdine.data import resting as room
from sourdine.data.fetch import cache
from sourdine.errors import InputError
from sourdine.home import home


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("cache", "config", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("SOURDINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SOURDINE_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path


def features(name: str, size: int = 10, days: float = 0) -> Path:
    path = room.features_folder() / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x" * size)
    then = time.time() - days * 86400
    os.utime(path, (then, then))
    return path


def test_what_is_where() -> None:
    features("a.npy", 7)
    (cache() / "minilm-0.1.0").mkdir()
    (cache() / "minilm-0.1.0" / "weights").write_bytes(b"12345")
    (cache() / "notes.txt").write_text("the user's own")
    (home() / "register.sqlite").write_text("charges")
    found = {each.kind.name: (each.path, each.bytes) for each in room.resting()}
    assert found == {
        "features": (room.features_folder() / "a.npy", 7),
        "downloads": (cache() / "minilm-0.1.0", 5),
        "config folder": (home(), 7),
    }


def test_only_features_and_abandoned_runs_go_without_all() -> None:
    gone, fetched = features("a.npy"), cache() / "reviews-0.0.2"
    fetched.mkdir()
    room.erase(room.erasable(room.resting()))
    assert not gone.exists() and fetched.exists()
    room.erase(room.erasable(room.resting(), everything=True))
    assert not fetched.exists()


def test_nothing_in_the_config_folder_is_erased_wherever_the_cache_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOURDINE_CACHE", str(home()))
    inside = features("a.npy")
    (home() / "minilm-0.1.0").mkdir()
    found = room.resting()
    assert {each.kind.name for each in found} == {"features", "downloads", "config folder"}
    assert room.erasable(found, everything=True) == []
    assert room.erase(found) == 0
    assert inside.exists() and (home() / "minilm-0.1.0").exists()


def test_a_link_is_removed_and_never_followed(places: Path) -> None:
    other = places / "others"
    other.mkdir()
    (other / "kept").write_text("x")
    (cache() / "minilm-0.1.0").symlink_to(other)
    (Path(tempfile.gettempdir()) / "sourdine-run-link").symlink_to(other)
    room.erase(room.erasable(room.resting(), everything=True))
    assert (other / "kept").exists() and not (cache() / "minilm-0.1.0").is_symlink()
    assert (Path(tempfile.gettempdir()) / "sourdine-run-link").is_symlink()  # not of this library


def test_a_download_on_the_way_is_in_use() -> None:
    young, old = cache() / ".fetch-young", cache() / ".fetch-old"
    for draft in (young, old):
        draft.mkdir()
    then = time.time() - 2 * 86400
    os.utime(old, (then, then))
    room.erase(room.erasable(room.resting(), everything=True))
    assert young.exists() and not old.exists()


def test_features_are_bounded_by_age_and_size() -> None:
    old, young = features("old.npy", days=31), features("young.npy", days=29)
    room.bound_features()
    assert not old.exists() and young.exists()
    newest = features("newest.npy", size=50)
    room.bound_features(most=55)
    assert newest.exists() and not young.exists()
    room.used(newest)
    room.bound_features(most=55)
    assert newest.exists()


def test_features_that_are_used_stay_young() -> None:
    path = features("used.npy", days=29)
    room.used(path)
    room.bound_features(days=1)
    assert path.exists()


def test_what_cannot_be_erased_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    features("a.npy")

    def refuses(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuses)
    with pytest.raises(InputError, match=r"a\.npy cannot be erased: Permission denied"):
        room.erase(room.erasable(room.resting()))
