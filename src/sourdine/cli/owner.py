"""What the owner of the records is told and asked: on stderr, never in a folder that is handed on.

Questions are asked on a terminal only. Elsewhere (a script, a pipe, CI) nobody can answer, so the verb
stops and names the option that gives the answer.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from sourdine.data.declared import Ask

NOT_FOR_RELEASE = "for you only, not for release"
"""Stands before exact facts about private records."""


def on_terminal() -> bool:
    """Whether somebody sits at this process and can answer a question."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def tell(sentence: str) -> None:
    """One sentence for the person who runs the command, without private facts."""
    print(f"sourdine: {sentence}", file=sys.stderr)


def tell_privately(sentence: str) -> None:
    """One sentence with exact facts about the records, marked as such."""
    print(f"sourdine ({NOT_FOR_RELEASE}): {sentence}", file=sys.stderr)


def confirmed(question: str) -> bool:
    """The answer to a yes-or-no question on the terminal; anything but yes is no.

    Everything goes to stderr: `typer.confirm` writes a blank to stdout, which may be piped on.
    """
    print(f"sourdine: {question} [y/N]: ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer:  # the input has ended
        raise typer.Abort
    return answer.strip().lower() in ("y", "yes")


def asked(facts: str, question: str) -> bool:
    """Shows exact facts about the records, and asks."""
    tell_privately(facts)
    return confirmed(question)


def who_answers() -> Ask | None:
    """Whoever sits at the terminal; None in a script, where an option has to answer."""
    return asked if on_terminal() else None
