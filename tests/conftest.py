"""Settings that hold for all tests."""

from hypothesis import HealthCheck, settings

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
