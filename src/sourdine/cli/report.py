"""`sourdine report`: the report of a run folder, rendered anew."""

from __future__ import annotations

import json as json_files
from pathlib import Path
from typing import Annotated, Any

import typer

from sourdine.cli.options import Config, Json, print_json, read_text
from sourdine.errors import InputError

_Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")]


def report(
    folder: _Folder,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The HTML file to write; DIR-report.html here if not given."),
    ] = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Render the report of a run as one self-contained HTML file, from its certificate and metrics.

    The report.html inside the folder is sealed with it and stays as it is. What is rendered is not
    checked: `sourdine verify DIR` does that.

    Example: `sourdine report runs/reviews --out reviews.html`
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; name the folder of a finished run.")
    if not (folder / "certificate.json").exists():
        raise InputError(
            f"there is no certificate.json in {folder}; name the folder of a finished run."
        )
    certificate = _object(folder / "certificate.json")
    measured = folder / "metrics.json"
    metrics = _object(measured) if measured.exists() else None
    target = Path(f"{folder.resolve().name}-report.html") if out is None else out
    if target.resolve().is_relative_to(folder.resolve()):
        raise InputError(
            f"{target} lies inside the run folder, which is sealed: a file that comes or changes there "
            "breaks it. Name a place outside."
        )
    from sourdine.report.findings import guarantee  # noqa: PLC0415
    from sourdine.report.page import page  # noqa: PLC0415

    promised = guarantee(certificate)
    _write(target, page(certificate, metrics))
    if json:
        print_json({"report": str(target), "epsilon": promised.epsilon, "delta": promised.delta})
        return
    print(f"the report lies at {target}")


def _object(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds."""
    try:
        found = json_files.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        found = None
    if not isinstance(found, dict):
        raise InputError(
            f"{path} is damaged: it holds no JSON object. Take it from an unchanged copy of the run."
        )
    return found


def _write(target: Path, text: str) -> None:
    try:
        target.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(
            f"the report cannot be written to {target}: {error.strerror}. Name another file with --out."
        ) from None
