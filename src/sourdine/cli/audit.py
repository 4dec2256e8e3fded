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
BLUNT = "too few canaries to break this claim"


def audit(
    folder: Annotated[Path, typer.Argument(help="The folder of a run trained with --audit.")],
    json: Json = False,
    config: Config = None,
) -> None:
    """Hold what the canaries of a run show against what it claims.

    The claim bounds leakage from above, the canaries bound it from below, with a confidence of 0.95.
    Exit code 4 if the lower bound is above the claim, or if the folder is not what was sealed. A bound
    below the claim does not prove it: stronger attacks, and faults that spare canaries, may exist.

    Example: `sourdine audit notes-run`
    """
    from sourdine.audit.scored import CONFIDENCE, audits, read  # noqa: PLC0415

    claimed, delta, place = _claim(folder)
    found = audits(read(folder), delta)
    best = max(found, key=lambda one: one.bound.epsilon)
    lower, most = best.bound.epsilon, max(one.most for one in found)
    verdict = BROKEN if lower > claimed else KEPT if most > claimed else BLUNT
    if json:
        print_json(
            {
                "claimed_epsilon": claimed,
                "lower_bound": lower,
                "confidence": CONFIDENCE,
                "delta": delta,
                "verdict": verdict,
                "most_that_could_show": most,
                "attack": best.kind,
                "attacks": [
                    {"attack": one.kind, "most": one.most, **asdict(one.bound)} for one in found
                ],
            }
        )
    else:
        print(f"{verdict}.")
        print(f"  claimed  epsilon <= {above(claimed)} at delta = {delta:g}, by {place}")
        print(f"  shown    epsilon >= {below(lower)} with confidence {CONFIDENCE:g}")
        print(f"           of {below(most, 3)} at most that these canaries could show")
        for one in found:
            right = f"{one.bound.correct} of {one.bound.guesses} guesses right"
            print(f"           {below(one.bound.epsilon)} by {one.kind}: {right}")
    if lower > claimed:
        raise CheckError(
            f"{folder} gives away more than it claims: an epsilon of at least {below(lower)}, where "
            f"{above(claimed)} is claimed. Do not give the model away; look for noise or clipping "
            "that is not what was accounted for."
        )


def _claim(folder: Path) -> tuple[float, float, str]:
    """Epsilon and delta that a run claims, and where it says so; a sealed folder must be whole."""
    from sourdine.certificate import guarantee, verify  # noqa: PLC0415
    from sourdine.ledger import Ledger  # noqa: PLC0415

    if (folder / "certificate.json").exists():
        verdict = verify(folder)
        if not verdict.passed or verdict.certificate is None:
            raise CheckError(
                f"{folder} is not what was sealed, so an audit of it says nothing; sourdine verify "
                f"tells more. These checks failed: {', '.join(verdict.failed)}."
            )
        promise = verdict.certificate.document["guarantee"]
        return promise["epsilon"], promise["delta"], "the certificate"
    if (folder / "ledger.sqlite").exists():
        ledger = Ledger(folder / "ledger.sqlite")
        return (
            guarantee(ledger).epsilon,
            ledger.budget.delta,
            "the ledger alone: nothing vouches for these files",
        )
    raise InputError(
        f"{folder} holds neither a certificate nor a ledger, so it claims nothing; name the folder of "
        "a private run."
    )
