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

_MARKS = {True: "✓", False: "✗", None: "–"}


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

    A folder is "verified" if every check passes and it was signed with the key that you pin with --key.
    Without --key it can only be "consistent": anybody may have made the whole of it. Whether the
    training ran as stated is the signer's word. A tick marks a check that passed, a cross one that
    failed, a dash what the folder alone cannot show. Exit code 0 if no check fails, 4 if one does,
    2 if there is no certificate.

    Example: `sourdine verify out/ --key alice.pub`
    """
    from sourdine.certificate import verify as verified  # noqa: PLC0415

    verdict = verified(folder, key=key)
    if json:
        print_json(_record(verdict))
    else:
        print(_said(verdict))
        for check in verdict.checks:
            print(f"  {_MARKS[check.passed]} {check.name:<18}  {check.sentence}")
    if not verdict.passed:
        raise CheckError(f"{folder} is not verified; these checks failed: {', '.join(verdict.failed)}.")


def _said(verdict: Verdict) -> str:
    """The verdict in one line, rounded to the safe side."""
    if not verdict.passed or verdict.certificate is None:
        return f"NOT VERIFIED: {len(verdict.failed)} of {len(verdict.checks)} checks failed."
    promise = verdict.certificate.document["guarantee"]
    return (
        f"{_found(verdict)}: epsilon <= {above(promise['epsilon'])} at delta = "
        f"{promise['delta']:g} per {promise['unit']} ({promise['adjacency']})."
    )


def _found(verdict: Verdict) -> str:
    if verdict.verified:
        return "verified"
    own = verdict.signer != "UNKNOWN"
    return "consistent; signed by your own key" if own else "consistent; signer UNKNOWN"


def _record(verdict: Verdict) -> dict[str, object]:
    promise = verdict.certificate.document["guarantee"] if verdict.certificate else {}
    signature = verdict.certificate.document["signature"] if verdict.certificate else {}
    names = ("epsilon", "epsilon_lower", "delta", "unit", "adjacency")
    return {
        "verified": verdict.verified,
        "consistent": verdict.passed,
        **{name: promise.get(name) for name in names},
        "signer": signature.get("public_key") if isinstance(signature, dict) else None,
        "signer_known_as": verdict.signer,
        "failed": list(verdict.failed),
        "not_checked": list(verdict.not_checked),
        "checks": [asdict(check) for check in verdict.checks],
    }
