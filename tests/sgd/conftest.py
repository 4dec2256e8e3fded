"""Engines are tested with whatever noise shows a mistake best."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def whatever_epsilon(any_epsilon: None) -> None:
    """Tests of refused epsilons are in tests/cli/test_mistakes.py."""
