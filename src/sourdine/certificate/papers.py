"""Checks of the folder and of the document as a document.

Each returns a sentence, or raises one: a CheckError for what is wrong, NotChecked for what a folder
alone cannot show.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from sourdine.certificate import keys
from sourdine.certificate.document import check_document, parsed
from sourdine.certificate.evidence import Evidence, NotChecked
from sourdine.certificate.sealing import METRICS, digest, signed_bytes
from sourdine.certificate.shape import UNKNOWN, VERSION, digits
from sourdine.errors import CheckError, InputError

_SKEW = timedelta(minutes=10)  # clocks of two machines


def readable(found: Evidence) -> str:
    """Complete, of a known version, every field there and of its kind, no other field."""
    check_document(parsed(found.text))
    return f"complete, version {VERSION}, every field in its place."


def signature(found: Evidence) -> str:
    """The signature belongs to the document as it stands."""
    stated = found.document["signature"]
    if stated == UNKNOWN:
        raise CheckError("this is a draft that nobody has signed.")
    if stated["algorithm"] != "Ed25519" or not keys.signed_by(
        signed_bytes(found.document), stated["value"], stated["public_key"]
    ):
        raise CheckError(
            "the signature does not belong to this text: it was changed after it was signed."
        )
    return "the text is what was signed (Ed25519)."


def signer(found: Evidence) -> str:
    """Who signed: the one that was pinned, you, or somebody unknown."""
    stated = found.document["signature"]
    public = "nobody" if stated == UNKNOWN else str(stated["public_key"])
    if found.key is not None:
        if public != found.key:
            raise CheckError(f"signed by {public}, not by the key that you trust, {found.key}.")
        return f"signed by the key that you trust, {public}."
    if public == _own_key():
        return f"signed by your own key, {public}."
    raise NotChecked(
        f"unknown signer, {public}: anybody may have made this folder. Get the key from the signer, by "
        "another way than this folder, and pin it with --key."
    )


def _own_key() -> str | None:
    """Your own key, if you have one that can be read: whose folder it is does not depend on that."""
    try:
        return keys.own_public_key()
    except InputError:
        return None


def files(found: Evidence) -> str:
    """Each listed file is there, with the content that was signed."""
    listed: dict[str, str] = found.document["released"]["files"]
    if strange := [name for name in found.listing.strange if name in listed]:
        raise CheckError(
            f"{_names(strange)} is a link or no plain file; it must lie in the folder itself."
        )
    if gone := [name for name in listed if name not in found.listing.files]:
        raise CheckError(f"{_names(gone)} was listed and is missing.")
    if other := [name for name in listed if digest(found.folder / name) != listed[name]]:
        raise CheckError(f"{_names(other)} is not what was signed: its SHA-256 differs.")
    return f"all {len(listed)} files are what was signed (SHA-256)."


def no_others(found: Evidence) -> str:
    """No file that the certificate does not list, and none that is never for release."""
    listed = found.document["released"]["files"]
    there = (*found.listing.files, *found.listing.strange)
    if extra := [name for name in there if name not in listed]:
        raise CheckError(f"{_names(extra)} lies in the folder and was never signed.")
    if found.listing.working:
        raise CheckError(f"{_names(found.listing.working)} is a working file that is not for release.")
    return "nothing in the folder is unsigned or a working file."


def required(found: Evidence) -> str:
    """A run folder's usual files are there."""
    if found.listing.missing:
        raise CheckError(
            f"{', '.join(found.listing.missing)} is missing: this is no complete run folder."
        )
    return "weights, ledger, metrics, model card and report are there."


def metrics(found: Evidence) -> str:
    """The released metrics are those of the certificate."""
    if METRICS not in found.listing.files:
        raise CheckError(f"there is no {METRICS} to compare with.")
    if json.loads((found.folder / METRICS).read_text(encoding="utf-8")) != found.document["utility"]:
        raise CheckError(f"{METRICS} says something else than the certificate's utility.")
    return f"{METRICS} says what the certificate says."


def fingerprint(found: Evidence) -> str:
    """The fingerprint of the data has the form of one."""
    stated = found.document["data"]["fingerprint"]
    if stated == UNKNOWN:
        raise NotChecked("it is UNKNOWN, so nobody can tell later which data these were.")
    if not digits(stated, 64):
        raise CheckError("the fingerprint of the data is not 64 hex digits: it is none.")
    raise NotChecked("only the owner of the fingerprint's key can compare it with data.")


def not_covered(found: Evidence) -> str:
    """Limits are stated: there is no guarantee without any."""
    stated = found.document["not_covered"]
    if not isinstance(stated, list) or not stated:
        raise CheckError("nothing is named that the guarantee does not cover: no guarantee covers all.")
    return f"limits of the guarantee that are named: {len(stated)}."


def date(found: Evidence) -> str:
    """Made in the past, and after the last entry of its ledger."""
    made = datetime.fromisoformat(found.document["made"])
    if made.tzinfo is None:
        raise CheckError("the date has no time zone: it says no moment.")
    if made > datetime.now(UTC) + _SKEW:
        raise CheckError(f"made at {made.isoformat()}, which is in the future.")
    last = max((datetime.fromisoformat(entry.at) for entry in found.history), default=made)
    if last > made + _SKEW:
        raise CheckError(f"made before the last entry of its ledger, of {last.isoformat()}.")
    return f"made at {made.isoformat(timespec='minutes')}, after the last entry of its ledger."


def _names(names: list[str]) -> str:
    first = ", ".join(sorted(names)[:3])
    return first if len(names) <= 3 else f"{first} and {len(names) - 3} more"
