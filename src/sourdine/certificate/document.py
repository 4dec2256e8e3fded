"""The certificate as a document: JSON that is read strictly and stays readable for ever.

The law of this file: a field never changes its meaning and none is removed; a new field comes with a
new version, and every older version can still be read. Every field is always there; what is not known
says UNKNOWN.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sourdine.certificate.shape import FORMAT, SHAPE, UNKNOWN, VERSION, check, ordered
from sourdine.digits import above
from sourdine.errors import InputError
from sourdine.events import Event


@dataclass(frozen=True)
class Certificate:
    """What was promised, of what, under which assumptions: `text` is the JSON document.

    Made by `draft`, signed by `seal`. Any text that is no complete certificate is refused, and the
    field that is wrong is named.
    """

    text: str

    def __post_init__(self) -> None:
        document = parsed(self.text)
        check_document(document)
        object.__setattr__(self, "text", written(document))

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Certificate:
        """The certificate that holds this document."""
        try:
            return cls(json.dumps(document, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"a certificate holds texts, finite numbers, lists and objects only ({error})."
            ) from None

    @classmethod
    def from_json(cls, text: str) -> Certificate:
        """Read a certificate of this version or an older one."""
        return cls(text)

    def to_json(self) -> str:
        """The same text for the same facts: fields in their order, free ones by name."""
        return self.text

    @property
    def document(self) -> dict[str, Any]:
        """The whole document, as a copy of your own."""
        found: dict[str, Any] = json.loads(self.text)
        return found

    @property
    def epsilon(self) -> float:
        """The proven bound."""
        return float(self.document["guarantee"]["epsilon"])

    @property
    def delta(self) -> float:
        return float(self.document["guarantee"]["delta"])

    @property
    def event(self) -> Event:
        """All that was spent."""
        return Event.from_json(json.dumps(self.document["events"]))

    @property
    def signed(self) -> bool:
        """Whether there is a signature; `verify` tells whether it is right."""
        return bool(self.document["signature"] != UNKNOWN)

    def _repr_html_(self) -> str:
        """A short table for Jupyter."""
        document = self.document
        promise = document["guarantee"]
        open_ends = [use["what"] for use in document["accesses"] if use["cost"] == "NOT ACCOUNTED"]
        rows = {
            "guarantee": f"epsilon ≤ {above(promise['epsilon'], 5)} at delta = {promise['delta']:g}",
            "per": f"{promise['unit']} ({promise['adjacency']})",
            "budget": f"epsilon {promise['budget']['epsilon']:g}",
            "released": document["released"]["what"],
            "not accounted": "; ".join(open_ends) or "nothing",
            "signed by": document["signature"]["public_key"] if self.signed else "nobody yet (a draft)",
        }
        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(str(value))}</td></tr>"
            for name, value in rows.items()
        )
        return f"<table>{cells}</table>"


def parsed(text: str) -> dict[str, Any]:
    """The JSON object in a text, without doubled keys or numbers that are none."""
    try:
        document = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except InputError:
        raise
    except (TypeError, ValueError, RecursionError):
        raise InputError(
            "this certificate is no complete JSON document: it was cut short or is something else; ask "
            "for it again."
        ) from None
    if not isinstance(document, dict):
        raise InputError("this JSON document is no certificate: it is not an object.")
    return document


def check_document(document: Mapping[str, Any]) -> None:
    """Refuse what is no certificate of a version that can be read, and name the field."""
    if document.get("format") != FORMAT:
        raise InputError(
            f'this JSON document is no certificate: one says "format": "{FORMAT}" at its top.'
        )
    version = document.get("version")
    if isinstance(version, int) and not isinstance(version, bool) and version > VERSION:
        raise InputError(
            f"this certificate has version {version}, newer than the version {VERSION} that this "
            "sourdine reads: update sourdine."
        )
    check("the certificate", document, SHAPE)


def written(document: Mapping[str, Any]) -> str:
    """The text of a document that was checked."""
    return json.dumps(ordered(document, SHAPE), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"the field {twice!r} stands twice in this certificate: it was tampered with.")
    return found


def _refuse(word: str) -> None:
    raise InputError(f"this certificate holds {word}, which is no number: it proves nothing.")
