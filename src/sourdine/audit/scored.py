"""What an audit of one run looks at: a coin and a score for each canary, and the file they lie in.

Coins decide which canaries took part; scores are high for those that did (sgd/canaries.py). Both may be
released with the run: coins are about nobody, and scores are made of what the run's event covers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sourdine.audit.bound import Bound
from sourdine.audit.rules import lower_bound
from sourdine.digits import below
from sourdine.errors import InputError

FILE = "canaries.json"
_FORMAT, _VERSION = "sourdine.canaries", 1


@dataclass(frozen=True, eq=False)
class Scored:
    """Canaries of one run. kind: what they are, in words."""

    kind: str
    coins: NDArray[np.bool_]
    scores: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.coins.shape != self.scores.shape or self.coins.ndim != 1 or self.coins.dtype != bool:
            raise InputError("an audit needs a coin and a score for each canary.")


CONFIDENCE = 0.95
"""Of a whole audit. It is no option: whoever may choose it after looking makes any run look sound."""


@dataclass(frozen=True)
class Audited:
    """What one kind of canaries shows, and the most it could have shown, had every guess been right.

    A claim above `most` cannot be broken by so few canaries, however broken the run.
    """

    kind: str
    bound: Bound
    most: float

    def agrees(self, line: Mapping[str, Any]) -> bool:
        """Whether a line of a certificate says this; another machine may round the last digits."""
        own = self.line()
        near = (abs(line[name] - own[name]) <= 1e-6 for name in ("lower_bound", "confidence"))
        return line["attack"].startswith(self.kind) and line["delta"] == own["delta"] and all(near)

    def line(self) -> dict[str, Any]:
        """As a certificate has it."""
        return {
            "attack": f"{self.kind}, with or without each; {below(self.most, 3)} at most could show",
            "lower_bound": self.bound.epsilon,
            "confidence": self.bound.confidence,
            "delta": self.bound.delta,
        }


def audits(shown: Sequence[Scored], delta: float) -> list[Audited]:
    """A lower bound on epsilon for each kind of canary, all true at once with CONFIDENCE.

    The kinds share out what may go wrong (Bonferroni), and the rule of each was fixed before anyone saw
    a score (audit/rules.py): so the largest may be taken.
    """
    each = 1 - (1 - CONFIDENCE) / max(1, len(shown))
    found = []
    for x in shown:
        bound = lower_bound(x.scores, x.coins, delta=delta, confidence=each)
        perfect = lower_bound(x.coins.astype(float), x.coins, delta=delta, confidence=each)
        found.append(Audited(x.kind, bound, perfect.epsilon))
    return found


def write(folder: Path, shown: Sequence[Scored]) -> None:
    """Into the run folder; scores with nine digits."""
    listed = [
        {
            "kind": x.kind,
            "coins": [int(coin) for coin in x.coins],
            "scores": [float(f"{score:.9g}") for score in x.scores],
        }
        for x in shown
    ]
    plain = {"format": _FORMAT, "version": _VERSION, "canaries": listed}
    (folder / FILE).write_text(json.dumps(plain) + "\n", encoding="utf-8")


def read(folder: Path) -> list[Scored]:
    """The canaries of a run folder."""
    path = folder / FILE
    if not path.exists() and (folder / "checkpoint.pt").exists():
        raise InputError(f"the run in {folder} is not finished; go on with --resume, then audit it.")
    if not path.exists():
        raise InputError(
            f"{folder} holds no canaries to audit: train with --audit 1000 (audit=1000), or try an "
            "attack with records of your own, sourdine attack membership."
        )
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if (plain["format"], plain["version"]) != (_FORMAT, _VERSION):
            raise InputError(f"{path} is of another or a newer kind; update sourdine.")
        found = [
            Scored(
                str(x["kind"]),
                np.array([{0: False, 1: True}[coin] for coin in x["coins"]], dtype=bool),
                np.array(x["scores"], dtype=np.float64),
            )
            for x in plain["canaries"]
        ]
        if not found:
            raise ValueError("it lists none")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error}); restore it from a copy.") from None
    return found
