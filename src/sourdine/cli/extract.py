"""`sourdine attack extraction`: what training text does a language model write when prompted?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sourdine import checks
from sourdine.cli.options import Config, Device, Encoding, Json, User, print_json, read_text
from sourdine.errors import InputError

if TYPE_CHECKING:
    from sourdine.attacks.extraction import Counts, Writes
    from sourdine.attacks.matching import TrainingText

_KINDS = {
    "contact": "mail, phone, links",
    "address": "addresses",
    "name": "names",
    "number": "numbers",
    "code": "code",
    "other": "other text",
}


def extraction(
    target: Annotated[str, typer.Argument(help="The folder of a causal language model.")],
    texts: Annotated[
        str | None, typer.Option("--texts", help="Its training text: CSV, TSV, JSONL or Parquet.")
    ] = None,
    text: Annotated[str | None, typer.Option("--text", help="The column of text.")] = None,
    user: User = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", help="A file of prompts, one a line.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option("--reference", help="A model that never met the text, to compare.")
    ] = None,
    samples: Annotated[float, typer.Option("--samples", help="Texts drawn each way.")] = 200,
    tokens: Annotated[float, typer.Option("--tokens", help="Tokens of each of them.")] = 256,
    least: Annotated[float, typer.Option("--least", help="Signs that a passage must have.")] = 50,
    out: Annotated[
        Path | None, typer.Option("--out", help="Its folder; model-extraction for model.")
    ] = None,
    encoding: Encoding = "utf-8",
    device: Device = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Prompt a model for memorised text, and count what of it stands in the training text.

    Prints counts only. The passages are private text: they go into a folder beside --out that ends in
    .not-for-release, for the owner's eyes. Nothing found is no proof that nothing was memorised.

    Example: `sourdine attack extraction model/ --texts train.csv --text note --user patient`
    """
    drawn, long = checks.whole("samples", samples), checks.whole("tokens", tokens)
    given = _prompts(prompts)
    training = _training(texts, text, user, encoding, checks.whole("least", least))

    from sourdine.attacks.extraction import extract  # noqa: PLC0415 (scipy, torch: only now)

    model = _writer(target, device)
    other = None if reference is None else _writer(reference, device)
    found = extract(model, training, prompts=given, reference=other, samples=drawn, tokens=long)
    folder = out or Path(f"{Path(target).resolve().name}-extraction")
    beside = found.save(folder)
    if json:
        print_json({**found.counts.to_json(), "folder": str(folder), "passages_folder": str(beside)})
        return
    for line in lines(found.counts):
        print(line)
    print(f"The counts: {folder / 'extraction.json'}")
    print(f"The passages, NOT FOR RELEASE: {beside / 'passages.json'}")


def _prompts(path: Path | None) -> list[str]:
    if path is None:
        return []
    found = [line for line in read_text(path).splitlines() if line.strip()]
    if not found:
        raise InputError(f"{path} holds no prompt; write one a line.")
    return found


def _training(
    texts: str | None, text: str | None, user: str | None, encoding: str, least: int
) -> TrainingText:
    if texts is None:
        raise InputError("give --texts, the file of the training text that is searched for.")
    from sourdine.attacks.matching import TrainingText  # noqa: PLC0415
    from sourdine.data.corpus import read_corpus  # noqa: PLC0415

    corpus = read_corpus(texts, text=text, label=None, user=user, encoding=encoding, labelled=False)
    return TrainingText(corpus.texts[0], corpus.users, least=least)


def _writer(path: str, device: str | None) -> Writes:
    from sourdine.attacks.adapters import from_folder  # noqa: PLC0415
    from sourdine.attacks.target import Generates, Predicts  # noqa: PLC0415

    if sys.stderr.isatty():
        print(f"sourdine: loading {path}", file=sys.stderr)
    model = from_folder(path, device=device)
    if not (isinstance(model, Predicts) and isinstance(model, Generates)):
        raise InputError(
            f"the model in {path!r} does not write: extraction needs a causal language model. For a "
            "classifier, use sourdine attack membership."
        )
    return model


def lines(counts: Counts) -> list[str]:
    """The counts as a table and sentences, without any text of the records."""
    ways = list(dict.fromkeys(cell.way for cell in counts.cells))
    ranked = list(dict.fromkeys(cell.ranking for cell in counts.cells))
    cells = {(cell.way, cell.ranking): f"{cell.memorised}/{cell.picked}" for cell in counts.cells}
    table = [["memorised/picked", *ways]]
    table += [[ranking, *(cells[way, ranking] for way in ways)] for ranking in ranked]
    widths = [max(len(row[place]) for row in table) for place in range(len(table[0]))]
    said = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    if not counts.passages:
        return [
            *said,
            f"No passage of the training text was found in {counts.samples:,} samples; that proves "
            "nothing: another prompt may find one.",
        ]
    said.append(f"{_passages(counts.passages)} of the training text in {counts.samples:,} samples:")
    said += [f"  {_KINDS[kind]:<20}{count:>6,}" for kind, count in counts.kinds.items() if count]
    said += [
        f"  in {'one text only' if k == 1 else f'{k} texts or fewer'}: {count:,} ({k}-eidetic)"
        for k, count in counts.eidetic.items()
    ]
    if counts.one_person is not None:
        said.append(f"  in texts of one person only: {counts.one_person:,}")
    return said


def _passages(count: int) -> str:
    return f"{count:,} passage{'' if count == 1 else 's'}"
