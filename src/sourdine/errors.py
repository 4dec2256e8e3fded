"""What can go wrong, as one tree.

SourdineError
├── InputError            a value, file or option that cannot be used; exit code 2
│   ├── EventFileError    an event file that is newer, cut short or of another kind
│   ├── LedgerError       a ledger that is newer, damaged, locked, read-only or of another unit
│   └── NotAccountable    no proof covers this event under this adjacency or by this method
├── ContradictionError    two proven bounds exclude each other: a bug of ours
├── BudgetError           the budget does not allow it; nothing was drawn; exit code 3
└── CheckError            a verification failed, or an attack proved more than was claimed; exit code 4

Every message says what happened, why, and what to do next.

WeakPromise is the only warning.
"""

from __future__ import annotations


class SourdineError(Exception):
    """Base of every error that this library raises on purpose."""

    exit_code = 1


class InputError(SourdineError, ValueError):
    """A value, file or option that cannot be used as it stands."""

    exit_code = 2


class EventFileError(InputError):
    """An event file that cannot be read."""


class LedgerError(InputError):
    """A ledger that cannot be used. Nothing was charged."""


class NotAccountable(InputError):
    """There is no proven bound for this event under the adjacency or by the method asked for."""


class ContradictionError(SourdineError):
    """A lower bound lies above an upper one. One of them is wrong; neither may be used."""


class BudgetError(SourdineError):
    """The budget does not allow it. Nothing was drawn and nothing was recorded."""

    exit_code = 3


class CheckError(SourdineError):
    """A check failed: a certificate does not verify, or an attack proved more than was claimed."""

    exit_code = 4


class WeakPromise(UserWarning):
    """An epsilon that is accounted for, and protects little."""
