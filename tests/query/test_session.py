"""Questions: right answers, the right price, bounded contributions, and no error that a row could cause."""

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sourdine.accounting import curve
from sourdine.budget import Budget
from sourdine.data.tables import read
from sourdine.errors import BudgetError, InputError
from sourdine.events import ApproximateEvent, DiscreteLaplaceEvent, ExponentialEvent
from sourdine.ledger import Ledger
from sourdine.mechanisms import Ball, Laplace, Moves
from sourdine.query import Answer, Session
from sourdine.query.curator import Curator
from sourdine.query.session import _scores
from sourdine.rng import seeded

pytestmark = pytest.mark.usefixtures("any_epsilon")

N = 4_000
STARS = [1 + (row * 7 + row // 9) % 5 for row in range(N)]
AGE = [20 + (row * row) % 50 for row in range(N)]
CITY = ["Paris" if row % 3 == 0 else "Rome" for row in range(N)]
WHO = [f"u{row % 800}" for row in range(N)]
TEXT = ["good food" if row % 2 else "bad food, bad day" for row in range(N)]
DATA = {"stars": STARS, "age": AGE, "city": CITY, "who": WHO, "text": TEXT}
SETTINGS = [
    ("example", "zero-out"),
    ("example", "add-remove"),
    ("example", "replace-one"),
    ("user", "zero-out"),
    ("user", "replace-one"),
]


def session(
    unit: str = "example", adjacency: str = "zero-out", rows: int = 5, **options: Any
) -> Session:
    budget = Budget(1e6, 1e-6, unit, adjacency)
    if unit == "user":
        options |= {"user": "who", "rows_per_user": rows}
    return Session(DATA, budget, source=seeded(1), **options)


@pytest.fixture(params=SETTINGS, ids="-".join)
def asked(request: pytest.FixtureRequest) -> Session:
    return session(*request.param)


def near(answer: Answer, truth: float) -> bool:
    """The true value, in an interval that is not the whole range."""
    return answer.low <= truth <= answer.high


def test_counts(asked: Session) -> None:
    assert near(asked.count(epsilon=2.0), N)
    assert near(asked.count(epsilon=2.0, where=["stars >= 4", "city == Paris"]), _true_count())
    groups = asked.count(epsilon=2.0, by="city", keys=["Paris", "Rome", "Oslo"])
    assert list(groups) == ["Paris", "Rome", "Oslo"]
    assert near(groups["Paris"], CITY.count("Paris"))
    assert near(groups["Oslo"], 0)


def _true_count() -> int:
    return sum(s >= 4 and c == "Paris" for s, c in zip(STARS, CITY, strict=True))


def test_sums_and_means(asked: Session) -> None:
    assert near(asked.sum("age", low=0, high=100, epsilon=2.0), sum(AGE))
    assert near(asked.sum("age", low=0, high=100, epsilon=2.0, where="city != Rome"), _paris(AGE)[0])
    assert near(asked.mean("age", low=0, high=100, epsilon=2.0), sum(AGE) / N)
    total, count = _paris(AGE)
    assert near(asked.mean("age", low=0, high=100, epsilon=2.0, where="city == Paris"), total / count)
    means = asked.mean("age", low=0, high=100, epsilon=2.0, by="city", keys=["Paris", "Rome"])
    assert near(means["Paris"], total / count)
    sums = asked.sum("age", low=0, high=100, epsilon=2.0, by="city", keys=["Paris", "Rome"])
    assert near(sums["Paris"], total)


def _paris(values: list[int]) -> tuple[int, int]:
    found = [value for value, city in zip(values, CITY, strict=True) if city == "Paris"]
    return sum(found), len(found)


def test_values_beyond_the_bounds_are_clipped(asked: Session) -> None:
    clipped = [min(50, max(30, age)) for age in AGE]
    answer = asked.mean("age", low=30, high=50, epsilon=5.0)
    assert near(answer, sum(clipped) / N)
    assert answer.high - answer.low < 0.5


def test_variance_and_quantiles(asked: Session) -> None:
    answer = asked.variance("age", low=0, high=100, epsilon=20.0)
    assert near(answer, float(np.var(AGE)))
    assert answer.high - answer.low < 20
    for level in (0.1, 0.5, 0.9):
        answer = asked.quantile("age", level, low=0, high=100, epsilon=5.0)
        assert near(answer, float(np.quantile(AGE, level)))
        assert answer.high - answer.low < 8


def test_histograms(asked: Session) -> None:
    by_key = asked.histogram("stars", keys=[1, 2, 3, 4, 5], epsilon=2.0)
    assert all(near(by_key[str(star)], STARS.count(star)) for star in range(1, 6))
    bins = asked.histogram("age", edges=[20, 30, 50, 69], epsilon=2.0)
    assert list(bins) == ["20 to 30", "30 to 50", "50 to 69"]
    assert near(bins["20 to 30"], sum(20 <= age < 30 for age in AGE))
    assert near(bins["50 to 69"], sum(50 <= age <= 69 for age in AGE))  # the last bin has both ends


def test_words(asked: Session) -> None:
    counts = asked.word_counts(["Good", "day", "zebra"], epsilon=9.0, column="text", words_per_unit=3)
    people = 800 if asked._owner is not None else N
    # Users have both kinds of text only if their rows differ in parity; 800 is even, so never.
    assert near(counts["good"], people / 2)
    assert near(counts["day"], people / 2)
    assert near(counts["zebra"], 0)
    top = asked.top_words(["good", "day", "zebra"], k=2, epsilon=9.0, column="text", words_per_unit=3)
    assert set(top) == {"good", "day"}
    found = asked.top_words(k=2, epsilon=9.0, delta=1e-9, column="text", words_per_unit=3)
    assert next(iter(found)) == "food"
    assert "zebra" not in found


# What an answer costs.


@pytest.mark.parametrize("setting", SETTINGS, ids="-".join)
@pytest.mark.parametrize(
    "ask",
    [
        lambda s: s.count(epsilon=0.3),
        lambda s: s.count(epsilon=0.3, by="city", keys=["Paris", "Rome"]),
        lambda s: s.sum("age", low=0, high=100, epsilon=0.3),
        lambda s: s.sum("age", low=-5, high=100, epsilon=0.3, where="stars > 2"),
        lambda s: s.mean("age", low=0, high=100, epsilon=0.3),
        lambda s: s.mean("age", low=0, high=100, epsilon=0.3, where="stars > 2"),
        lambda s: s.mean("age", low=0, high=100, epsilon=0.3, by="city", keys=["Paris", "Rome"]),
        lambda s: s.variance("age", low=0, high=100, epsilon=0.3),
        lambda s: s.variance("age", low=0, high=100, epsilon=0.3, where="stars > 2"),
        lambda s: s.quantile("age", 0.5, low=0, high=100, epsilon=0.3),
        lambda s: s.histogram("stars", keys=[1, 2], epsilon=0.3),
        lambda s: s.word_counts(["good"], epsilon=0.3, column="text"),
        lambda s: s.word_counts(epsilon=0.3, delta=1e-8, column="text"),
    ],
)
def test_a_question_costs_its_epsilon(ask: Callable[[Session], Any], setting: tuple[str, str]) -> None:
    asked = session(*setting)
    ask(asked)
    (entry,) = asked.ledger.history()
    total = sum(count * _pure(part) for part, count in entry.event.parts)
    assert total == pytest.approx(0.3, rel=1e-12)
    assert curve(entry.event, setting[1]).epsilon_upper(1e-6) <= 0.3 * (1 + 1e-12)


def _pure(event: Any) -> float:
    match event:
        case DiscreteLaplaceEvent():
            return event.parameter * event.sensitivity
        case ApproximateEvent() | ExponentialEvent():
            return float(event.epsilon)
    raise AssertionError(event)


def drawn(asked: Session, ask: Callable[[Session], Any]) -> list[tuple[Any, Any]]:
    """The mechanisms of a question with the exact values that they are applied to."""
    seen: list[tuple[Any, Any]] = []

    def released(label: str, pairs: Any) -> Any:
        seen.extend(pairs)
        raise KeyboardInterrupt

    asked._released = released  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        ask(asked)
    return seen


QUESTIONS: list[Callable[[Session], Any]] = [
    lambda s: s.count(epsilon=1.0, where="x > 2"),
    lambda s: s.count(epsilon=1.0, by="k", keys=["a", "b"]),
    lambda s: s.sum("x", low=-1, high=5, epsilon=1.0),
    lambda s: s.sum("x", low=-4, high=5, epsilon=1.0, where="k == a"),
    lambda s: s.sum("x", low=2, high=5, epsilon=1.0, by="k", keys=["a", "b"]),
    lambda s: s.mean("x", low=-1, high=5, epsilon=1.0),
    lambda s: s.mean("x", low=-1, high=5, epsilon=1.0, where="k == a"),
    lambda s: s.variance("x", low=-1, high=5, epsilon=1.0),
    lambda s: s.histogram("x", edges=[0, 1, 2, 9], epsilon=1.0),
    lambda s: s.word_counts(["a", "b", "c"], epsilon=1.0, column="t", words_per_unit=2),
]
rows = st.tuples(
    st.sampled_from(["u", "v", "w"]),
    st.floats(-9, 9),
    st.sampled_from("abz"),
    st.sampled_from(["a b c", "b", ""]),
)


def table(lines: list[tuple[str, float, str, str]]) -> dict[str, Any]:
    return dict(zip(("who", "x", "k", "t"), map(list, zip(*lines, strict=True)), strict=True))


def neighbours(lines: Any, others: Any, unit: str, adjacency: str) -> tuple[Any, Any]:
    """A table with the rows of "me", and one where they are gone or others."""
    mine = [("me", *rest) for _, *rest in others]
    if unit == "example":
        mine = mine[:1]
        old = [("me", *lines[0][1:])]
    else:
        old = [("me", *lines[0][1:])] * len(mine)
    return [*old, *lines[1:]], [*mine, *lines[1:]] if adjacency == "replace-one" else lines[1:]


def violation(pair: Any, unit: str, adjacency: str, most: int, ask: Callable[[Session], Any]) -> bool:
    """Whether the exact values of neighbours lie further apart than the sensitivity says."""
    found = []
    for side in pair:
        options = {"user": "who", "rows_per_user": most} if unit == "user" else {}
        asked = Session(table(side), Budget(9.0, 1e-6, unit, adjacency), **options)
        if adjacency == "zero-out" and unit == "example":
            # n is public: an absent row is a row that contributes nothing, which leaving it out does too.
            asked._size = lambda mask: len(pair[0]) if mask is None else None  # type: ignore[method-assign]
        found.append(drawn(asked, ask))
    for (mechanism, one), (_, other) in zip(*found, strict=True):
        moved = [abs(Fraction(a) - Fraction(b)) for a, b in zip(one, other, strict=True)]
        shape = mechanism.sensitivity
        if isinstance(shape, Ball):
            broken = sum(moved) > Fraction(shape.radius)
        else:
            broken = max(moved) > Fraction(shape.each) or sum(x > 0 for x in moved) > shape.coordinates
        if broken:
            return True
    return False


@settings(max_examples=400)
@given(
    st.lists(rows, min_size=2, max_size=9),
    st.lists(rows, min_size=1, max_size=6),
    st.sampled_from(SETTINGS),
    st.integers(1, 3),
    st.sampled_from(QUESTIONS),
)
def test_neighbours_move_answers_by_no_more_than_the_sensitivity(
    lines: Any, others: Any, setting: tuple[str, str], most: int, ask: Callable[[Session], Any]
) -> None:
    assert not violation(neighbours(lines, others, *setting), *setting, most, ask)


@pytest.mark.parametrize("setting", SETTINGS, ids="-".join)
def test_less_than_the_sensitivity_would_be_noticed(
    setting: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [("u", 5.0, "a", "a b c"), ("v", 5.0, "b", "b")]
    others = [("u", -5.0, "b", "b c"), ("u", -5.0, "a", "a")]
    real = Curator._moves

    def smaller(self: Curator, groups: int, spread: float) -> Any:
        shape = real(self, groups, spread)
        return (
            Ball(shape.radius * 0.99, groups) if isinstance(shape, Ball) else Moves(shape.each * 0.99)
        )

    sums = QUESTIONS[2]
    pair = neighbours(lines, others, *setting)
    assert not violation(pair, *setting, 2, sums)
    monkeypatch.setattr(Curator, "_moves", smaller)
    assert violation(pair, *setting, 2, sums)


def test_quantile_scores_move_by_no_more_than_stated() -> None:
    """The score of every cell, for all tables of four values and all their neighbours."""
    cells = [0, 1, 2, 3]
    for level in (0.25, 0.5, 0.9):
        for values in np.ndindex(4, 4, 4, 4):
            full = _ranks(values, cells, level)
            for target in (Fraction(0), Fraction(-2), Fraction(3, 2)):
                here = _scores(full, target)
                assert max(here) == 0  # some cell always holds the target
                less = _scores(_ranks(values[1:], cells, level), target)
                assert _apart(here, less) <= max(Fraction(level), 1 - Fraction(level))
                other = _scores(_ranks((3 - values[0], *values[1:]), cells, level), target)
                assert _apart(here, other) <= 1


def _ranks(values: Any, cells: list[int], level: float) -> list[Fraction]:
    return [sum(v < c for v in values) - Fraction(level) * len(values) for c in cells]


def _apart(a: list[Fraction], b: list[Fraction]) -> Fraction:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


# Refusals, and what they cost.


def test_a_refused_question_draws_nothing_and_records_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Session(DATA, Budget(1.0))
    asked.count(epsilon=0.8)
    monkeypatch.delattr(Laplace, "noise")  # a draw would fail loudly
    with pytest.raises(BudgetError, match="'mean of stars' was not run"):
        asked.mean("stars", low=1, high=5, epsilon=0.8)
    assert len(asked.ledger.history()) == 1


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda s: s.mean("star", low=1, high=5, epsilon=1), "did you mean 'stars'"),
        (lambda s: s.mean("city", low=1, high=5, epsilon=1), "holds text"),
        (lambda s: s.mean("stars", low=5, high=1, epsilon=1), "low must be below high"),
        (lambda s: s.mean("stars", low=math.nan, high=1, epsilon=1), "low is nan"),
        (lambda s: s.mean("stars", low=1, high=5, epsilon=0), "epsilon is 0"),
        (lambda s: s.mean("stars", low=1, high=5, epsilon=math.nan), "epsilon is nan"),
        (lambda s: s.count(epsilon=-1), "epsilon is -1"),
        (lambda s: s.count(epsilon=math.inf), "epsilon is inf"),
        (lambda s: s.count(epsilon=1, where="stars"), "not understood"),
        (lambda s: s.count(epsilon=1, where="stars > many"), "'many' is none"),
        (lambda s: s.count(epsilon=1, where=[("stars", ">", 4)]), "not understood"),
        (lambda s: s.count(epsilon=1, where="town == Paris"), "no column 'town'"),
        (lambda s: s.count(epsilon=1, by="city"), "needs the keys"),
        (lambda s: s.count(epsilon=1, by="city", keys=[]), "needs the keys"),
        (lambda s: s.count(epsilon=1, keys=["Paris"]), "name it"),
        (lambda s: s.count(epsilon=1, by="city", keys=["Paris", "Paris"]), "the same value"),
        (lambda s: s.count(epsilon=1, by="stars", keys=[1, 1.0]), "the same value"),
        (lambda s: s.histogram("stars", epsilon=1, keys=["1", "1.00"]), "the same value"),
        (lambda s: s.histogram("stars", epsilon=1, keys=[0.0, -0.0]), "the same value"),
        (lambda s: s.histogram("stars", epsilon=1, keys=[1, math.nan]), "is none"),
        (lambda s: s.count(epsilon=1e4), "no privacy at all"),
        (lambda s: s.count(epsilon=1, where=5), "a list of texts"),
        (lambda s: s.count(epsilon=1, by="stars", keys=[10**400]), "is none"),
        (lambda s: s.count(epsilon=1, by="city", keys=5), "needs the keys"),
        (lambda s: s.mean("stars", low=-5e-324, high=0, epsilon=1), "too close"),
        (lambda s: s.sum("stars", low=1e9, high=1e9 + 1e-6, epsilon=1), "too close"),
        (lambda s: s.count(epsilon=1, by="stars", keys=["many"]), "'many' is none"),
        (lambda s: s.histogram("stars", epsilon=1), "either edges"),
        (lambda s: s.histogram("stars", epsilon=1, edges=[1]), "at least two"),
        (lambda s: s.histogram("stars", epsilon=1, edges=[2, 1]), "above the one before"),
        (lambda s: s.quantile("age", 1.5, low=0, high=9, epsilon=1), "strictly between"),
        (lambda s: s.word_counts(["good"], epsilon=1), "3 columns that may hold text"),
        (lambda s: s.word_counts(epsilon=1, column="text"), "need a delta"),
        (lambda s: s.word_counts(["a"], epsilon=1, delta=1e-9, column="text"), "cost no delta"),
        (lambda s: s.word_counts(["a b"], epsilon=1, column="text"), "not one word"),
        (lambda s: s.top_words(["a"], k=0, epsilon=1, column="text"), "k is 0"),
    ],
)
def test_bad_questions_cost_nothing(ask: Callable[[Session], Any], said: str) -> None:
    asked = session()
    with pytest.raises(InputError, match=said):
        ask(asked)
    assert not asked.ledger.history()


def test_units_and_columns_must_fit() -> None:
    with pytest.raises(InputError, match="name the user column"):
        Session(DATA, Budget(1.0, unit="user"))
    with pytest.raises(InputError, match="protects single examples"):
        Session(DATA, Budget(1.0), user="who")
    with pytest.raises(InputError, match="an example is one row"):
        Session(DATA, Budget(1.0), rows_per_user=2)
    with pytest.raises(InputError, match="not below 1/n"):
        Session(DATA, Budget(1.0, 1e-3))
    with pytest.raises(InputError, match="give a budget"):
        Session(DATA, 1.0)  # type: ignore[arg-type]


def test_a_private_number_of_rows_is_in_no_error() -> None:
    Session(DATA, Budget(1.0, 1e-3, adjacency="add-remove"))
    Session(DATA, Budget(1.0, 1e-3, unit="user"), user="who")


@pytest.mark.parametrize(
    ("one", "other"), [("1.1", "1.10"), ("1e3", "1000"), ("true", "TRUE"), ("7", "7.0")]
)
def test_two_names_never_become_one_person(tmp_path: Path, one: str, other: str) -> None:
    (tmp_path / "t.csv").write_text(f"who,x\n{one},1\n{other},1\n", encoding="utf-8")
    asked = Session(tmp_path / "t.csv", Budget(1.0, unit="user"), user="who")
    assert asked._owner is not None and len(set(asked._owner.tolist())) == 2


@pytest.mark.parametrize("who", [[1.1, 2.5], [True, False]])
def test_persons_are_not_told_apart_by_doubles(who: list[Any]) -> None:
    with pytest.raises(InputError, match="two persons could become one"):
        Session({"who": who, "x": [1, 2]}, Budget(1.0, unit="user"), user="who")
    table = read({"who": who, "x": [1, 2]}, missing={"who": 0})
    with pytest.raises(InputError, match="must be read as text"):
        Session(table, Budget(1.0, unit="user"), user="who")


def test_bins_have_names_of_their_own() -> None:
    edges = [1234560, 1234561, 1234562.5, 1234563]
    found = session().histogram("age", edges=edges, epsilon=1.0)
    assert list(found) == ["1234560 to 1234561", "1234561 to 1234562.5", "1234562.5 to 1234563"]


def test_an_interval_is_never_a_point() -> None:
    asked = Session({"x": [4, 5]}, Budget(1e6), source=seeded(1))
    answers = [asked.mean("x", low=1, high=5, epsilon=0.5) for _ in range(200)]
    assert min(answer.high - answer.low for answer in answers) > 1
    assert all(1 <= answer.low <= answer.value <= answer.high <= 5 for answer in answers)


def test_users_may_be_numbered() -> None:
    data = {"who": [7, 7, 7, 8], "x": [1, 1, 1, 1]}
    asked = Session(data, Budget(99.0, unit="user"), user="who", rows_per_user=2, source=seeded(1))
    assert asked._counts is not None and asked._counts.tolist() == [True, True, False, True]
    assert "first 2 rows of each user" in asked.count(epsilon=1).label


def test_the_same_table_however_it_comes(tmp_path: Path) -> None:
    frame = pd.DataFrame(DATA)
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    found = {
        str(Session(data, Budget(9.0), source=seeded(1)).mean("age", low=0, high=99, epsilon=1.0))
        for data in (DATA, frame, pl.DataFrame(DATA), tmp_path / "t.csv", str(tmp_path / "t.parquet"))
    }
    assert len(found) == 1


def test_the_history_names_source_and_data(tmp_path: Path) -> None:
    frame = pd.DataFrame(DATA)
    frame.to_csv(tmp_path / "t.csv", index=False)
    ledger = Ledger(tmp_path / "l.sqlite", Budget(9.0))
    Session(tmp_path / "t.csv", ledger, columns=["age"]).count(epsilon=1.0)
    Session(tmp_path / "t.csv", ledger, columns=["stars"], source=seeded(1)).count(epsilon=1.0)
    frame.head(100).to_csv(tmp_path / "t.csv", index=False)
    Session(tmp_path / "t.csv", ledger).count(epsilon=1.0)
    entries = ledger.history()
    assert [entry.source for entry in entries] == ["secure", "seeded", "secure"]
    assert entries[0].data == entries[1].data != entries[2].data


def test_a_ledger_of_another_unit_is_not_charged(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.sqlite", Budget(9.0))
    asked = Session(DATA, ledger)
    asked.ledger = Ledger(tmp_path / "u.sqlite", Budget(9.0, unit="user"))
    with pytest.raises(InputError, match="another unit"):
        asked.count(epsilon=1.0)
    assert not asked.ledger.history()


def test_an_answer_reads_well() -> None:
    text = str(Answer(3.8712, 3.8012, 3.9412, 0.95, "mean of stars"))
    assert text == "mean of stars: 3.87 (3.80 to 3.94 with 95% confidence)"


def test_a_session_is_a_context() -> None:
    with session() as asked:
        assert asked.count(epsilon=1.0).confidence == 0.95
    with pytest.raises(InputError, match="session is closed"):
        asked.count(epsilon=1.0)
    assert len(asked.ledger.history()) == 1
