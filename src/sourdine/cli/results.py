"""How the verbs say what a model reaches: every accuracy beside what always one answer reaches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SHOWN = 20  # names of classes


def results(metrics: Mapping[str, Any]) -> list[str]:
    """Metrics as lines: each with its interval, then what they mean and how they were measured."""
    from sourdine.report.reading import confidence, measurements, strings, useless  # noqa: PLC0415

    sure = f" with {found.replace(' ', '')} confidence" if (found := confidence(metrics)) else ""
    said = [
        f"{one.name} {one.value:.3f} ({one.low:.3f} to {one.high:.3f}{sure})"
        for one in measurements(metrics)
    ]
    said += [useless(metrics), str(metrics.get("how", ""))]
    names = strings(metrics.get("classes"))
    if names:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        said.append(f"classes: {', '.join(names[:_SHOWN])}{more}")
    return [line for line in said if line]


def how_to_check(folder: Path) -> list[str]:
    """The command that checks a folder of yours, and the key that others have to pin."""
    from sourdine.certificate import public_key  # noqa: PLC0415 (accounting: only now)

    return [
        f"check it: sourdine verify {folder}",
        f"others add --key {public_key()}; give them this public key by another way than the folder",
    ]
