"""Checks of what users type and of the system, with one sentence each for what to do instead."""

from __future__ import annotations

import math
from types import ModuleType

from sourdine.errors import InputError

ADJACENCIES = ("zero-out", "add-remove", "replace-one")
UNITS = ("example", "user")
LARGEST, USUAL = 100.0, 10.0
"""The largest epsilon of a run or a ledger, and the largest that passes without a warning."""
MOST = 10**15
"""Largest whole number that is taken: past it, doubles no longer count one by one."""


def file_locks() -> ModuleType:
    """Python's `fcntl`, for everything that may not happen twice at once; Windows does not have it."""
    try:
        import fcntl  # noqa: PLC0415
    except ModuleNotFoundError:
        raise InputError(
            "this needs file locks (flock), which this system does not have; nothing was charged or "
            "drawn. Accounting, verification and reports work; for the rest use Linux, macOS or WSL."
        ) from None
    return fcntl


def positive(name: str, value: float) -> float:
    """A finite number above zero, of a size that arithmetic can hold."""
    number = _number(name, value)
    if not math.isfinite(number) or number <= 0:
        raise InputError(f"{name} is {value}, but it must be a finite number above zero.")
    return _sized(name, number, 1e-12, 1e15)


def finite(name: str, value: float) -> float:
    """A finite number of either sign, not larger than can be counted in doubles."""
    number = _number(name, value)
    if not abs(number) <= MOST:
        raise InputError(f"{name} is {value}, but it must be a number between -{MOST:g} and {MOST:g}.")
    return number


def not_negative(name: str, value: float) -> float:
    """A finite number, zero allowed."""
    number = _number(name, value)
    if not math.isfinite(number) or number < 0:
        raise InputError(f"{name} is {value}, but it must be a finite number, zero or above.")
    return number


def whole(name: str, value: float, least: int = 1) -> int:
    """A whole number of at least `least`; 3.0 counts as whole, True does not."""
    # Python's integers are kept as they are: a float would lose digits past 2^53.
    number = value if isinstance(value, int) and not isinstance(value, bool) else _number(name, value)
    if (isinstance(number, float) and not number.is_integer()) or number < least:
        raise InputError(f"{name} is {value}, but it must be a whole number of at least {least}.")
    if number > MOST:
        raise InputError(
            f"{name} is above {MOST:g}, more than can be accounted for; use a smaller number."
        )
    return int(number)


def probability(name: str, value: float) -> float:
    """A number strictly between 0 and 1."""
    number = _number(name, value)
    if not 0 < number < 1:
        raise InputError(f"{name} is {value}, but it must lie strictly between 0 and 1.")
    return number


def rate(value: float) -> float:
    """A sampling probability in (0, 1]."""
    number = _number("rate", value)
    if not 0 < number <= 1:
        raise InputError(
            f"rate is {value}, but a sampling probability lies above 0 and at most at 1; "
            "it is the expected lot size over the number of records."
        )
    return _sized("rate", number, 1e-12, 1.0)


def epsilon(value: float) -> float:
    """A privacy parameter above zero."""
    number = _number("epsilon", value)
    if not math.isfinite(number) or number <= 0:
        raise InputError(
            f"epsilon is {value}, but it must be a finite number above zero; 0.1 to 10 is usual."
        )
    return _sized("epsilon", number, 1e-6, 1e9)


def protecting(value: float) -> float:
    """The epsilon of a run or a ledger, which is to promise something: at most LARGEST."""
    if epsilon(value) > LARGEST:
        raise InputError(
            f"epsilon {value:g} protects nobody: above {LARGEST:g} the promise is empty. Nothing was "
            "charged. Take 1 to 8. Data that may be used without privacy need no epsilon: sourdine "
            "train --not-private, Trainer(not_private=True)."
        )
    return value


def warning(value: float) -> str | None:
    """What to say of an epsilon that is granted and protects little."""
    return f"epsilon {value:g} protects little; 0.1 to 10 is usual." if value > USUAL else None


def release_epsilon(value: float) -> float:
    """The epsilon of one release with noise: past 1000 the noise would be far below any answer."""
    number = epsilon(value)
    if number > 1000:
        raise InputError(
            f"epsilon is {number:g}, but one release takes at most 1000: more is no privacy at all. "
            "0.1 to 1 is usual."
        )
    return number


def delta(value: float, records: int | None = None) -> float:
    """A failure probability in (0, 1), below 1/records where the number of records is known."""
    number = _number("delta", value)
    if not 0 < number < 1:
        raise InputError(f"delta is {value}, but it must lie strictly between 0 and 1; 1e-6 is usual.")
    _sized("delta", number, 1e-200, 1.0)
    if records is not None and number >= 1 / records:
        raise InputError(
            f"delta is {number:g}, not below 1/n = {1 / records:.3g} for {records} records: publishing "
            f"one record at random would be allowed. Use at most {0.1 / records:.1g}."
        )
    return number


def adjacency(value: str) -> str:
    """One of the three neighbouring relations."""
    return one_of("adjacency", value, ADJACENCIES)


def one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    """One of the listed words."""
    if value not in choices:
        raise InputError(f"{name} is {value!r}, but it must be one of {', '.join(choices)}.")
    return value


def _sized(name: str, number: float, least: float, most: float) -> float:
    if not least <= number <= most:
        raise InputError(f"{name} is {number:g}, but only {least:g} to {most:g} can be accounted for.")
    return number


def _number(name: str, value: float) -> float:
    if isinstance(value, bool | str):
        raise InputError(f"{name} is {value!r}, but it must be a number.")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} is {value!r}, but it must be a number.") from None
