"""Settings that hold for all tests."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# One thread a process: pytest runs several, and torch's threads would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Keys and caches of the tests are made in folders of their own, never in the user's. The register waits
# for the disk at every charge, thousands of times, so its folder is in memory where there is room.
MEMORY = Path("/dev/shm")
for name, where in (("SOURDINE_HOME", MEMORY), ("SOURDINE_CACHE", None)):
    there = where if where is not None and os.access(where, os.W_OK) else None
    os.environ[name] = tempfile.mkdtemp(prefix="sourdine-tests-", dir=there)
    atexit.register(shutil.rmtree, os.environ[name], ignore_errors=True)
os.environ["HF_HUB_OFFLINE"] = "1"

# The same examples in every run: a red build can be repeated. `--hypothesis-profile=explore` looks further.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def fresh_register() -> Iterator[None]:
    """No test hears of what another one has charged."""
    yield
    (Path(os.environ["SOURDINE_HOME"]) / "register.sqlite").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def any_epsilon() -> Iterator[None]:
    """For modules that test something else, in which noise would only be in the way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sourdine.checks.LARGEST", 1e9)
        patch.setattr("sourdine.checks.USUAL", 1e9)
        yield
