"""Drawing up a certificate: computed from the ledger, refused where it would promise too much."""

from pathlib import Path
from typing import Any

import pytest
from run_folder import BUDGET, TRAINING, accesses, document, drafted, edit, fill, make_ledger, resign

from sourdine.accounting import curve
from sourdine.budget import Budget
from sourdine.certificate import Access, sampling, seal, verify
from sourdine.certificate.facts import guarantee, releases
from sourdine.errors import ContradictionError, InputError
from sourdine.events import (
    NOTHING,
    ApproximateEvent,
    Event,
    FixedSizeEvent,
    ForeignEvent,
    GaussianEvent,
    PateEvent,
    PoissonEvent,
    ShuffledEvent,
    TruncatedPoissonEvent,
)
from sourdine.ledger import Ledger

pytestmark = pytest.mark.usefixtures("any_epsilon")

PATE = PateEvent((2.0,), (0.1,), "zero-out")
RHO = ForeignEvent('{"class": "ZCDpEvent", "fields": {"rho": 0.01, "xi": 0.0}}')
GAUSS = GaussianEvent(10.0)


def charged(*events: Event, budget: Budget = BUDGET) -> Ledger:
    ledger = Ledger(None, budget)
    for event in events:
        ledger.charge(event, "a release", source="secure")
    return ledger


def uses(*events: Event) -> list[Access]:
    return [Access("a release", event) for event in events]


def test_one_plan_alone_is_counted_by_its_own_curve() -> None:
    ledger = make_ledger(None)  # type: ignore[arg-type]
    found = drafted(ledger).document["guarantee"]
    event = releases(ledger.history())[0]
    lower, upper = curve(event).epsilon(1e-6)
    assert (found["epsilon_lower"], found["epsilon"]) == (lower, upper)
    assert upper <= BUDGET.epsilon and found["mu"] is None
    deltas = [point["delta"] for point in found["curve"]]
    # The labels alone fail with 1e-8: below that nothing is bounded, and no point is given.
    assert deltas == [1e-3, 1e-4, 1e-5, 1e-6, 1e-7]
    assert next(point for point in found["curve"] if point["delta"] == 1e-6)["epsilon"] == upper


def test_gaussian_noise_alone_has_a_mu_and_every_point() -> None:
    ledger = charged(4 * GAUSS, budget=Budget(3.0, 3e-7))
    found = drafted(ledger, uses(4 * GAUSS)).document["guarantee"]
    assert found["mu"] == pytest.approx(0.2)
    assert [point["delta"] for point in found["curve"]][3:6] == [1e-6, 3e-7, 1e-7]
    assert len(found["curve"]) == 11


def test_several_charges_are_promised_the_budget_and_no_less() -> None:
    """Later charges may depend on earlier answers: neither their sum nor their curve is a promise."""
    ledger = charged(GAUSS, GaussianEvent(20.0), GAUSS)
    found = drafted(ledger, uses(2 * GAUSS, GaussianEvent(20.0)))
    promise = found.document["guarantee"]
    together = curve(2 * GAUSS + GaussianEvent(20.0)).epsilon(1e-6)
    assert promise["epsilon"] == BUDGET.epsilon > ledger.spent().epsilon > together.upper
    assert promise["epsilon_lower"] == together.lower
    assert promise["mu"] is None and len(promise["curve"]) == 1
    assert found.document["by"]["accountant"] == "sourdine filter"


def test_an_event_without_a_curve_is_counted_by_the_filter() -> None:
    ledger = charged(RHO)
    promise = drafted(ledger, uses(RHO)).document["guarantee"]
    assert promise["epsilon"] == ledger.spent().epsilon
    assert promise["epsilon_lower"] == 0.0 and promise["mu"] is None


@pytest.mark.parametrize("events", [(GAUSS, GAUSS), (RHO,), (4 * GAUSS,)])
def test_other_ledgers_verify_too(tmp_path: Path, events: tuple[Event, ...]) -> None:
    fill(tmp_path)
    ledger = Ledger(tmp_path / "ledger.sqlite", BUDGET)
    for event in events:
        ledger.charge(event, "a release")
    seal(tmp_path, drafted(ledger, uses(*events)))
    verdict = verify(tmp_path)
    assert verdict.passed, verdict


def test_a_claim_below_the_filter_is_found_where_nothing_is_attained(tmp_path: Path) -> None:
    fill(tmp_path / "run")
    ledger = Ledger(tmp_path / "run" / "ledger.sqlite", BUDGET)
    ledger.charge(RHO, "a release")
    seal(tmp_path / "run", drafted(ledger, uses(RHO)))
    for version in ("0.0.1", document(tmp_path / "run")["by"]["sourdine"]):

        def lower(found: dict[str, Any], version: str = version) -> None:
            found["by"]["sourdine"] = version
            found["guarantee"]["epsilon"] = 0.9 * ledger.spent().epsilon

        edit(tmp_path / "run", lower)
        resign(tmp_path / "run", tmp_path / "thief")
        assert verify(tmp_path / "run").failed == ("epsilon",)


def test_what_was_settled_counts_and_what_never_ran_does_not() -> None:
    ledger = Ledger(None, BUDGET)
    plan = 300 * PoissonEvent(0.1, GaussianEvent(4.0))
    ran = 100 * PoissonEvent(0.1, GaussianEvent(4.0))
    ledger.settle(ledger.reserve(plan, "never began"), NOTHING, "crash")
    ledger.settle(ledger.reserve(plan, "stopped"), ran, "interrupt")
    assert releases(ledger.history()) == (ran,)
    assert guarantee(ledger).epsilon == curve(ran).epsilon(1e-6).upper
    ledger = Ledger(None, BUDGET)
    ledger.settle(ledger.reserve(plan, "looked"), ran, "outputs")
    assert releases(ledger.history()) == (plan,)
    ledger = Ledger(None, BUDGET)
    ledger.reserve(plan, "still open")
    assert releases(ledger.history()) == (plan,)


def test_nothing_charged_is_nothing_to_certify() -> None:
    with pytest.raises(InputError, match="nothing was ever charged"):
        drafted(Ledger(None, BUDGET), uses())


@pytest.mark.parametrize("source", ["seeded", "seeded(7)", ""])
def test_a_seeded_run_gets_no_certificate(source: str) -> None:
    with pytest.raises(InputError, match="a seeded run gets no DP certificate"):
        drafted(make_ledger(None), source=source)  # type: ignore[arg-type]


def test_a_ledger_that_says_seeded_gets_none_whatever_the_caller_says() -> None:
    with pytest.raises(InputError, match="a seeded run gets no DP certificate"):
        drafted(make_ledger(None, source="seeded"), source="secure")  # type: ignore[arg-type]


def test_accesses_must_add_up_to_the_ledger() -> None:
    ledger = make_ledger(None)  # type: ignore[arg-type]
    for wrong in (
        accesses()[1:],
        [*accesses(), Access("more", GAUSS)],
        accesses(299 * TRAINING.parts[0][0]),
    ):
        with pytest.raises(ContradictionError, match="do not add up"):
            drafted(ledger, wrong)
    drafted(ledger, accesses()[::-1])


def test_a_ledger_over_its_budget_is_not_to_be_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "_check", lambda *_: None)  # a ledger with a hole
    with pytest.raises(ContradictionError, match="over its budget of 3"):
        drafted(charged(GaussianEvent(0.5)), uses(GaussianEvent(0.5)))
    with pytest.raises(ContradictionError, match="over its budget of 3"):
        drafted(
            charged(GaussianEvent(1.0), GaussianEvent(0.9)),
            uses(GaussianEvent(1.0), GaussianEvent(0.9)),
        )


@pytest.mark.parametrize("cost", [PATE, 3 * PATE, PATE + GAUSS, PoissonEvent(0.1, PATE)])
def test_a_private_cost_is_not_published(cost: Event) -> None:
    with pytest.raises(InputError, match="computed from private data"):
        Access("votes", cost)


def test_an_access_without_a_charge_needs_a_reason() -> None:
    for cost in (None, NOTHING):
        with pytest.raises(InputError, match="say why"):
            Access("the label column", cost)
        Access("the label column", cost, "named by the owner")
    with pytest.raises(InputError, match="says what"):
        Access("", GAUSS)
    with pytest.raises(InputError, match="an event or None"):
        Access("x", "none")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (TRAINING, "Poisson lots, rate 0.1, 300 steps"),
        (
            5 * TruncatedPoissonEvent(0.01, 1000, 50, GAUSS),
            "truncated Poisson lots, rate 0.01, at most 50, 5 steps",
        ),
        (7 * FixedSizeEvent(100, 10, GAUSS), "fixed-size lots, 10 of 100 records, 7 steps"),
        (ShuffledEvent(20.0, 10, 3), "shuffled batches, 10 of them, 3 epochs"),
        (GAUSS, "no sampling: every release is charged in full"),
    ],
)
def test_sampling_in_words(event: Event, said: str) -> None:
    assert sampling(event) == said
    with_labels = event + ApproximateEvent(0.05, 1e-8, "zero-out")
    assert sampling(with_labels) == said
    ledger = charged(with_labels, budget=Budget(50.0, 1e-6))
    text = drafted(ledger, uses(with_labels)).document["sampling"]
    assert text == {"assumed": said, "executed": said}


@pytest.mark.parametrize(
    "wrong",
    [
        {"sampling_executed": "shuffled batches"},
        {"sampling_executed": "every record in every step"},
        {"sampling_executed": "truncated Poisson lots"},
        {"sampling_assumed": "Poisson lots, rate 0.2"},
        {"sampling_assumed": "Poisson lots, 299 steps"},
        {"sampling_executed": "Poisson lots, 301 steps"},
    ],
)
def test_sampling_that_is_not_what_was_charged(wrong: dict[str, str]) -> None:
    with pytest.raises(ContradictionError, match="the sampling"):
        drafted(make_ledger(None), **wrong)  # type: ignore[arg-type]


def test_fewer_steps_may_have_been_executed() -> None:
    executed = "Poisson lots at rate 0.1, 120 steps, then stopped"
    drafted(make_ledger(None), sampling_executed=executed)  # type: ignore[arg-type]


def test_every_record_in_every_step_may_be_called_either() -> None:
    plan = 10 * PoissonEvent(1.0, GaussianEvent(10.0))
    for said in ("every record in every step", "Poisson lots, rate 1, 10 steps"):
        drafted(charged(plan), uses(plan), sampling_assumed=said, sampling_executed=said)


def test_what_is_not_known_is_said() -> None:
    found = drafted(make_ledger(None), data={}, model={"base": "x"}).document  # type: ignore[arg-type]
    assert set(found["data"].values()) == {"UNKNOWN"}
    assert found["model"] == {"base": "x", "trained": "UNKNOWN", "parameters": "UNKNOWN"}
    with pytest.raises(InputError, match="model has a field 'size'"):
        drafted(make_ledger(None), model={"size": 3})  # type: ignore[arg-type]
