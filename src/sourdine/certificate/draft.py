"""Drawing up a certificate: everything that is promised is computed here, from the ledger."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from sourdine.budget import Budget
from sourdine.certificate.document import Certificate
from sourdine.certificate.facts import (
    AT_LOAD,
    SECURE,
    Access,
    check_costs,
    check_sampling,
    check_within,
    guarantee,
    releases,
    seeded,
)
from sourdine.certificate.shape import FORMAT, NONE, NOT_ACCOUNTED, SHAPE, UNKNOWN, VERSION
from sourdine.errors import InputError
from sourdine.events import Event, compose
from sourdine.ledger import Ledger


def draft(
    ledger: Ledger,
    *,
    what: str,
    to: str,
    contribution_bound: int,
    accesses: Sequence[Access],
    sampling_assumed: str,
    sampling_executed: str,
    source: str,
    numbers: str,
    utility: Mapping[str, Any],
    data: Mapping[str, Any],
    model: Mapping[str, Any],
    training: Mapping[str, Any],
    not_covered: Sequence[str],
    audit: str | Sequence[Mapping[str, Any]] = UNKNOWN,
    made: str | None = None,
    shared: bool = False,
) -> Certificate:
    """A certificate without signature and file hashes, for `seal` to complete.

    source: the kind of the random source, which must be "secure"; numbers: in which format noise was
    added. What is missing in `data` and `model` becomes UNKNOWN. The costs of `accesses` must add up to
    exactly what the ledger counts, and the sampling texts must name the scheme of its events
    (`facts.sampling` writes them). shared: the ledger is an extract of one that other runs share, so
    that its budget bounds all of them together. made: an ISO time to state in place of now, where how
    long the work took is a secret.
    """
    entries = ledger.history()
    if source != SECURE or seeded(entries):
        raise InputError(
            "a seeded run gets no DP certificate: whoever guesses the seed subtracts the noise. Run it "
            "again with the secure source, which is the default."
        )
    counted, found = releases(entries), guarantee(ledger)
    check_within(found, ledger.budget)
    check_costs([access.cost for access in accesses if access.cost is not None], counted)
    check_sampling(sampling_assumed, sampling_executed, counted)
    budget = ledger.budget
    document = {
        "format": FORMAT,
        "version": VERSION,
        "made": made or datetime.now(UTC).isoformat(timespec="milliseconds"),
        "by": {
            "sourdine": own_version(),
            "accountant": found.accountant,
            "python": platform.python_version(),
        },
        "released": {"what": what, "to": to, "files": {}},
        "guarantee": {
            "unit": budget.unit,
            "contribution_bound": contribution_bound,
            "adjacency": budget.adjacency,
            "epsilon": found.epsilon,
            "epsilon_lower": found.lower,
            "delta": budget.delta,
            "curve": found.points,
            "mu": found.mu,
            "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
        },
        "events": json.loads(compose(counted).to_json()),
        "sampling": {"assumed": sampling_assumed, "executed": sampling_executed},
        "accesses": [
            {"what": access.what, "cost": _cost(access.cost), "why": access.why}
            for access in (*accesses, AT_LOAD)
        ],
        "randomness": {"source": source, "numbers": numbers},
        "audit": audit if isinstance(audit, str) else [dict(finding) for finding in audit],
        "utility": dict(utility),
        "data": _complete(data, "data"),
        "model": _complete(model, "model"),
        "training": dict(training),
        "not_covered": [*not_covered, *([_shared(budget)] if shared else [])],
        "signature": UNKNOWN,
    }
    return Certificate.of(document)


def _cost(cost: Event | None) -> Any:
    if cost is None:
        return NOT_ACCOUNTED
    return json.loads(cost.to_json()) if cost.parts else NONE


def _shared(budget: Budget) -> str:
    return (
        "the other runs under the same shared ledger: all of them and this one together are at most "
        f"epsilon={budget.epsilon:g} at delta={budget.delta:g}, the budget of that ledger"
    )


def _complete(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {**dict.fromkeys(SHAPE[name], UNKNOWN), **given}


def own_version() -> str:
    """The version of sourdine that computes here."""
    try:
        return version("sourdine")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return UNKNOWN
