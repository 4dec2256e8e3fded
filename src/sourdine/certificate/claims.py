"""Checks of what is claimed, against the ledger and two accountants.

Each returns a sentence, or raises one: a CheckError for what is wrong, NotChecked for what a folder
alone cannot show.
"""

from __future__ import annotations

import math
from typing import Any

from sourdine import checks
from sourdine.accounting import curve as privacy_curve
from sourdine.audit.scored import FILE as CANARIES
from sourdine.audit.scored import Audited, audits, read
from sourdine.certificate.draft import own_version
from sourdine.certificate.evidence import Evidence, NotChecked
from sourdine.certificate.facts import (
    SECURE,
    check_costs,
    check_sampling,
    check_within,
    open_plans,
    seeded,
)
from sourdine.certificate.second import opinion
from sourdine.certificate.shape import NONE, NOT_ACCOUNTED, UNKNOWN, event_in
from sourdine.errors import CheckError, NotAccountable
from sourdine.events import compose

_TOLERANCE = 1e-5  # relative: what two machines may differ by; our interval is narrower than that


def ledger(found: Evidence) -> str:
    """The ledger opens, its chain holds, and it kept its budget."""
    entries = found.history
    check_within(found.guarantee, found.ledger.budget)
    still = open_plans(entries)
    said = f"; {len(still)} plan is charged in full, as nobody has settled it" if still else ""
    return f"{len(entries)} entries, none missing or altered, within the budget{said}."


def terms(found: Evidence) -> str:
    """Unit, adjacency, delta and budget are the ledger's."""
    stated, budget = found.document["guarantee"], found.ledger.budget
    pairs = {
        "unit": (stated["unit"], budget.unit),
        "adjacency": (stated["adjacency"], budget.adjacency),
        "delta": (stated["delta"], budget.delta),
        "budget.epsilon": (stated["budget"]["epsilon"], budget.epsilon),
        "budget.delta": (stated["budget"]["delta"], budget.delta),
    }
    for name, (said, kept) in pairs.items():
        if said != kept:
            raise CheckError(f"the certificate says {name} {said}, its ledger {kept}.")
    if stated["unit"] == "example" and stated["contribution_bound"] != 1:
        raise CheckError("one example is one record: a contribution bound other than 1 has no meaning.")
    return f"per {budget.unit} under {budget.adjacency}, as the ledger was made."


def events(found: Evidence) -> str:
    """The events are what the ledger counts."""
    if found.event != compose(found.releases):
        raise CheckError("the events of the certificate are not those that the ledger counts.")
    return "the events are exactly what the ledger counts."


def epsilon(found: Evidence) -> str:
    """The claim is what our accountant proves from the ledger, and not below."""
    stated, proven = found.document["guarantee"], found.guarantee
    _check_epsilon("epsilon", stated, proven.lower, proven.epsilon, found.document)
    if stated["epsilon"] > stated["budget"]["epsilon"] * (1 + 1e-9):
        raise CheckError("the claimed epsilon is above the budget.")
    return f"recomputed from the ledger: {proven.lower:.6f} to {proven.epsilon:.6f}."


def _check_epsilon(
    name: str, stated: dict[str, Any], lower: float, upper: float, document: dict[str, Any]
) -> None:
    slack = _TOLERANCE * max(1.0, upper)
    high, low = stated["epsilon"], stated["epsilon_lower"]
    if high < lower * (1 - 1e-9) or high < upper - slack:
        raise CheckError(f"{name} is claimed to be {high:.6g}, but only {upper:.6g} is proven.")
    if low > high or low > upper + slack:
        raise CheckError(f"the lower end {low:.6g} of {name} lies above what is proven, {upper:.6g}.")
    same = document["by"]["sourdine"] == own_version()  # another version may have been looser
    if same and (abs(high - upper) > slack or abs(low - lower) > slack):
        raise CheckError(
            f"{name} is claimed to be {low:.6g} to {high:.6g}; recomputed it is {lower:.6g} to "
            f"{upper:.6g}."
        )


def second_accountant(found: Evidence) -> str:
    """An accountant by others comes to an interval that meets the claim, which is not below it."""
    stated = found.document["guarantee"]
    low, high, small = stated["epsilon_lower"], stated["epsilon"], stated["delta"]
    try:
        other = opinion(found.event, stated["adjacency"], small, high)
    except NotAccountable as error:
        raise NotChecked(f"there is no second opinion. {error}") from None
    if high < other.lower:
        raise CheckError(
            f"epsilon is claimed to be {high:.6g}, but {other.method} show that it is at least "
            f"{other.lower:.6g}."
        )
    slack = _TOLERANCE * max(1.0, high)
    if low > other.upper + slack:
        raise CheckError(
            f"epsilon is claimed to be at least {low:.6g}, but {other.method} prove {other.upper:.6g}."
        )
    return f"{other.method}: {other.lower:.6f} to {other.upper:.6f}, which meets our interval."


def curve(found: Evidence) -> str:
    """Every point recomputes, and epsilon grows as delta falls."""
    points, proven = found.document["guarantee"]["curve"], found.guarantee.points
    if [point["delta"] for point in points] != [point["delta"] for point in proven]:
        raise CheckError("the points of the curve are not those that the ledger's events give.")
    for point, ours in zip(points, proven, strict=True):
        name = f"epsilon at delta {point['delta']:g}"
        _check_epsilon(name, point, ours["epsilon_lower"], ours["epsilon"], found.document)
    epsilons = [point["epsilon"] for point in points]
    if epsilons != sorted(epsilons):
        raise CheckError("epsilon falls somewhere as delta falls: that is no privacy curve.")
    return f"{len(points)} points recomputed."


def mu(found: Evidence) -> str:
    """mu where the whole is exactly Gaussian, and nowhere else."""
    stated, ours = found.document["guarantee"]["mu"], found.guarantee.mu
    if stated is None and ours is None:
        return "not exactly Gaussian, so none is claimed."
    if stated is None or ours is None or not math.isclose(stated, ours, rel_tol=1e-9):
        raise CheckError(f"mu is claimed to be {stated}, but the ledger's events give {ours}.")
    return f"mu = {ours:.6g} recomputed."


def accesses(found: Evidence) -> str:
    """Every access is paid for, or named with a reason; the costs add up to the ledger's events."""
    uses = found.document["accesses"]
    costs = [event_in(use["cost"]) for use in uses if use["cost"] not in (NOT_ACCOUNTED, NONE)]
    check_costs(costs, found.releases)
    for use in uses:
        if use["cost"] in (NOT_ACCOUNTED, NONE) and not use["why"]:
            raise CheckError(f"{use['what']!r} was not charged, and no reason is given.")
    still = [use["what"] for use in uses if use["cost"] == NOT_ACCOUNTED]
    said = f"; NOT ACCOUNTED: {'; '.join(still)}" if still else ""
    many = (
        "1 access is charged and adds"
        if len(costs) == 1
        else f"{len(costs)} accesses are charged and add"
    )
    return f"{many} up{said}."


def sampling(found: Evidence) -> str:
    """Lots were drawn by the scheme that was accounted for."""
    stated = found.document["sampling"]
    check_sampling(stated["assumed"], stated["executed"], found.releases)
    return f"stated as the events assume: {stated['executed']}."


def randomness(found: Evidence) -> str:
    """Noise came from a source that nobody can repeat."""
    source = found.document["randomness"]["source"]
    if source != SECURE:
        raise CheckError(
            f"the random source was {source!r}: whoever knows its seed subtracts the noise."
        )
    if drawn := seeded(found.history):
        raise CheckError(f"the ledger says that {drawn[0]!r} was drawn from a seeded source.")
    return "stated as secure, and the ledger says so too."


def delta(found: Evidence) -> str:
    """delta is below one in n, else publishing somebody at random would be allowed."""
    data, stated = found.document["data"], found.document["guarantee"]
    name = "users" if stated["unit"] == "user" and data["users"] != UNKNOWN else "records"
    if data[name] == UNKNOWN:
        checks.delta(stated["delta"])
        raise NotChecked(
            f"the number of {name} is UNKNOWN, so {stated['delta']:g} cannot be compared with 1/n."
        )
    checks.delta(stated["delta"], data[name])
    return f"{stated['delta']:g} is below one in {data[name]} {name}."


def audit(found: Evidence) -> str:
    """No attack has shown more than was promised."""
    stated = found.document["audit"]
    shown = (found.folder / CANARIES).exists()
    lines = audits(read(found.folder), found.document["guarantee"]["delta"]) if shown else []
    known = [] if stated == UNKNOWN else [x for x in stated if "canar" in x["attack"]]
    if len(known) != len(lines) or not all(map(Audited.agrees, lines, known)):
        raise CheckError(f"what the certificate says of its canaries does not follow from {CANARIES}.")
    if stated == UNKNOWN:
        raise NotChecked("no attack was run.")
    for finding in stated:
        promise = found.document["guarantee"]
        most = promise["epsilon"]
        if finding["delta"] < promise["delta"]:  # less may fail, so more epsilon is allowed
            most = privacy_curve(found.event, promise["adjacency"]).epsilon_upper(finding["delta"])
        if finding["lower_bound"] > most:
            raise CheckError(
                f"{finding['attack']} shows an epsilon of at least {finding['lower_bound']:.6g} at "
                f"delta={finding['delta']:g}, but {most:.6g} was promised."
            )
    return f"attacks run: {len(stated)}; none shows more than was promised."
