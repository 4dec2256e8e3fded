"""Private records that stand in public texts: the owner is asked, before anything is charged.

Public texts are released as they are, or used without noise. A private record among them is therefore
left out: it becomes an empty record, which teaches nothing (`Corpus.emptied`). What becomes of a record
depends on itself and on public text, so neighbours stay neighbours, nobody else's record moves, and the
number of records stays what it was. That is done in every run, whoever was asked and whatever was said.

Whether a run is made at all is the owner's to say, who may have taken the wrong file. This is one of
the two places where records decide that (the other: data/declared.py). The certificate lists "the
records passed the checks at load" as NOT ACCOUNTED, whether or not somebody was asked, and neither a
refusal, nor a count, nor the answer is written into a folder that is handed on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sourdine.data.corpus import Corpus
from sourdine.data.declared import Ask
from sourdine.data.overlap import Overlap, overlap
from sourdine.errors import InputError


def check_copies(
    private: Corpus, public: Sequence[Corpus], *, leave_out: bool = False, ask: Ask | None = None
) -> Overlap:
    """The private records that stand in public texts; raises InputError where the run may not be made.

    ask: None where nobody can answer; then such records stop the run, unless leave_out lets it go on
    without them. Somebody at a terminal is always asked: a question that only some records raise would
    tell of them.
    """
    found = overlap(private, *public)
    if ask is not None:
        if not ask(found.sentence(), "Go on, with such records left out?"):
            raise InputError(
                "you answered no, so nothing was charged. Take public texts without private records."
            )
    elif found and not leave_out:
        raise InputError(
            f"(for you only, not for release) {found.sentence()} Private text must not stand in public "
            "files, which are used without noise. Nothing was charged. Take other public texts; or, if "
            "these are public indeed, leave the private records among them out: --leave-out-copies "
            "(leave_out_copies=True)."
        )
    return found


def refuse_same_table(private: Any, other: Any, option: str) -> None:
    """Refuses a table that is to be private and something else; which table was named is no secret."""
    if other is None:
        return
    first, second = _file(private), _file(other)
    same = private is other
    if first is not None and second is not None:
        try:
            same = first.samefile(second)
        except OSError:
            return  # one of them is missing, which its reader says better
    if same:
        raise InputError(
            f"{option} names the table of private records itself. Nothing was charged. Name another "
            "table, with records that are not in it."
        )


def _file(given: Any) -> Path | None:
    """The file that a table is read from; none for a corpus, which may be a part of its file."""
    return Path(given).expanduser() if isinstance(given, str | Path) else None
