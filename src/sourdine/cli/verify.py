"""`sourdine verify`: does a run folder hold together, and is its epsilon true?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sourdine.cli.options import Config, Json, print_json
from sourdine.digits import above
from sourdine.errors import CheckError

if TYPE_CHECKING:
    from sourdine.certificate import Verdict


def verify(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    key: Annotated[
        str | None,
        typer.Option(
            "--key", help="The signer's public key: 64 hex digits, or a file that holds them."
        ),
    ] = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Check a run folder: files, signature, ledger, and epsilon by two accountants.

    Exit code 0 if every check passes, 4 if one fails, 2 if there is no certificate. It can not show
    that the training ran as stated: that is the signer's word, so pin a key that you trust with --key.

    Example: `sourdine verify out/ --key alice.pub`
    """
    from sourdine.certificate import verify as verified  # noqa: PLC0415

    verdict = verified(folder, key=key)
    if json:
        print_json(_record(verdict))
    else:
        print(_said(verdict))
        for check in verdict.checks:
            mark = "✓" if check.passed else "✗"
            print(f"  {mark} {check.name:<18}  {check.sentence}")
    if not verdict.passed:
        raise CheckError(f"{folder} is not verified; these checks failed: {', '.join(verdict.failed)}.")


def _said(verdict: Verdict) -> str:
    """The verdict in one line, rounded to the safe side."""
    if not verdict.passed or verdict.certificate is None:
        return f"NOT VERIFIED: {len(verdict.failed)} of {len(verdict.checks)} checks failed."
    promise = verdict.certificate.document["guarantee"]
    return (
        f"verified: epsilon <= {above(promise['epsilon'])} at delta = {promise['delta']:g} per "
        f"{promise['unit']} ({promise['adjacency']})."
    )


def _record(verdict: Verdict) -> dict[str, object]:
    promise = verdict.certificate.document["guarantee"] if verdict.certificate else {}
    signature = verdict.certificate.document["signature"] if verdict.certificate else {}
    names = ("epsilon", "epsilon_lower", "delta", "unit", "adjacency")
    return {
        "verified": verdict.passed,
        **{name: promise.get(name) for name in names},
        "signer": signature.get("public_key") if isinstance(signature, dict) else None,
        "failed": list(verdict.failed),
        "checks": [asdict(check) for check in verdict.checks],
    }
