"""Options that several verbs share, and how they are printed."""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from pathlib import Path
from typing import Annotated, Any

import typer

from sourdine.errors import InputError


def _load(context: typer.Context, parameter: object, path: Path | None) -> Path | None:
    """Take the verb's defaults from its table in a TOML file; flags on the command line win."""
    if path is None or context.resilient_parsing:
        return path
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"the config file {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"the config file {path} is not valid TOML: {error}.") from None
    verb = str(context.info_name)
    table = document.get(verb, {})
    if not isinstance(table, dict):
        raise InputError(f"in {path}, [{verb}] must be a table of options.")
    known = [str(option.name) for option in context.command.params if option.name != "config"]
    values = {name.replace("-", "_"): value for name, value in table.items()}
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0].replace('_', '-')}?" if near else ""
            raise InputError(f"{path} sets {name!r} for {verb}, which has no such option.{hint}")
    context.default_map = {**(context.default_map or {}), **values}
    return path


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
Adjacency = Annotated[
    str, typer.Option("--adjacency", help="What a neighbour is: add-remove, zero-out or replace-one.")
]
Delta = Annotated[float, typer.Option("--delta", help="Failure probability, below 1/n.")]
Records = Annotated[
    int | None, typer.Option("--records", help="Number of records n, to check delta against 1/n.")
]


def print_json(value: dict[str, Any]) -> None:
    """One JSON object; infinity becomes the string "inf", which JSON lacks."""
    print(json.dumps({name: _plain(item) for name, item in value.items()}))


def _plain(value: Any) -> Any:
    return "inf" if value == float("inf") else value


def ceiling(value: float, places: int = 6) -> str:
    """A number with so many significant digits, rounded up: a printed bound must still hold."""
    return _rounded(value, places, ROUND_CEILING)


def floor(value: float, places: int = 6) -> str:
    """The same, rounded down."""
    return _rounded(value, places, ROUND_FLOOR)


def _rounded(value: float, places: int, rounding: str) -> str:
    if math.isinf(value):
        return "inf"
    return f"{Context(prec=places, rounding=rounding).create_decimal(value).normalize():g}"
