"""The report of a run: one self-contained HTML file, rendered from its certificate and metrics.

It takes plain mappings, as they stand in certificate.json and metrics.json, and opens no file but its
own template. The same input gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sourdine.report import fields, plots, words
from sourdine.report.findings import LEVELS, Findings, Guarantee, delta_too_large, find
from sourdine.report.reading import (
    ABSENCE,
    Access,
    accesses,
    classes,
    confidence,
    environment,
    measurements,
    named,
    number,
    section,
    strings,
    subject,
    text,
    useless,
)
from sourdine.report.words import NOT_ACCOUNTED, UNKNOWN

ALARMS = (0.001, 0.01, 0.05, 0.1, 0.5)
ROWS = (2, 5)
_USUAL = 0.01  # the share of false alarms that the page leads with


@dataclass(frozen=True)
class Attack:
    """What an attack has proven, beside what was claimed."""

    name: str
    bound: str
    claim: str
    confidence: str
    delta: str
    verdict: str
    mark: str


def page(
    certificate: Mapping[str, Any],
    metrics: Mapping[str, Any] | None,
    *,
    attacks: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The report as HTML.

    certificate: a certificate or its draft; metrics: released metrics, or None; attacks: results beyond
    those that the certificate's audit holds, with its keys.
    Raises InputError where the certificate has no readable guarantee or its events are damaged.
    """
    found = find(certificate)
    promised, audit = found.guarantee, certificate.get("audit")
    tried = [*(audit if isinstance(audit, list | tuple) else ()), *attacks]
    proven = [_attack(result, found) for result in tried if isinstance(result, Mapping)]
    listed, broken, released = accesses(certificate), _broken(found, proven), metrics or {}
    template = environment().get_template("page.html")
    return template.render(
        found=found,
        promised=promised,
        levels=LEVELS,
        words=words,
        infinite=math.inf,
        confidence=confidence(released),
        plots=plots,
        absence=ABSENCE[promised.adjacency],
        title=subject(certificate),
        this=named(certificate),
        made=text(certificate, "made"),
        released=section(certificate, "released"),
        level=LEVELS[-1] if broken else found.level,
        broken=broken,
        warnings=_warnings(certificate, promised, listed),
        usual=_USUAL,
        alarms=ALARMS,
        rows=ROWS,
        accesses=[
            (access, "–" if cost is None else words.above(cost))
            for access, cost in zip(listed, found.costs, strict=True)
        ],
        measured=measurements(released),
        metrics=released,
        useless=useless(released),
        classes=classes(released),
        reference=section(released, "reference"),
        attacks=proven,
        shown=_shown(tried, promised),
        not_covered=strings(certificate.get("not_covered")),
        parts=fields.parts(certificate),
        bound=text(section(certificate, "guarantee"), "contribution_bound"),
        teachers=_teachers(certificate),
    )


def _teachers(certificate: Mapping[str, Any]) -> Mapping[str, Any]:
    """How teachers were asked, where the model is a student of theirs, else nothing."""
    found = section(certificate, "training")
    names = ("teachers", "asked", "questions", "answered", "answers")
    return found if all(isinstance(found.get(name), int) for name in names) else {}


def _broken(found: Findings, proven: Sequence[Attack]) -> list[str]:
    """Why the claim cannot be true; empty where nothing speaks against it."""
    said = []
    if found.agrees is False:
        said.append(
            "The events in this certificate cost more than it claims; sourdine verify tells what is "
            "wrong."
        )
    if any(attack.mark for attack in proven):
        said.append("An attack has proven more than is claimed; the table of attacks names it.")
    return said


def _warnings(
    certificate: Mapping[str, Any], promised: Guarantee, accesses: Sequence[Access]
) -> list[str]:
    """What a reader must know beside the verdict."""
    said = []
    if delta_too_large(promised, certificate):
        said.append(
            f"Delta is not below 1 over the number of {promised.person}s: publishing one at random "
            "would be allowed. That counts as weak, whatever epsilon is."
        )
    if section(certificate, "randomness").get("source") not in ("secure", UNKNOWN, None):
        said.append("The random numbers were not secret: whoever knows their seed removes the noise.")
    missing = [access.what for access in accesses if access.cost == NOT_ACCOUNTED]
    if missing:
        said.append(f"Not accounted, and so not in this number: {'; '.join(missing)}.")
    return said


def _shown(tried: Sequence[object], promised: Guarantee) -> str:
    """The largest epsilon that an attack proves at the claim's delta or a larger one; "" for none."""
    least = promised.delta * (1 - 1e-9)
    found = [
        result["lower_bound"]
        for result in tried
        if isinstance(result, Mapping)
        and number(result.get("lower_bound"))
        and number(result.get("delta"))
        and result["delta"] >= least
    ]
    return words.below(max(found)) if found and max(found) > 0 else ""


def _attack(result: Mapping[str, Any], found: Findings) -> Attack:
    """One line of the table of attacks.

    A bound at a smaller delta than the claim's may lie above it without contradiction.
    """
    bound, delta = result.get("lower_bound"), result.get("delta")
    claim = found.guarantee
    compares = number(delta) and delta >= claim.delta * (1 - 1e-9)
    broken = number(bound) and compares and bound > claim.epsilon
    verdict = "above the claim" if broken else "below the claim"
    if not number(bound):
        verdict = UNKNOWN
    elif bound > claim.epsilon and not compares:
        verdict = "not comparable: another delta"
    confidence = result.get("confidence")
    return Attack(
        str(result.get("attack", UNKNOWN)),
        words.below(bound) if number(bound) else UNKNOWN,
        words.above(claim.epsilon),
        f"{confidence:.4g}" if number(confidence) else UNKNOWN,
        words.number(delta) if number(delta) else UNKNOWN,
        verdict,
        "warning" if broken else "",
    )
