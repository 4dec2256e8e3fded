"""Certificates as plain mappings, with true numbers, for the tests of the report."""

import json
from functools import cache
from typing import Any

from sourdine.accounting import curve
from sourdine.events import ApproximateEvent, Event, GaussianEvent, PoissonEvent

METRICS = {
    "accuracy": {"value": 0.853, "low": 0.831, "high": 0.874, "confidence": 0.95},
    "largest_class": {"value": 0.512, "low": 0.47, "high": 0.55, "confidence": 0.95, "name": "no"},
    "beats_largest_class": True,
    "macro_f1": {"value": 0.851, "low": 0.828, "high": 0.873, "confidence": 0.95},
    "matthews": {"value": 0.706, "low": 0.661, "high": 0.749, "confidence": 0.95},
    "classes": ["yes", "no"],
    "records": 700,
    "how": "Gaussian noise on the confusion matrix of 700 held-out records, charged",
    "reference": None,
}
REFERENCE = {"accuracy": 0.881, "how": "the same plan without privacy"}
TRAINING = 300 * PoissonEvent(0.1, GaussianEvent(2.95))
SCORING = GaussianEvent(20.0)
LABELS = ApproximateEvent(1e-9, 1e-8, "zero-out")


def plain(event: Event) -> Any:
    return json.loads(event.to_json())


@cache
def _cost(event: Event, delta: float) -> tuple[float, float]:
    return curve(event).epsilon(delta)


def certificate(event: Event = TRAINING + SCORING + LABELS, **guarantee: Any) -> dict[str, Any]:
    """A complete certificate for an event; keywords replace fields of its guarantee."""
    lower, upper = _cost(event, 1e-6)
    return {
        "format": "sourdine.certificate",
        "version": 1,
        "made": "2026-11-15T18:00:00.000+00:00",
        "by": {"sourdine": "0.1.0", "accountant": "sourdine pld", "python": "3.11.7"},
        "released": {
            "what": "a text classifier: its weights, its labels, and noisy metrics",
            "to": "anyone: the attacker sees every file of this folder",
            "files": {"model.safetensors": "ab" * 32, "special_tokens_map.json": "cd" * 32},
        },
        "guarantee": {
            "unit": "example",
            "contribution_bound": 1,
            "adjacency": "zero-out",
            "epsilon": upper,
            "epsilon_lower": lower,
            "delta": 1e-6,
            "curve": [{"delta": 1e-6, "epsilon_lower": lower, "epsilon": upper}],
            "mu": None,
            "budget": {"epsilon": 3.0, "delta": 1e-6},
            **guarantee,
        },
        "events": plain(event),
        "sampling": {"assumed": "Poisson lots, rate 0.1, 300 steps", "executed": "UNKNOWN"},
        "accesses": [
            {"what": "training on 6,920 records", "cost": plain(TRAINING), "why": "DP-SGD"},
            {"what": "metrics on 700 records", "cost": plain(SCORING), "why": "noise on the counts"},
            {"what": "duplicates shown to the owner", "cost": "NOT ACCOUNTED", "why": "kept apart"},
            {"what": "the number of records", "cost": "none", "why": "public under zero-out"},
        ],
        "randomness": {"source": "secure", "numbers": "float32; noise on a grid"},
        "audit": "UNKNOWN",
        "utility": METRICS,
        "data": {
            "fingerprint": "0f" * 32,
            "records": 6920,
            "users": "UNKNOWN",
            "text": ["note"],
            "label": "diagnosis",
        },
        "model": {
            "base": "sentence-transformers/all-MiniLM-L6-v2",
            "trained": "head",
            "parameters": 770,
        },
        "training": {"lot_size": 692, "steps": 300, "clip": 1.0, "noise_multiplier": 2.95},
        "not_covered": ["facts about a person in other people's texts (Brown et al. 2022)"],
        "signature": {"algorithm": "Ed25519", "public_key": "5e" * 32, "value": "9a" * 64},
    }


def quick(**guarantee: Any) -> dict[str, Any]:
    """A certificate whose accounting is a closed form."""
    event = GaussianEvent(1.7)
    found = certificate(event, mu=1 / 1.7, **guarantee)
    found["accesses"][0]["cost"] = plain(event)
    del found["accesses"][1]
    return found
