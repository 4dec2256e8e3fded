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
    from sourdine.budget import Budget
    from sourdine.errors import BudgetError, CheckError, InputError, NotAccountable, SourdineError
    from sourdine.events import Event

__version__ = "0.1.0"

_HOMES = {
    "Budget": "sourdine.budget",
    "BudgetError": "sourdine.errors",
    "CheckError": "sourdine.errors",
    "Event": "sourdine.events",
    "InputError": "sourdine.errors",
    "Interval": "sourdine.accounting",
    "NotAccountable": "sourdine.errors",
    "Plan": "sourdine.accounting",
    "PrivacyCurve": "sourdine.accounting",
    "PrivacyLoss": "sourdine.accounting",
    "Promise": "sourdine.accounting",
    "Renyi": "sourdine.accounting",
    "SourdineError": "sourdine.errors",
    "calibrate": "sourdine.accounting",
    "curve": "sourdine.accounting",
    "moments_epsilon": "sourdine.accounting",
    "renyi": "sourdine.accounting",
}

__all__ = [
    "Budget",
    "BudgetError",
    "CheckError",
    "Event",
    "InputError",
    "Interval",
    "NotAccountable",
    "Plan",
    "PrivacyCurve",
    "PrivacyLoss",
    "Promise",
    "Renyi",
    "SourdineError",
    "calibrate",
    "curve",
    "moments_epsilon",
    "renyi",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sourdine' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
