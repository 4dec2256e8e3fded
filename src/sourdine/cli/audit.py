"""`sourdine audit`: does a run show more than it claims?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sourdine.cli.options import Config, Json, print_json
from sourdine.digits import above, below
from sourdine.errors import CheckError, InputError

KEPT, BROKEN = "nothing above the claim", "CLAIM BROKEN"


def audit(
    folder: Annotated[Path, typer.Argument(help="The folder of a run trained with --audit.")],
    confidence: Annotated[
        float, typer.Option("--confidence", help="How sure the lower bound is to be.")
    ] = 0.95,
    json: Json = False,
    config: Config = None,
) -> None:
    """Hold what the canaries of a run show against what it claims.

    The claim bounds leakage from above, the canaries bound it from below. Exit code 4 if the lower
    bound is above the claim. One below it does not prove the claim: stronger attacks may exist.

    Example: `sourdine audit notes-run`
    """
    from sourdine.audit.scored import bounds, read  # noqa: PLC0415

    claimed, delta, place = _claim(folder)
    shown = read(folder)
    found = bounds(shown, delta, confidence)
    best = max(range(len(found)), key=lambda one: found[one].epsilon)
    lower = found[best].epsilon
    verdict = BROKEN if lower > claimed else KEPT
    if json:
        print_json(
            {
                "claimed_epsilon": claimed,
                "lower_bound": lower,
                "confidence": confidence,
                "delta": delta,
                "verdict": verdict,
                "attack": shown[best].kind,
                "bounds": [
                    {"attack": x.kind, **asdict(bound)} for x, bound in zip(shown, found, strict=True)
                ],
            }
        )
    else:
        print(f"{verdict}.")
        print(f"  claimed  epsilon <= {above(claimed)} at delta = {delta:g}, by {place}")
        print(f"  shown    epsilon >= {below(lower)} with confidence {confidence:g}")
        for x, bound in zip(shown, found, strict=True):
            right = f"{bound.correct} of {bound.guesses} guesses right"
            print(f"           {below(bound.epsilon)} by {x.kind}: {right} ({bound.method})")
    if lower > claimed:
        raise CheckError(
            f"{folder} gives away more than it claims: an epsilon of at least {below(lower)}, where "
            f"{above(claimed)} is claimed. Do not give the model away; look for noise or clipping "
            "that is not what was accounted for."
        )


def _claim(folder: Path) -> tuple[float, float, str]:
    """Epsilon and delta that a run claims, and where it says so."""
    from sourdine.certificate import Certificate  # noqa: PLC0415
    from sourdine.certificate.facts import guarantee  # noqa: PLC0415
    from sourdine.ledger import Ledger  # noqa: PLC0415

    paper, record = folder / "certificate.json", folder / "ledger.sqlite"
    if paper.exists():
        promise = Certificate.from_json(paper.read_text("utf-8")).document["guarantee"]
        return promise["epsilon"], promise["delta"], "the certificate"
    if record.exists():
        ledger = Ledger(record)
        return guarantee(ledger).epsilon, ledger.budget.delta, "the ledger: there is no certificate"
    raise InputError(f"{folder} holds neither a certificate nor a ledger; name the folder of a run.")
