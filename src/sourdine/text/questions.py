"""What the owner of the records is asked before a run is charged."""

from __future__ import annotations

from dataclasses import dataclass

from sourdine.data.copies import check_copies
from sourdine.data.declared import Ask, check_labels, check_option
from sourdine.errors import InputError
from sourdine.text.prepared import Prepared


@dataclass(frozen=True)
class Questions:
    """The answers that options gave in advance, and whom to ask for the others.

    labels: the declared classes. private: whether the run promises anything. public_test: whether test
    records were given and declared public. data/declared.py and data/copies.py say what answers mean.
    """

    labels: tuple[str, ...] | None
    other_labels: str | None
    leave_out_copies: bool
    ask: Ask | None
    private: bool
    public_test: bool

    def __post_init__(self) -> None:
        check_option(self.labels, self.other_labels)
        if self.leave_out_copies and not (self.private and self.public_test):
            raise InputError(
                "--leave-out-copies (leave_out_copies=) is about private records that stand in public "
                "texts; give --test with --test-is-public, or leave it out."
            )

    def ask_about(self, ready: Prepared) -> frozenset[int]:
        """Raises InputError where the run may not be made.

        Returns the places of training records that stand in public test records: they teach nothing.
        """
        test = ready.test
        private = (ready.train,) if test is None or self.public_test else (ready.train, test)
        check_labels(self.labels, private, other_labels=self.other_labels, ask=self.ask)
        if test is None or not (self.private and self.public_test):
            return frozenset()
        found = check_copies(ready.train, [test], leave_out=self.leave_out_copies, ask=self.ask)
        return found.places
