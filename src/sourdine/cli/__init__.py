"""The command line: one file a verb, and the only place where rooms are wired together.

Exit codes: 0 done, 2 bad input or usage, 3 the budget refused it, 4 a check failed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
import typer

from sourdine.cli import account, calibrate, demo, figures
from sourdine.errors import SourdineError

app = typer.Typer(
    name="sourdine",
    help="Private learning from text, and the proof of what it gives away.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("account")(account.account)
app.command("calibrate")(calibrate.calibrate)
app.command("figures")(figures.figures)
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; every error that a user can cause becomes one sentence and a code."""
    try:
        code = app(args=list(sys.argv[1:] if arguments is None else arguments), standalone_mode=False)
    except SourdineError as error:
        print(f"sourdine: {error}", file=sys.stderr)
        return error.exit_code
    except click.exceptions.ClickException as error:
        error.show()
        return 2
    except (click.exceptions.Abort, KeyboardInterrupt):
        print("sourdine: stopped.", file=sys.stderr)
        return 130
    return int(code or 0)


def script() -> None:
    """What the installed command calls."""
    sys.exit(main())
