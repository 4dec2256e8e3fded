"""Candidates that are among the mixtures score high, others do not; and noise of a DP release hides them."""

from __future__ import annotations

import numpy as np
import pytest

from sourdine.attacks.presence import identified, presence
from sourdine.errors import InputError

WIDE = 40


def mixtures(deviation: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encodings of 30 vectors in fours, the vectors, and 900 others."""
    chance = np.random.default_rng(seed)
    spectrum = np.arange(1, WIDE + 1) ** -0.5
    vectors, others = (chance.standard_normal((count, WIDE)) * spectrum for count in (30, 900))
    places = np.argsort(chance.random((3000, 30)), axis=1)[:, :4]
    shares = np.abs(chance.standard_normal((3000, 4)))
    shares /= shares.sum(1, keepdims=True)
    mixed = (shares[:, :, None] * vectors[places]).sum(1)
    return mixed + deviation * chance.standard_normal(mixed.shape), vectors, others


def test_who_is_there_is_named_in_spite_of_noise() -> None:
    encodings, truth, others = mixtures(0.2)
    assert identified(encodings, truth, others) > 0.9
    assert presence(encodings, others).shape == (900,)


def test_who_is_not_there_is_not_named() -> None:
    encodings, _, others = mixtures(0.2)
    _, absent, _ = mixtures(0.2, seed=1)
    assert identified(encodings, absent, others) <= 0.1


def test_enough_noise_hides_everyone() -> None:
    encodings, truth, others = mixtures(5.0)
    assert identified(encodings, truth, others) <= 0.1


def test_bad_input() -> None:
    encodings, truth, _ = mixtures(0.1)
    with pytest.raises(InputError, match="coordinates"):
        presence(encodings, truth[:, :3])
    with pytest.raises(InputError, match="too few"):
        presence(encodings[:20], truth)
    with pytest.raises(InputError):
        presence(encodings * np.nan, truth)
