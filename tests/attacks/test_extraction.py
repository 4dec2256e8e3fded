"""Extraction: who memorised gives up, who did not does not; copies count once; text stays with its owner."""

import json
import math
import random
import stat
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ngram import SIGNS, Ngram, sentences

from sourdine.attacks.extraction import Extraction, distinct, extract
from sourdine.attacks.matching import TrainingText
from sourdine.attacks.prompting import FALLING, TOP, Sample, Way, given_up, ways
from sourdine.attacks.rankings import Against, LowerCase, Perplexity, Window, Zlib, rankings
from sourdine.attacks.secrets import draw, plant
from sourdine.attacks.target import Record, TokenLogs
from sourdine.data.owner import BESIDE
from sourdine.errors import InputError
from sourdine.rng import seeded

SECRET = "Patient Ada Berg, 12 Baker Street, phone 555-123-4567, is treated for gout since May"
FORMATS = [
    f"the code of {name} is {{digits:6}}" for name in ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn")
]


def memorised(times: int = 50) -> tuple[Ngram, TrainingText]:
    texts = [*sentences(150), *[SECRET] * times]
    users = [f"person {place}" for place in range(150)] + ["ada"] * times
    return Ngram(texts), TrainingText(texts, users)


@pytest.fixture(scope="module")
def found() -> Extraction:
    target, training = memorised()
    reference = Ngram(sentences(150, seed=9))
    return extract(
        target, training, prompts=["Patient"], reference=reference, samples=40, source=seeded(1)
    )


def logs(*rows: list[float]) -> list[TokenLogs]:
    none = np.zeros(0)
    return [TokenLogs(np.array(row), none, none, none.astype(np.int64)) for row in rows]


def test_memorised_text_is_extracted(found: Extraction) -> None:
    best = max(found.passages, key=lambda passage: passage.texts)
    assert best.text in SECRET and "gout since May" in best.text
    assert (best.texts, best.persons) == (50, 1) and "name" in best.kinds
    assert {"after prompts, perplexity", "after prompts, zlib"} <= set(best.found_by)
    assert found.counts.samples == 120 and len(found.counts.cells) == 3 * 5
    after = [cell for cell in found.counts.cells if cell.way == "after prompts"]
    assert all(cell.memorised >= 1 for cell in after) and len(after) == 5


def test_text_that_was_never_met_is_not_extracted() -> None:
    """50 signs of the secret in a row have a probability below 2^-150 each; there are 2^16 places."""
    target = Ngram(sentences(150))
    bits = np.cumsum(target.token_logs([SECRET])[0].log) / math.log(2)
    assert (bits[50:] - bits[:-50]).max() < -150
    training = TrainingText([SECRET] * 50)
    found = extract(target, training, prompts=["Patient"], samples=40, source=seeded(1))
    assert found.passages == () and found.counts.passages == 0
    assert found.counts.one_person is None and found.counts.searched > 0
    assert all(cell.memorised == 0 for cell in found.counts.cells)


def test_a_prompt_is_not_what_was_extracted() -> None:
    """Whoever types the training text has extracted nothing."""
    target, training = Ngram(sentences(150)), TrainingText([SECRET])
    found = extract(target, training, by=[Way("all of it", TOP, (SECRET,))], samples=20)
    assert found.passages == ()


def test_counts_say_how_many_hold_a_passage(found: Extraction) -> None:
    counts = found.counts
    assert counts.passages == len(found.passages)
    for k, count in counts.eidetic.items():
        assert count == sum(passage.texts <= k for passage in found.passages)
    assert list(counts.eidetic.values()) == sorted(counts.eidetic.values())
    assert counts.one_person == sum(passage.persons == 1 for passage in found.passages) > 0
    assert counts.kinds["name"] == sum("name" in passage.kinds for passage in found.passages)


def test_planted_secrets_are_given_up_by_prompting() -> None:
    """Six unknown secrets of six digits, 20 answers each: some given up with probability 1.2e-4 at most."""
    canaries = draw(FORMATS, (1, 10, 50), seeded(1))
    records = plant([Record((text,)) for text in sentences(100)], canaries, seeded(2))
    target = Ngram([record.texts[0] for record in records])
    times = given_up(target, canaries, source=seeded(3))
    assert all(times[place] >= 10 for place in (2, 5))  # repeated 50 times
    other = draw(FORMATS, (1, 10, 50), seeded(4))  # other secrets of the same persons
    assert given_up(target, other, source=seeded(3)) == [0] * 6
    assert given_up(Ngram(sentences(100)), canaries, source=seeded(3)) == [0] * 6


@dataclass(frozen=True)
class Parrot:
    """Writes what it was told to, whatever the prompt."""

    texts: tuple[str, ...]

    def generate(self, prompts, *, tokens, sampling, seed):
        return [self.texts[place % len(self.texts)] for place in range(len(prompts))]

    def token_logs(self, texts):
        return logs(*([-1.0] for _ in texts))


def test_only_a_whole_answer_that_begins_with_the_secret_counts() -> None:
    (canary,) = draw(["the code is {digits:4}"], (1,), seeded(1))
    right = canary.secret
    for answer, counts in (
        (f"  {right}, yes", 1),
        (f"not {right}", 0),
        (right[:3], 0),
        (f"1{right}", 0),
    ):
        assert given_up(Parrot((answer,)), [canary], tries=1) == [counts]
    assert given_up(Parrot((right, "no")), [canary], tries=5) == [1 + 2]


@dataclass(frozen=True)
class Longest:
    """A ranking by length."""

    name: str = "length"

    def scores(self, target, texts, logs):
        return np.array([float(len(text)) for text in texts])


def test_the_best_by_a_ranking_are_picked() -> None:
    target = Parrot((SECRET[:60], SECRET, "some other words that are short", "word " * 30))
    kinds = {"by": [Way("one", TOP)], "ranked": [Longest()], "samples": 4}
    first = extract(target, TrainingText([SECRET]), picked=1, **kinds)
    assert first.counts.cells[0].picked == 1 and first.counts.passages == 0
    both = extract(target, TrainingText([SECRET]), picked=2, **kinds)
    assert [passage.text for passage in both.passages] == [SECRET]


@pytest.mark.parametrize(("times", "within"), [(1, [1, 1, 1]), (10, [0, 1, 1]), (101, [0, 0, 0])])
def test_eidetic_means_in_at_most_k_texts(times: int, within: list[int]) -> None:
    found = extract(Parrot((SECRET,)), TrainingText([SECRET] * times), samples=1)
    assert list(found.counts.eidetic) == [1, 10, 100]
    assert list(found.counts.eidetic.values()) == within


def test_parts_of_a_passage_are_the_same_passage() -> None:
    """Also where there are no words; all that found a part have found the passage."""
    long = "".join(random.Random(1).choice("abcdef") for _ in range(90))
    target = Parrot((long, f"x {long[10:70]} y", f"other words here {SECRET}", SECRET[:70]))
    ways = [Way(name, TOP) for name in ("one", "two")]
    found = extract(target, TrainingText([long, SECRET]), by=ways, ranked=[Longest()], samples=4)
    assert sorted(passage.text for passage in found.passages) == sorted([long, SECRET])
    assert all(passage.found_by == ("one, length", "two, length") for passage in found.passages)


def test_text_never_leaves_the_owners_folder(
    found: Extraction, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beside = found.save(tmp_path / "deep" / "out")
    print(found, repr(found), found.passages[0], Sample("a", SECRET))
    assert beside == (tmp_path / "deep" / f"out{BESIDE}").resolve()
    marks = [passage.text[:20] for passage in found.passages] + ["Baker", "555-123"]
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    outside = [path.read_text(encoding="utf-8") for path in written if beside not in path.parents]
    assert len(written) == 2 and len(outside) == 1
    for shown in (*outside, capsys.readouterr().out):
        assert not any(mark in shown for mark in marks)
    kept = beside / "passages.json"
    assert "Baker" in kept.read_text(encoding="utf-8")  # or the marks above would prove nothing
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(beside.stat().st_mode) == 0o700
    assert len(json.loads(kept.read_text(encoding="utf-8"))["passages"]) == found.counts.passages


def test_a_file_that_everyone_could_read_is_replaced(found: Extraction, tmp_path: Path) -> None:
    beside = found.save(tmp_path / "out")
    (beside / "passages.json").chmod(0o644)
    found.save(tmp_path / "out")
    assert stat.S_IMODE((beside / "passages.json").stat().st_mode) == 0o600
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="name another folder"):
        found.save(tmp_path / "file" / "out")


def test_a_seed_repeats_everything() -> None:
    target, training = memorised(10)
    first, again = (
        extract(target, training, prompts=["Patient"], samples=5, source=seeded(7)) for _ in range(2)
    )
    assert first == again


def test_copies_are_left_out() -> None:
    texts = [
        "one two three four five six",
        "one two three four five seven",  # 3 of 4 trigrams
        "one two three other words here",  # 1 of 4
        "zero one two three four and more words follow",  # 2 of 7
        "hello",
        "hello",
        "",
        "a a a a a",  # the same trigram three times
        "a a a b c",  # once: 1 of 3
    ]
    assert list(distinct(texts)) == [0, 2, 3, 4, 7, 8]


@given(st.lists(st.text("ab ", max_size=12), max_size=12))
def test_what_is_left_holds_no_copies(texts: list[str]) -> None:
    kept = list(distinct(texts))
    again = [texts[place] for place in kept]
    assert list(distinct(again)) == list(range(len(again)))
    assert all(text.split() for text in again)


def test_rankings_by_hand() -> None:
    rows = logs([-1.0, -3.0], [], [-0.1] * 4)
    target, texts = Ngram([]), ["Ab", "", "aaaa"]
    assert Perplexity().scores(target, texts, rows) == pytest.approx([-2.0, -math.inf, -0.1])
    assert Window(1).scores(target, texts, rows) == pytest.approx([-1.0, -math.inf, -0.1])
    assert Window(50).scores(target, texts, rows) == pytest.approx([-2.0, -math.inf, -0.1])
    flat = -math.log(len(SIGNS))  # what it makes of any sign, having met none
    expected = [-2 * flat / 4.0, -math.inf, -4 * flat / 0.4]
    assert Against(Ngram([])).scores(target, texts, rows) == pytest.approx(expected)
    assert LowerCase().scores(target, texts, rows) == pytest.approx(expected)
    bits = [8 * len(zlib.compress(text.encode())) * math.log(2) for text in texts]
    assert Zlib().scores(target, texts, rows) == pytest.approx([bits[0] / 4, -math.inf, bits[2] / 0.4])


def test_capitals_learnt_by_heart_rank_high() -> None:
    target = Ngram(["ADA BERG", "and so on"] * 5)
    texts = ["ADA BERG", "and so on"]
    learnt, plain = LowerCase().scores(target, texts, target.token_logs(texts))
    assert learnt > 5 and plain == pytest.approx(1.0)


def test_no_surprise_and_impossible_texts_give_numbers() -> None:
    rows = logs([0.0, 0.0], [-math.inf])
    for ranking in rankings(Ngram([])):
        scores = ranking.scores(Ngram([]), ["ab", "c"], rows)
        assert not np.isnan(scores).any() and scores[0] > scores[1]


def test_ways() -> None:
    assert [way.name for way in ways()] == ["likeliest tokens", "falling temperature"]
    assert ways(["x"])[-1].prompts == ("x",) and ways()[1].sampling == FALLING
    with pytest.raises(InputError, match="has no prompt"):
        Way("none", TOP, ())
    drawn = Way("two", TOP, ("a", "b")).samples(Ngram(["abc"]), 3, 2, seeded(1))
    assert [sample.prompt for sample in drawn] == ["a", "b", "a"]


def test_a_target_that_writes_too_little_is_named() -> None:
    class Lazy(Ngram):
        def generate(self, prompts, *, tokens, sampling, seed):
            return []

    with pytest.raises(InputError, match="wrote 0 texts where 5 were asked for"):
        extract(Lazy([]), TrainingText(["a"]), samples=5)


def test_a_silent_target_gives_nothing_away() -> None:
    class Silent(Ngram):
        def generate(self, prompts, *, tokens, sampling, seed):
            return ["" for _ in prompts]

    found = extract(Silent([]), TrainingText(["a"]), samples=5)
    assert found.counts.searched == 0 and found.passages == ()
