"""Options that several verbs share, and how numbers are printed."""

from __future__ import annotations

import csv
import difflib
import inspect
import io
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from sourdine import checks
from sourdine.budget import Budget
from sourdine.cli.owner import tell
from sourdine.digits import above, below
from sourdine.errors import InputError

if TYPE_CHECKING:
    from sourdine.ledger import Ledger


def _load(context: typer.Context, parameter: object, path: Path | None) -> Path | None:
    """Take the verb's defaults from its table in a TOML file; flags on the command line win."""
    if path is None or context.resilient_parsing:
        return path
    try:
        document = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the config file {path} is not valid TOML: {error}.") from None
    verb, table = ".".join(_verb(context)), document
    for name in _verb(context):
        table = table.get(name, {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict) or not table:
        raise InputError(f"the config file {path} has no table [{verb}] with options for this verb.")
    known = {_flag(option): option for option in context.command.params if option.name != "config"}
    wrapped: Any = context.command.callback
    kinds = get_type_hints(inspect.unwrap(wrapped))  # those of the verb's own function
    values: dict[str, Any] = {}
    for key, value in table.items():
        flag = key.replace("_", "-")
        if flag not in known:
            near = difflib.get_close_matches(flag, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise InputError(f"{path} sets {key!r} for {verb}, which has no such option.{hint}")
        name = str(known[flag].name)
        if name in values:
            raise InputError(f"{path} sets {flag} twice for {verb}, with - and with _.")
        values[name] = _typed(path, flag, kinds[name], value)
    context.default_map = {**(context.default_map or {}), **values}
    return path


def _verb(context: Any) -> list[str]:
    """The names of the verb and its group, as in [ledger.show]."""
    above = _verb(context.parent) if context.parent and context.parent.parent else []
    return [*above, str(context.info_name)]


def _flag(option: Any) -> str:
    return str(max(option.opts, key=len)).lstrip("-")


def _typed(path: Path, flag: str, kind: Any, value: Any) -> Any:
    """A TOML value of the kind that the verb declares for this option."""
    kinds = [get_origin(item) or item for item in (get_args(kind) or (kind,))]
    if get_origin(kind) is list or list in kinds:
        value = [value] if isinstance(value, str) else value
        fits, named = isinstance(value, list) and all(isinstance(item, str) for item in value), "a list"
    elif bool in kinds:
        fits, named = isinstance(value, bool), "true or false"
    elif float in kinds:
        fits, named = isinstance(value, int | float) and not isinstance(value, bool), "a number"
    else:
        fits, named = isinstance(value, str), "a text in quotes"
    if not fits:
        raise InputError(f"{path} sets {flag} to {value!r}, but it takes {named}.")
    return value


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=_load,
        is_eager=True,
        help="A TOML file with a table for this verb; flags win.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]
Records = Annotated[
    float | None, typer.Option("--records", help="Number of records n; delta must be below 1/n.")
]


# What train, tune and compare share.
Data = Annotated[str, typer.Argument(help="A CSV, TSV, JSONL or Parquet file.")]
Text = Annotated[list[str] | None, typer.Option("--text", help="The column of text; twice for pairs.")]
Label = Annotated[str | None, typer.Option("--label", help="The column of classes.")]
Delta = Annotated[
    float | None,
    typer.Option("--delta", help="Failure probability, below 1/n (default: 1e-6, or the ledger's)."),
]
SharedLedger = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        help="Charge this run to a ledger that other runs share: a file or a postgresql:// URL. Then "
        "--epsilon is this run's part of it (default: a ledger of its own).",
    ),
]
BudgetOfAll = Annotated[
    float | None,
    typer.Option(
        "--budget-of-all",
        help="Refuse this run if all ledgers over these records would come to more than this epsilon. "
        "Stored at its first use; it cannot grow later.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option("--model", help="A folder, a hub name or bytes; the fetched MiniLM if there."),
]
User = Annotated[
    str | None, typer.Option("--user", help="The column that names the person (unit user).")
]
RowsPerUser = Annotated[float, typer.Option("--rows-per-user", help="How many rows of a person count.")]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--labels",
        help="The classes, separated by commas; quote a name that holds one: 'yes,\"no, never\"'. May "
        "be repeated; @FILE reads them from a file, one a line (default: found by a noisy count).",
    ),
]
OtherLabels = Annotated[
    str | None,
    typer.Option(
        "--other-labels",
        help="drop: records whose label is not among --labels teach nothing (default: ask on a "
        "terminal, stop elsewhere).",
    ),
]
LeaveOutCopies = Annotated[
    bool,
    typer.Option(
        "--leave-out-copies",
        help="Private records that also stand in public texts teach nothing (default: ask on a "
        "terminal, stop elsewhere).",
    ),
]
Adjacency = Annotated[
    str | None,
    typer.Option(
        "--adjacency",
        help="zero-out, add-remove (with --records) or replace-one "
        "(default: zero-out, or the ledger's).",
    ),
]
Encoding = Annotated[str, typer.Option("--encoding", help="Of a text file.")]
Device = Annotated[str | None, typer.Option("--device", help="cpu or cuda; what there is.")]


def whole(name: str, value: float | None) -> int | None:
    """A whole number, if one was given."""
    return None if value is None else checks.whole(name, value)


def training_budget(
    epsilon: float | None,
    delta: float | None,
    user: str | None,
    adjacency: str | None,
    ledger: str | None = None,
) -> Budget:
    """The budget of a run, with a warning where it is unusual; with a ledger, a part of that."""
    if epsilon is None:
        raise InputError("give --epsilon, the budget; 1 to 8 is usual, and 3 a good start.")
    checks.protecting(checks.epsilon(epsilon))
    like = Budget(epsilon) if ledger is None else shared_ledger(ledger, epsilon).budget
    unit = "example" if user is None else "user"
    small = like.delta if delta is None else delta
    budget = Budget(epsilon, small, unit, adjacency or like.adjacency)
    if ledger is not None:
        from sourdine.ledger.shared import check_part  # noqa: PLC0415

        check_part(shared_ledger(ledger, epsilon), budget)
    warn_if_weak(epsilon)
    if epsilon < 0.1:
        tell(f"warning: epsilon {epsilon:g} leaves little to learn; 0.1 to 10 is usual.")
    return budget


def warn_if_weak(epsilon: float) -> None:
    """Refuses an epsilon that promises nothing, and warns of one that protects little."""
    if said := checks.warning(checks.protecting(epsilon)):
        tell(f"warning: {said}")


def shared_ledger(where: str, epsilon: float) -> Ledger:
    """The ledger that a run is charged to, which must exist."""
    from sourdine.ledger.shared import open_shared  # noqa: PLC0415

    return open_shared(where, epsilon)


def import_text() -> None:
    """torch and transformers, or the sentence that says how to get them."""
    try:
        import torch  # noqa: F401, PLC0415
        import transformers  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        raise InputError(f"training needs {error.name}: pip install 'sourdine[text]'.") from None


def import_training() -> None:
    """What a private run needs before anything is read: file locks, torch and transformers."""
    checks.file_locks()
    import_text()


def listed(text: str | Sequence[str] | None) -> list[str] | None:
    """The items of one or more lines of CSV; @FILE stands for the lines of a file."""
    if text is None:
        return None
    items: list[str] = []
    for given in [text] if isinstance(text, str) else text:
        lines = read_text(Path(given[1:])) if given.startswith("@") else given
        try:
            rows = list(csv.reader(io.StringIO(lines, newline=""), skipinitialspace=True, strict=True))
        except csv.Error:
            raise InputError(
                f"the list {given!r} cannot be read: separate its items by commas, and put double "
                "quotes around an item that holds a comma."
            ) from None
        items += [item.strip() for row in rows for item in row if item.strip()]
    return items


def numbers(name: str, text: str | None) -> list[float] | None:
    """The numbers of a comma-separated list."""
    try:
        return None if text is None else [float(item) for item in listed(text) or []]
    except ValueError:
        raise InputError(f"{name} is {text!r}, but it must be numbers with commas between.") from None


def read_text(path: Path) -> str:
    """The text of a file, with or without a byte-order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"the file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is no text file.") from None


def print_json(value: dict[str, Any]) -> None:
    """One JSON object; infinity becomes the string "inf", which JSON lacks."""
    print(json.dumps({name: _plain(item) for name, item in value.items()}))


def _plain(value: Any) -> Any:
    return "inf" if value == float("inf") else value


def spending(spent: float, left: float, budget: float) -> tuple[str, str]:
    """What is spent, rounded up but never above the budget that holds it, and what is left, rounded
    down; 0.1 + 0.2 is 0.3 here.
    """
    gone = above(spent * (1 - 1e-12), 5)
    if spent <= budget * (1 + 1e-12) < float(gone):
        gone = above(budget, 12)
    return gone, below(left * (1 + 1e-12), 5)
