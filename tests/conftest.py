"""Settings that hold for all tests."""

import atexit
import os
import shutil
import tempfile

from hypothesis import HealthCheck, settings

# One thread a process: pytest runs several, and torch's threads would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Keys of the tests are made in a folder of their own, never in the user's.
os.environ["SOURDINE_HOME"] = tempfile.mkdtemp(prefix="sourdine-tests-")
atexit.register(shutil.rmtree, os.environ["SOURDINE_HOME"], ignore_errors=True)

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
