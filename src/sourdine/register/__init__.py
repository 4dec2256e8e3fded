"""The register of everything that was charged, by whose records they were; for the owner alone.

Ledgers protect one population each, and nobody stops a second ledger for the same people. The register
lies in the user's config folder and sees all of them: `records` tells whose records a table holds,
`book` keeps the charges, `watch` enters each charge before its ledger is asked.
"""

from sourdine.register.book import Line, Register, Total, open_book, recall, sum_up
from sourdine.register.records import Records, identify
from sourdine.register.watch import PART_OF_A_PLAN, watch

__all__ = [
    "PART_OF_A_PLAN",
    "Line",
    "Records",
    "Register",
    "Total",
    "identify",
    "open_book",
    "recall",
    "sum_up",
    "watch",
]
