"""The random source: published vectors, uniform draws, and nothing that could be recorded."""

import copy
import hashlib
import pickle
import subprocess
import sys
import threading
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sourdine.errors import InputError
from sourdine.rng import Source, secure, seeded

FALSE_ALARM = 1e-6


def test_the_stream_is_chacha20() -> None:
    # Key and nonce of zeros: the first block of RFC 8439's test vector 1 (appendix A.1).
    known = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    found = Source(bytes(32), "seeded").bytes(32).hex()
    # The first 32 bytes are the next key and never come out.
    assert found == known[64:]


def test_the_old_key_is_forgotten() -> None:
    source = Source(bytes(32), "secure")
    source.bytes(1)
    assert source._key.hex().startswith("76b8e0ad")
    assert source._key != bytes(32)


def test_secure_sources_differ_and_seeded_ones_repeat() -> None:
    assert secure().bytes(32) != secure().bytes(32)
    assert seeded(1).bytes(10_000) == seeded(1).bytes(10_000)
    assert seeded(1).bytes(32) != seeded(2).bytes(32)
    assert (secure().kind, seeded(1).kind) == ("secure", "seeded")


def test_pieces_make_the_same_stream_as_the_whole() -> None:
    pieces, whole = seeded(3), seeded(3)
    assert b"".join(pieces.bytes(size) for size in (1, 31, 4000, 100, 9000)) == whole.bytes(13_132)


@given(st.integers(1, 10**30))
def test_below_stays_below(bound: int) -> None:
    source = seeded(5)
    assert all(0 <= source.below(bound) < bound for _ in range(20))


def test_below_is_uniform() -> None:
    source, bound, draws = seeded(11), 6, 60_000
    counts = [0] * bound
    for _ in range(draws):
        counts[source.below(bound)] += 1
    assert stats.chisquare(counts).pvalue > FALSE_ALARM
    # The twin: a modulus of one byte favours the first four of six by one part in 42.
    tilted = [43 / 256] * 4 + [42 / 256] * 2
    assert stats.chisquare([100 * draws * share for share in tilted]).pvalue < FALSE_ALARM


def test_bernoulli_has_the_stated_probability() -> None:
    source, draws = seeded(12), 60_000
    heads = sum(source.bernoulli(Fraction(2, 7)) for _ in range(draws))
    assert stats.binomtest(heads, draws, 2 / 7).pvalue > FALSE_ALARM
    assert source.bernoulli(Fraction(1)) and not source.bernoulli(Fraction(0))


@pytest.mark.parametrize("save", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_source_cannot_be_saved_or_copied(save) -> None:
    with pytest.raises(InputError, match="cannot be copied or saved"):
        save(secure())


def test_nothing_shows_the_state() -> None:
    source = seeded(42)
    assert repr(source) == "<seeded source>"
    assert not hasattr(source, "__dict__")
    key = hashlib.sha256(b"sourdine seed 42").hexdigest()
    assert key not in repr(source) + str(source)


def test_parent_and_child_draw_different_noise() -> None:
    code = (
        "import os, sys\nfrom sourdine.rng import secure\nsource = secure(); source.bytes(1)\n"
        "read, write = os.pipe()\nchild = os.fork()\n"
        "if child == 0: os.write(write, source.bytes(16)); os._exit(0)\n"
        "os.waitpid(child, 0); print(os.read(read, 16) != source.bytes(16))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_threads_never_share_a_draw() -> None:
    source, found = secure(), [[] for _ in range(4)]

    def draw(mine: list[bytes]) -> None:
        mine.extend(source.bytes(8) for _ in range(20_000))

    threads = [threading.Thread(target=draw, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drawn = [word for mine in found for word in mine]
    assert len(set(drawn)) == len(drawn)


def test_what_was_drawn_is_not_kept() -> None:
    source = secure()
    drawn = source.bytes(64)
    assert drawn not in bytes(source._buffer)
    assert drawn[:16] not in bytes(source._buffer) and drawn[:16] not in source._key


@pytest.mark.parametrize("bound", [0, -3])
def test_an_empty_range_is_refused(bound: int) -> None:
    with pytest.raises(InputError, match="no whole number"):
        secure().below(bound)


@pytest.mark.parametrize("seed", [-1, 0.5, "x", None, True])
def test_a_seed_is_a_whole_number(seed) -> None:
    with pytest.raises(InputError):
        seeded(seed)
