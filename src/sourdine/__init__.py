"""sourdine: private learning from text, and the proof of what it gives away.

The public names below are loaded when they are first used: `import sourdine` itself imports neither
torch nor opendp nor scipy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sourdine.accounting import (
        Interval,
        Plan,
        PrivacyCurve,
        PrivacyLoss,
        Promise,
        Renyi,
        calibrate,
        curve,
        moments_epsilon,
        renyi,
    )
    from sourdine.audit import Finding, check_mechanism
    from sourdine.budget import Budget
    from sourdine.certificate import Certificate, verify
    from sourdine.encoding import Encodings, InstanceEncoder
    from sourdine.errors import (
        BudgetError,
        CheckError,
        InputError,
        LedgerError,
        NotAccountable,
        SourdineError,
    )
    from sourdine.events import Event
    from sourdine.ledger import Ledger
    from sourdine.mechanisms import Exponential, Gaussian, Laplace, NoisyMax, RandomizedResponse
    from sourdine.query import Answer, Session, Survey
    from sourdine.sgd import Engine, clipped_sum
    from sourdine.text import Run, TextModel, Trainer, load

__version__ = "0.1.0"

_HOMES = {
    "Answer": "sourdine.query",
    "Budget": "sourdine.budget",
    "BudgetError": "sourdine.errors",
    "Certificate": "sourdine.certificate",
    "CheckError": "sourdine.errors",
    "Encodings": "sourdine.encoding",
    "Engine": "sourdine.sgd",
    "Event": "sourdine.events",
    "Exponential": "sourdine.mechanisms",
    "Finding": "sourdine.audit",
    "Gaussian": "sourdine.mechanisms",
    "InputError": "sourdine.errors",
    "InstanceEncoder": "sourdine.encoding",
    "Interval": "sourdine.accounting",
    "Laplace": "sourdine.mechanisms",
    "Ledger": "sourdine.ledger",
    "LedgerError": "sourdine.errors",
    "NoisyMax": "sourdine.mechanisms",
    "NotAccountable": "sourdine.errors",
    "Plan": "sourdine.accounting",
    "PrivacyCurve": "sourdine.accounting",
    "PrivacyLoss": "sourdine.accounting",
    "Promise": "sourdine.accounting",
    "RandomizedResponse": "sourdine.mechanisms",
    "Renyi": "sourdine.accounting",
    "Run": "sourdine.text",
    "Session": "sourdine.query",
    "SourdineError": "sourdine.errors",
    "Survey": "sourdine.query",
    "TextModel": "sourdine.text",
    "Trainer": "sourdine.text",
    "calibrate": "sourdine.accounting",
    "check_mechanism": "sourdine.audit",
    "clipped_sum": "sourdine.sgd",
    "curve": "sourdine.accounting",
    "load": "sourdine.text",
    "moments_epsilon": "sourdine.accounting",
    "renyi": "sourdine.accounting",
    "verify": "sourdine.certificate",
}

__all__ = [
    "Answer",
    "Budget",
    "BudgetError",
    "Certificate",
    "CheckError",
    "Encodings",
    "Engine",
    "Event",
    "Exponential",
    "Finding",
    "Gaussian",
    "InputError",
    "InstanceEncoder",
    "Interval",
    "Laplace",
    "Ledger",
    "LedgerError",
    "NoisyMax",
    "NotAccountable",
    "Plan",
    "PrivacyCurve",
    "PrivacyLoss",
    "Promise",
    "RandomizedResponse",
    "Renyi",
    "Run",
    "Session",
    "SourdineError",
    "Survey",
    "TextModel",
    "Trainer",
    "calibrate",
    "check_mechanism",
    "clipped_sum",
    "curve",
    "load",
    "moments_epsilon",
    "renyi",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sourdine' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers", "safetensors", "peft"):
            raise
        raise ImportError(f"{name} needs {error.name}: pip install 'sourdine[text]'.") from None


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
