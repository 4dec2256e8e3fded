"""A folder of encodings that a stranger can check: the file, its ledger, a report, a certificate.

Guarantee: the certificate is drawn up from the ledger, which was charged before anything was drawn.
TextHide and the published scheme get a folder without one, that says so on its first line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from sourdine import certificate as papers
from sourdine.certificate import Access, Certificate
from sourdine.digits import above
from sourdine.encoding.encoder import InstanceEncoder
from sourdine.encoding.encodings import FILE, Encodings
from sourdine.encoding.labels import Public, Randomized
from sourdine.errors import InputError, SourdineError
from sourdine.events import compose
from sourdine.ledger import Ledger
from sourdine.ledger.shared import published
from sourdine.modes import for_release
from sourdine.report.page import page
from sourdine.report.reading import NOTHING_TRAINED

_NOTHING = compose([])
_NUMBERS = "fp32 noise from 32-bit words of ChaCha20 (Gaussian), fp64 from 53 bits (Laplace), on a grid"


@dataclass(frozen=True)
class About:
    """What the certificate says beside the encodings: the data, by a keyed hash, and the encoder."""

    fingerprint: str
    records: int
    text: tuple[str, ...]
    label: str | None
    base: str


def seal(folder: Path, encodings: Encodings, encoder: InstanceEncoder, about: About) -> Certificate:
    """Writes everything and seals it; of a shared ledger the folder gets this release's entries.

    Only what the encoder drew last is sealed. Where something goes wrong the encodings are removed, so
    that no folder holds them without a certificate.
    """
    if encodings is not encoder.made:
        raise InputError("these encodings are not what the encoder drew; nothing was charged for them.")
    try:
        encodings.save(folder / FILE)
        metrics: dict[str, Any] = {}
        (folder / "metrics.json").write_text(json.dumps(metrics) + "\n", encoding="utf-8")
        ledger = published(encoder.ledger, encoder.entries, folder)
        draft = _draft(encodings, encoder, ledger, about)
        document = draft.document
        (folder / "README.md").write_text(_readme(document, encodings), encoding="utf-8")
        (folder / "report.html").write_text(page(document, metrics), encoding="utf-8")
        papers.seal(folder, draft)
        return Certificate.from_json((folder / "certificate.json").read_text("utf-8"))
    except (OSError, SafetensorError) as error:
        (folder / FILE).unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or "no room, or no right to write"
        raise SourdineError(
            f"{folder} cannot be written: {reason}. What was charged stays charged, and nothing was "
            "released; make room, and encode into another folder."
        ) from None
    except BaseException:
        (folder / FILE).unlink(missing_ok=True)
        raise


def write_plain(folder: Path, encodings: Encodings) -> None:
    """A folder without a certificate, and the reason."""
    reason = str(encodings.about.get("privacy", "no privacy"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        encodings.save(folder / FILE)
        lines = [
            f"# NOT PRIVATE: {reason}",
            "",
            f"{len(encodings)} encodings, {encodings.about['mode']}.",
        ]
        lines += [str(encodings.about.get("guarantee", ""))]
        (folder / "README.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
        for_release(folder)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or "no room, or no right to write"
        raise SourdineError(f"{folder} cannot be written: {reason}; make room.") from None


def _draft(encodings: Encodings, encoder: InstanceEncoder, ledger: Ledger, about: About) -> Certificate:
    event = compose([entry.event for entry in ledger.history()])
    tuned = encoder.tuned
    what = "noisy vectors of all records"
    if isinstance(encoder.labels, Public):
        what += ", with their labels as they are"
    else:
        what += f", with labels {encoder.labels.said}"
    named = papers.sampling(event)
    absent = {"replace-one": "is replaced by another", "zero-out": "becomes nothing"}
    frozen = "map and clip" if tuned is not None else "encoder, map and clip"
    why = "charged before anything was drawn"
    accesses = [
        Access(what, event, why if tuned is None else f"{why}, with the training of the encoder"),
        Access(
            "the number of records",
            _NOTHING,
            f"public: under {encoder.budget.adjacency} a record {absent[encoder.budget.adjacency]}",
        ),
        Access("the label set", _NOTHING, "declared by the owner, not read off the data"),
        Access(frozen, _NOTHING, "made without these records; the owner declares it"),
    ]
    if isinstance(encoder.labels, Public):
        accesses.append(Access("the label of every record", None, "the owner declares labels public"))
    how = {**encodings.about}
    if isinstance(encoder.labels, Randomized):
        how["label_share"] = encoder.labels.share
    return papers.draft(
        ledger,
        shared=encoder.shared,
        what=f"{len(encodings)} encodings: {what}",
        to="anyone",
        contribution_bound=1,
        accesses=accesses,
        sampling_assumed=named,
        sampling_executed=named,
        source=encoder.source.kind,
        numbers=_NUMBERS,
        utility={},
        data={
            "fingerprint": about.fingerprint,
            "records": about.records,
            "users": "UNKNOWN",
            "text": list(about.text),
            "label": about.label,
        },
        model={"base": about.base, "trained": NOTHING_TRAINED},
        training={**how, "map": "none" if encodings.map is None else encodings.map.name},
        not_covered=_not_covered(encoder),
    )


def _not_covered(encoder: InstanceEncoder) -> list[str]:
    said = [
        "A person with several records: each of them is protected by itself.",
        "Records that copy or describe each other: what one gives away, the others give away too.",
        "That the map and the clip were made without these records, and the encoder too unless its "
        "training is charged here, is the owner's word.",
        "Other releases of the same records, such as a second folder: their epsilons add up.",
    ]
    if isinstance(encoder.labels, Public):
        said.insert(0, "Labels: the owner declares them public, and they are released as they are.")
    return said


def _readme(document: Mapping[str, Any], encodings: Encodings) -> str:
    promise = document["guarantee"]
    about = "".join(f"- {name}: {value}\n" for name, value in encodings.about.items())
    return (
        f"# Private encodings\n\n{len(encodings)} vectors of {encodings.vectors.shape[1]} numbers. "
        f"Epsilon is at most {above(promise['epsilon'])} at delta = {promise['delta']:g} per "
        f"{promise['unit']} ({promise['adjacency']}); whatever is made of them costs "
        f"no more.\n\n{about}\n"
        "```python\nfrom sourdine.encoding import Encodings, noise_aware\n\n"
        'encodings = Encodings.load("this folder")\nhead = noise_aware(encodings)\n'
        "scores = head.scores(encodings.seen(features))\n```\n\n"
        "Check it: `sourdine verify` on this folder, with the signer's public key as `--key`.\n\n"
        "Not covered:\n\n" + "".join(f"- {line}\n" for line in document["not_covered"])
    )
