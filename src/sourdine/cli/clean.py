"""`sourdine clean`: which private data rest on this machine, and erasing those that nobody needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sourdine.cli import owner
from sourdine.cli.options import Config, Json, print_json
from sourdine.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sourdine.data.resting import Resting

_SHOWN = 5
_KEPT = (
    "The config folder is never erased. Its register and the marks of runs say what was spent: without "
    "them a budget could be spent twice. Its keys and salt let a stopped run go on, and keep the same "
    "records held out."
)


def clean(
    everything: Annotated[
        bool,
        typer.Option("--all", help="Erase fetched models and public texts as well."),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Erase without a question (needed in a script).")
    ] = False,
    json: Json = False,
    config: Config = None,
) -> None:
    """Show which private data rest on this machine, and erase those that nobody needs.

    It erases the cached features of private texts, and runs of Python programs that were killed before
    they were saved. It never erases the register, the marks of runs, keys or the salt, and no folder
    that you named yourself. What a running process needs stays.

    Example: `sourdine clean --all`
    """
    from sourdine.data.resting import erasable, erase, resting  # noqa: PLC0415

    found = resting()
    chosen = erasable(found, everything)
    if not json:
        _show(found)
    erased = bool(chosen) and _agreed(chosen, yes)
    freed = erase(chosen) if erased else 0
    if json:
        rows = [_row(each) for each in found]
        gone = [str(each.path) for each in chosen if not each.path.exists()] if erased else []
        print_json({"resting": rows, "erased": gone, "bytes": freed, "kept": _KEPT})
    elif erased:
        print(f"Erased {_size(freed)}.")
    else:
        print("There is nothing to erase.")


def _agreed(chosen: Sequence[Resting], yes: bool) -> bool:
    size = _size(sum(each.bytes for each in chosen))
    if yes:
        return True
    if not owner.on_terminal():
        raise InputError(f"nothing was erased: add --yes to erase {size} in {len(chosen)} places.")
    if not owner.confirmed(f"Erase {size} in {len(chosen)} places?"):
        raise InputError("you answered no, so nothing was erased.")
    return True


def _show(found: Sequence[Resting]) -> None:
    """The places by kind; of many the first few."""
    for name in dict.fromkeys(each.kind.name for each in found):
        own = [each for each in found if each.kind.name == name]
        kind = own[0].kind
        print(f"{name} ({kind.rule}): {kind.why}")
        for each in own[:_SHOWN]:
            print(f"  {_size(each.bytes):>9}  {_age(each.seconds):>9}  {each.path}")
        if more := own[_SHOWN:]:
            rest = sum(each.bytes for each in more)
            print(f"  {_size(rest):>9}  {len(more)} more in {more[0].path.parent}")
    print(_KEPT)


def _row(each: Resting) -> dict[str, object]:
    return {
        "kind": each.kind.name,
        "path": str(each.path),
        "bytes": each.bytes,
        "days": round(each.seconds / 86400, 2),
        "rule": each.kind.rule,
    }


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _age(seconds: float) -> str:
    days = seconds / 86400
    return f"{days:.0f} days" if days >= 1.5 else f"{seconds / 3600:.0f} hours"
