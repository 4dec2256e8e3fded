"""The model card of a run, in the format of the Hugging Face hub, with a section on privacy."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from sourdine.report import fields, words
from sourdine.report.findings import guarantee
from sourdine.report.reading import (
    ABSENCE,
    accesses,
    classes,
    confidence,
    environment,
    measurements,
    section,
    strings,
    subject,
    text,
    useless,
)

_METRICS = {"accuracy": "accuracy", "macro_f1": "f1", "matthews": "matthews_correlation"}
# What starts emphasis, code, links, tags, entities, cells, lists or headings; and bare addresses.
_MARKUP = re.compile(r"[\\`*_\[\]<>#|~&$]|:(?=//)|(?<=www)\.|^[-+=](?=\s|$)")
_NUMBERED = re.compile(r"^(\d+)([.)])(?=\s|$)")
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*|[A-Za-z0-9]+(-[A-Za-z0-9]+)+")


def card(
    certificate: Mapping[str, Any], metrics: Mapping[str, Any] | None, *, example: str = ""
) -> str:
    """The card as Markdown with its YAML head; text that comes from elsewhere is escaped.

    example: a text to classify, shown in the code; never one of the private ones.
    Raises InputError where the certificate has no readable guarantee or its events are damaged.
    """
    promised = guarantee(certificate)
    model, audit, released = section(certificate, "model"), certificate.get("audit"), metrics or {}
    base = text(model, "base")
    templates = environment().overlay()
    templates.filters = {**templates.filters, "md": escaped, "sentence": _sentence}
    settings = {
        **{key: model[key] for key in model if key != "base"},
        **section(certificate, "training"),
    }
    return templates.get_template("card.md").render(
        title=escaped(subject(certificate)),
        license=json.dumps(str(model.get("license", "unknown"))),
        base_model=json.dumps(base) if _HUB.fullmatch(base) else "",
        metric_names=[_METRICS[name] for name in _METRICS if name in released],
        promised=promised,
        epsilon=words.above(promised.epsilon),
        delta=words.above(promised.delta),
        absence=ABSENCE[promised.adjacency],
        bound=text(section(certificate, "guarantee"), "contribution_bound"),
        release=section(certificate, "released"),
        sampling=section(certificate, "sampling"),
        randomness=section(certificate, "randomness"),
        attacks=f"{len(audit)}" if isinstance(audit, list | tuple) else "none",
        accesses=accesses(certificate),
        example=json.dumps(example or "a text to classify", ensure_ascii=False),
        settings=[
            ("base", base),
            *((key.replace("_", " "), fields.plain(value)) for key, value in settings.items()),
        ],
        measured=measurements(released),
        reference=bool(section(released, "reference")),
        how=str(released.get("how", "No metrics were released")),
        useless=useless(released),
        classes=classes(released),
        confidence=confidence(released),
        not_covered=strings(certificate.get("not_covered")),
        named=any("Brown" in item for item in strings(certificate.get("not_covered"))),
    )


def escaped(foreign: object) -> str:
    """Text that Markdown shows as it is: one line, a backslash before every sign that means something.

    CommonMark takes a backslash before ASCII punctuation as that sign itself, so neither Markdown nor
    HTML in the text comes alive.
    """
    line = _MARKUP.sub(r"\\\g<0>", " ".join(str(foreign).split()))
    return _NUMBERED.sub(r"\1\\\2", line)


def _sentence(line: str) -> str:
    """The same with a capital letter and a full stop."""
    bare = line.rstrip(". ")
    return f"{bare[:1].upper()}{bare[1:]}."
