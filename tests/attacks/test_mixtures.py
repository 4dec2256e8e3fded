"""Mixtures give their vectors away, masked or under one noise for all; fresh noise keeps them."""

import numpy as np
import pytest

from sourdine.attacks import mixtures
from sourdine.attacks.recovered import Recovered, recovered
from sourdine.errors import InputError
from sourdine.rng import seeded

pytest.importorskip("sklearn")

WIDTH, SOURCES, MIXED = 128, 30, 3


def features(rows: int, seed: int, width: int = WIDTH) -> np.ndarray:
    """Like vectors of an encoder: a falling spectrum, a common mean, length 1."""
    law = np.random.default_rng(7)  # the same encoder for all
    axes = np.linalg.qr(law.normal(size=(width, width)))[0]
    scale = np.arange(1, width + 1) ** -0.6
    mean = 1.2 * law.normal(size=width) / np.sqrt(width) * np.linalg.norm(scale)
    drawn = np.random.default_rng(seed).normal(size=(rows, width)) * scale @ axes + mean
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def weights(
    rows: int, rng: np.random.Generator, sources: int = SOURCES, mixed: int = MIXED
) -> np.ndarray:
    drawn = np.zeros((rows, sources))
    for row in drawn:
        g = np.abs(rng.normal(size=mixed))
        row[rng.choice(sources, mixed, replace=False)] = g / g.sum()
    return drawn


def encoded(
    private: np.ndarray,
    seed: int,
    *,
    rows: int = 800,
    masks: int = 1,
    shared: float = 0.0,
    fresh: float = 0.0,
) -> np.ndarray:
    rng = np.random.default_rng(seed)
    width = private.shape[1]
    pool = rng.choice([-1.0, 1.0], size=(masks, width)) if masks > 1 else np.ones((1, width))
    noise = shared * rng.normal(size=width) + fresh * rng.normal(size=(rows, width))
    return pool[rng.integers(masks, size=rows)] * (weights(rows, rng, len(private)) @ private + noise)


PUBLIC, OTHERS = features(1500, seed=1), features(1000, seed=2)


def attacked(seed: int, *, masks: int = 1, shared: float = 0.0, fresh: float = 0.0) -> Recovered:
    private = features(SOURCES, seed=100 + seed)
    encodings = encoded(private, seed, masks=masks, shared=shared, fresh=fresh)
    found = mixtures.reconstruct(
        encodings, sources=SOURCES, mixed=MIXED, masks=masks, public=PUBLIC, source=seeded(seed)
    )
    assert found.shape == private.shape
    return recovered(found, private, public=PUBLIC, distractors=OTHERS)


@pytest.mark.parametrize("masks", [1, 4])
def test_every_vector_is_found_exactly(masks: int) -> None:
    worth = attacked(3, masks=masks)
    assert worth.matched == worth.identified == 1
    assert worth.cosines.min() > 0.999


@pytest.mark.parametrize("masks", [1, 4])
def test_one_noise_for_all_hides_nothing(masks: int) -> None:
    """A deviation of 18 in each coordinate, 176 times the length of a vector."""
    worth = attacked(4, masks=masks, shared=18.0)
    assert worth.matched == worth.identified == 1


def test_little_fresh_noise_is_averaged_out() -> None:
    assert attacked(5, masks=4, fresh=0.02).matched > 0.9


@pytest.mark.parametrize("masks", [1, 4])
def test_fresh_noise_keeps_the_vectors(masks: int) -> None:
    """The twin: the same attack, the same data, noise of deviation 1.2 drawn for each encoding."""
    worth = attacked(3, masks=masks, fresh=1.2)
    assert worth.matched == 0
    # Of 24 with a chance of 1 in 1001 each, 4 or more have a probability below 1e-8.
    assert worth.identified <= 3 / SOURCES


def test_masks_are_taken_off_up_to_one_sign() -> None:
    private = features(SOURCES, seed=9)
    rng = np.random.default_rng(9)
    clear = weights(600, rng) @ private
    pool = rng.choice([-1.0, 1.0], size=(4, WIDTH))
    bare = mixtures.unmask(clear * pool[rng.integers(4, size=600)], 4, PUBLIC, rng)
    right = np.isclose(bare, clear).mean()
    assert max(right, 1 - right) > 0.97  # a coordinate that hardly varies may have either sign


def test_coefficients_are_found_with_the_vectors() -> None:
    private = features(SOURCES, seed=8)
    rng = np.random.default_rng(8)
    true = weights(600, rng)
    found, coefficients = mixtures.factor(true @ private, SOURCES, MIXED, rng)
    order = np.argmax(found @ private.T - (found**2).sum(axis=1)[:, None] / 2, axis=0)
    assert sorted(order) == list(range(SOURCES))
    assert np.allclose(found[order], private, atol=1e-4)
    assert np.allclose(coefficients[:, order], true, atol=1e-3)


def test_the_same_source_gives_the_same_vectors() -> None:
    encodings = encoded(features(SOURCES, seed=5), 5, masks=4)
    given = {"sources": SOURCES, "mixed": MIXED, "masks": 4, "public": PUBLIC}
    one, two = (mixtures.reconstruct(encodings, source=seeded(1), **given) for _ in range(2))
    assert np.allclose(one, two)


def test_sparse_is_the_nearest_point_of_the_simplex() -> None:
    loose = np.array([[0.9, 0.5, -0.2, 0.1], [0.2, 0.2, 0.2, 0.1], [3.0, 0.0, 0.0, 0.0]])
    expected = [[0.7, 0.3, 0, 0], [0.5, 0.5, 0, 0], [1, 0, 0, 0]]
    assert np.sort(mixtures.sparse(loose, 2))[:, ::-1] == pytest.approx(np.array(expected, dtype=float))
    every = mixtures.sparse(loose, 4)
    assert every.sum(axis=1) == pytest.approx(1)
    assert every[1] == pytest.approx([0.275, 0.275, 0.275, 0.175])


def test_a_mean_near_the_public_one_stays_and_a_far_one_is_moved() -> None:
    private = features(SOURCES, seed=6)
    assert (mixtures.placed(private, PUBLIC, either=True) == private).all()
    assert (mixtures.placed(-private, PUBLIC, either=True) == private).all()
    for sign in (1, -1):  # of a far mean, only the third moment tells the sign
        moved = mixtures.placed(sign * (private + 5), PUBLIC, either=True)
        assert moved - moved.mean(axis=0) == pytest.approx(private - private.mean(axis=0))
        assert moved.mean(axis=0) == pytest.approx(PUBLIC.mean(axis=0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encodings": np.ones(WIDTH)}, "one vector a row"),
        ({"encodings": np.full((200, WIDTH), np.nan)}, "not finite"),
        ({"public": np.full((200, WIDTH), np.inf)}, "not finite"),
        ({"public": np.ones((200, WIDTH - 1))}, "the same encoder"),
        ({"public": np.ones((99, WIDTH))}, "encode 100 or more other texts"),
        ({"mixed": SOURCES + 1}, "cannot be mixed out of"),
        ({"mixed": 0}, "mixed is 0"),
        ({"sources": 1}, "sources is 1"),
        ({"sources": WIDTH + 2}, "no simplex"),
        ({"encodings": np.ones((SOURCES, WIDTH))}, "Collect more encodings"),
        ({"masks": 101}, "Collect more encodings"),
        ({"masks": 0}, "masks is 0"),
    ],
)
def test_what_cannot_be_attacked(change: dict[str, object], message: str) -> None:
    given = {
        "encodings": np.ones((200, WIDTH)),
        "sources": SOURCES,
        "mixed": MIXED,
        "public": PUBLIC,
    } | change
    encodings = given.pop("encodings")
    with pytest.raises(InputError, match=message):
        mixtures.reconstruct(encodings, **given)


def test_encodings_that_are_all_alike_give_an_answer() -> None:
    """Worthless, but of the right shape: nothing may crash on what an owner releases."""
    for masks in (1, 2):
        found = mixtures.reconstruct(
            np.ones((60, WIDTH)), sources=5, mixed=2, masks=masks, public=PUBLIC, source=seeded(0)
        )
        assert found.shape == (5, WIDTH)
        assert np.isfinite(found).all()
