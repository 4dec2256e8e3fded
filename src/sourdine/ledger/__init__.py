"""The spending record: it refuses before anything is drawn, and many processes may share it."""

from sourdine.ledger.book import Ledger, Spent
from sourdine.ledger.record import REASONS, Entry

__all__ = ["REASONS", "Entry", "Ledger", "Spent"]
