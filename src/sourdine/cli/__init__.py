"""The command line: one file a verb, and the only place where rooms are wired together.

Exit codes: 0 done, 2 bad input or usage, 3 the budget refused it, 4 a check failed.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import typer

from sourdine.cli import (
    account,
    attack,
    audit,
    calibrate,
    clean,
    compare,
    decode,
    demo,
    encode,
    extract,
    fetch,
    figures,
    ledger,
    pate,
    query,
    report,
    survey,
    train,
    tune,
    verify,
)
from sourdine.errors import SourdineError, WeakPromise

app = typer.Typer(
    name="sourdine",
    help="Private learning from text, and the proof of what it gives away.",
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,  # its boxes show local variables, which may hold private text
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("account")(account.account)
app.command("audit")(audit.audit)
app.command("calibrate")(calibrate.calibrate)
app.command("clean")(clean.clean)
app.command("compare", cls=compare.SeveralValues)(compare.compare)
app.command("encode")(encode.encode)
app.command("fetch")(fetch.fetch)
app.command("figures")(figures.figures)
app.command("pate")(pate.pate)
app.command("query")(query.query)
app.command("report")(report.report)
app.command("train")(train.train)
app.command("tune")(tune.tune)
app.command("verify")(verify.verify)
attack.app.command("extraction")(extract.extraction)
attack.app.command("encoding")(decode.encoding)
app.add_typer(attack.app, name="attack", no_args_is_help=True)
app.add_typer(survey.app, name="survey", no_args_is_help=True)
app.add_typer(ledger.app, name="ledger", no_args_is_help=True)
app.command("demo")(demo.demo)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
) -> None:
    if version:
        from sourdine import __version__  # noqa: PLC0415

        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


# typer's words for wrong usage. Up to 0.25 they are click's, later typer's own copy of click; their
# common base has no public name, but it is an ancestor of BadParameter in both.
_WrongUsage: Any = next(kind for kind in typer.BadParameter.mro() if kind.__name__ == "ClickException")

_KEPT = "What was charged before stays charged; sourdine ledger show tells."
_STOPPED = f"stopped. {_KEPT}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; every error that a user can cause becomes one sentence and a code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WeakPromise)  # a verb says so in its own words, once
            given = list(sys.argv[1:] if arguments is None else arguments)
            code = app(args=given, standalone_mode=False)
        sys.stdout.flush()
    except SourdineError as error:
        return _fail(str(error), error.exit_code)
    except _WrongUsage as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            return 2
        return _fail(f"{_sentence(error.format_message())} See sourdine --help.", 2)
    except (typer.Abort, KeyboardInterrupt):
        return _fail(_STOPPED, 130)
    except BrokenPipeError:
        return 0  # the reader has seen enough
    except OSError as error:
        return _fail(f"the output could not be written: {error.strerror}. {_KEPT}", 1)
    return _fail(_STOPPED, 130) if code == 130 else int(code or 0)


def _sentence(complaint: str) -> str:
    """typer's complaint, with one stop and with a suggestion said once: some versions add it twice."""
    message = complaint.split(" (Did you mean", maxsplit=1)[0]
    parts = message.split(" Did you mean ")
    text = " Did you mean ".join(dict.fromkeys(parts))
    return text if text.endswith(("?", ".")) else f"{text}."


def _fail(sentence: str, code: int) -> int:
    print(f"sourdine: {sentence}", file=sys.stderr)
    return code


def script() -> None:
    """What the installed command calls."""
    if sys.stdout is None:  # closed by the shell: an answer would be paid for and lost
        if sys.stderr is not None:
            _fail("there is no output to write to; nothing was done.", 2)
        os._exit(2)
    warnings.simplefilter(
        "ignore"
    )  # arithmetic at the rim of what doubles hold; the bounds allow for it
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = main()
    except Exception as error:
        if os.environ.get("SOURDINE_DEBUG"):
            raise
        kind = type(error).__name__
        code = _fail(f"a bug of ours ({kind}): please report it. SOURDINE_DEBUG=1 shows where.", 1)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    # Skip the interpreter's own flush at exit, which would complain about a closed or full output.
    os._exit(code)
