"""`sourdine figures`: the pictures of the subject, from our own numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sourdine.cli.options import Config, Json, print_json
from sourdine.errors import InputError


def figures(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which figures; all if none is named.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the PNG and SVG files.")] = Path(
        "figures"
    ),
    json: Json = False,
    config: Config = None,
) -> None:
    """Draw how privacy is lost and counted, as PNG and SVG.

    There are densities, privacy-loss, accountants, amplification, attributes, shuffling, delta-meaning,
    randomized-response, local-central, smokers.

    Example: `sourdine figures accountants shuffling --out pictures`
    """
    from sourdine.report.figures import FIGURES, draw  # noqa: PLC0415

    try:
        paths = draw(names or list(FIGURES), out)
    except OSError as error:
        raise InputError(f"the figures cannot be written to {out}: {error.strerror}.") from None
    if json:
        print_json({"files": [str(path) for path in paths]})
        return
    for path in paths:
        print(path)
