"""What the owner of the records is asked before a run is charged."""

from __future__ import annotations

from dataclasses import dataclass

from sourdine.data.copies import check_copies
from sourdine.data.corpus import Corpus
from sourdine.data.declared import Ask, check_labels, check_option
from sourdine.errors import InputError
from sourdine.text.prepared import Prepared


@dataclass(frozen=True)
class Questions:
    """The answers that options gave in advance, and whom to ask for the others.

    labels: the declared classes. private: whether the run promises anything. public_test: whether test
    records were given and declared public. public_texts: whether other public texts were given.
    data/declared.py and data/copies.py say what answers mean.
    """

    labels: tuple[str, ...] | None
    other_labels: str | None
    leave_out_copies: bool
    ask: Ask | None
    private: bool
    public_test: bool
    public_texts: bool

    def __post_init__(self) -> None:
        check_option(self.labels, self.other_labels)
        if self.leave_out_copies and not (self.private and (self.public_test or self.public_texts)):
            raise InputError(
                "--leave-out-copies (leave_out_copies=) is about private records that stand in public "
                "texts; give --test with --test-is-public, or --public, or leave it out."
            )

    def ask_about(self, ready: Prepared, public: Corpus | None) -> frozenset[int]:
        """Raises InputError where the run may not be made.

        public: texts beside the test records that anybody may see. Returns the places of training
        records that stand in public texts: they teach nothing.
        """
        test = ready.test
        private = (ready.train,) if test is None or self.public_test else (ready.train, test)
        check_labels(self.labels, private, other_labels=self.other_labels, ask=self.ask)
        shown = [public, test if self.public_test else None]
        texts = [corpus for corpus in shown if corpus is not None]
        if not (self.private and texts):
            return frozenset()
        return check_copies(ready.train, texts, leave_out=self.leave_out_copies, ask=self.ask).places
