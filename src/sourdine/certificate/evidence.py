"""What a run folder holds, collected once for all checks, without trusting or changing any of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sourdine.certificate.document import Certificate, parsed
from sourdine.certificate.facts import Guarantee, guarantee, releases
from sourdine.certificate.sealing import CERTIFICATE, LEDGER, Listing, listing
from sourdine.certificate.shape import event_in
from sourdine.errors import CheckError, InputError, LedgerError
from sourdine.events import Event
from sourdine.ledger import Entry, Ledger


class NotChecked(Exception):
    """Why something could not be checked from the folder alone; that fails nothing."""


@dataclass(frozen=True)
class Evidence:
    """A folder, its listing, the key that the user pinned, and a copy of its ledger in `copied`.

    Whatever cannot be had raises, in each check that needs it.
    """

    folder: Path
    copied: Path
    listing: Listing
    key: str | None

    @cached_property
    def text(self) -> str:
        path = self.folder / CERTIFICATE
        if path.is_symlink() or not path.is_file():
            raise CheckError(
                f"{CERTIFICATE} is a link or no plain file; it must lie in the folder itself."
            )
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise CheckError(f"{CERTIFICATE} is no text: it was damaged.") from None

    @cached_property
    def document(self) -> dict[str, Any]:
        """The JSON object, even where it is no certificate: other checks say what they can."""
        try:
            return parsed(self.text)
        except InputError as error:
            raise CheckError(f"not checked, as the certificate cannot be read: {error}") from None

    @cached_property
    def certificate(self) -> Certificate | None:
        try:
            return Certificate.from_json(self.text)
        except (InputError, CheckError, OSError):
            return None

    @cached_property
    def event(self) -> Event:
        """What the certificate says was spent."""
        return event_in(self.document["events"])

    @cached_property
    def ledger(self) -> Ledger:
        """A copy: opening the original might play back a planted journal, and change it."""
        if LEDGER not in self.listing.files:
            raise CheckError(f"there is no {LEDGER} in the folder, so nothing can be recomputed.")
        if not self.copied.exists():
            shutil.copyfile(self.folder / LEDGER, self.copied)
        with self._named():
            return Ledger(self.copied)

    @cached_property
    def history(self) -> list[Entry]:
        """All entries, after their chain was checked."""
        with self._named():
            return self.ledger.history()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Complaints about the copy are about the original."""
        try:
            yield
        except LedgerError as error:
            raise CheckError(str(error).replace(str(self.copied), LEDGER)) from None

    @cached_property
    def releases(self) -> tuple[Event, ...]:
        return releases(self.history)

    @cached_property
    def guarantee(self) -> Guarantee:
        """What the ledger proves, by our own accountant."""
        if not self.history:
            raise CheckError("the ledger is empty: it proves nothing about this run.")
        return guarantee(self.ledger)


@contextmanager
def collected(folder: Path, key: str | None) -> Iterator[Evidence]:
    """The evidence of a folder; the copy of its ledger is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="sourdine-verify-") as place:
        try:
            found = listing(folder)
        except OSError as error:
            raise InputError(f"the folder {folder} cannot be read: {error.strerror}.") from None
        yield Evidence(folder, Path(place) / LEDGER, found, key)
