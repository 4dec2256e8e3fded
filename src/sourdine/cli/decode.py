"""`sourdine attack encoding`: what encodings give away about the vectors behind them."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from sourdine.cli.options import (
    Config,
    Device,
    Encoding,
    Json,
    Model,
    Text,
    import_text,
    print_json,
    whole,
)
from sourdine.errors import InputError
from sourdine.modes import write_privately

_SHOWN = 5


def encoding(
    file: Annotated[str, typer.Argument(help="A folder or a file of encodings.")],
    candidates: Annotated[
        str, typer.Option("--candidates", help="Texts that it might be: 900 others, or more.")
    ],
    public: Annotated[
        str, typer.Option("--public", help="Public texts of the same kind, for the attacker's frame.")
    ],
    truth: Annotated[
        str | None, typer.Option("--truth", help="The private texts, to say how much is recovered.")
    ] = None,
    text: Text = None,
    sources: Annotated[
        float | None, typer.Option("--sources", help="Private records, if the file does not say.")
    ] = None,
    mixed: Annotated[float | None, typer.Option("--mixed", help="Records in a mixture.")] = None,
    masks: Annotated[float | None, typer.Option("--masks", help="Sign masks.")] = None,
    similarity: Annotated[
        bool, typer.Option("--similarity", help="By a trained network, as Carlini et al. 2020.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="A new file for result.json.")] = None,
    model: Model = None,
    encoding: Encoding = "utf-8",
    device: Device = None,
    json: Json = False,
    config: Config = None,
) -> None:
    """Recover the vectors behind encodings, and name the candidate that each one is closest to.

    The attacker knows the encoder, how many records there are and how they were mixed, and has public
    texts. --truth is for the owner: it says how many vectors were found and how many records named.

    Example: `sourdine attack encoding notes-encoded --text note --candidates others.csv --truth
    notes.csv --public abstracts.csv`
    """
    import_text()
    from sourdine.data.corpus import read_corpus  # noqa: PLC0415
    from sourdine.encoding.encodings import Encodings  # noqa: PLC0415
    from sourdine.text.frozen import Frozen  # noqa: PLC0415

    if out is not None and out.exists():
        raise InputError(f"{out} is there already; name a new file with --out.")
    if out is not None and not out.absolute().parent.is_dir():
        raise InputError(f"there is no folder {out.parent} for {out.name}; make it first.")
    found = Encodings.load(file)
    names = {"candidates": candidates, "public": public}
    names |= {} if truth is None else {"truth": truth}
    texts = {
        name: read_corpus(path, text=text, label=None, encoding=encoding, labelled=False)
        for name, path in names.items()
    }
    how = {
        "mixed": whole("mixed", mixed) or int(found.about.get("mixed", 1)),
        "masks": whole("masks", masks) or int(found.about.get("masks", 1)),
        "sources": whole("sources", sources) or _sources(found, texts.get("truth")),
    }
    _check(found, how, {name: len(corpus) for name, corpus in texts.items()})
    read = Frozen(model, device)
    _check_width(found, read.encoder.config.hidden_size)
    seen = {name: found.seen(read(corpus.texts)) for name, corpus in texts.items()}
    guess = _recovered(found, how, seen["public"], similarity)
    result: dict[str, Any] = {"encodings": len(found), **how, "scheme": str(found.about.get("mode"))}
    if "truth" in seen:
        result |= _measured(guess, seen, guess is found.vectors)
        result |= _present(found, how, seen)
    result["closest"] = _closest(
        guess, seen, [row[0] for row in zip(*texts["candidates"].texts, strict=True)]
    )
    if out is not None:
        write_privately(out, json_module.dumps(result, indent=2) + "\n")
    if json:
        print_json(result)
    else:
        _say(result)


def _check(found: Any, how: dict[str, int], sizes: dict[str, int]) -> None:
    """Refuses at once what could only be refused after minutes of reading texts."""
    from sourdine.attacks.mixtures import check_sizes  # noqa: PLC0415
    from sourdine.attacks.recovered import check_counts  # noqa: PLC0415

    alone = how["mixed"] == 1 and how["masks"] == 1
    if not alone:
        rows, width = found.vectors.shape
        check_sizes(rows, width, sizes["public"], **how)
    if "truth" in sizes:
        count = len(found) if alone else how["sources"]
        check_counts(count, sizes["truth"], sizes["candidates"], paired=alone)


def _check_width(found: Any, width: int) -> None:
    """Whether features of so many numbers fit the map, or the vectors where there is none."""
    own = found.vectors.shape[1] if found.map is None else len(found.map.mean)
    if width != own:
        raise InputError(
            f"this encoder gives {width} numbers a text, and these encodings were made from {own}; "
            "name the encoder that they were made with (--model)."
        )


def _sources(found: Any, truth: Any) -> int:
    if "records" in found.about:
        return int(found.about["records"])
    if found.about.get("mixed", 1) == 1:
        return len(found)
    if truth is not None:
        return len(truth)
    raise InputError("say how many private records there are with --sources; the file does not.")


def _recovered(found: Any, how: dict[str, int], public: Any, similarity: bool) -> Any:
    if how["mixed"] == 1 and how["masks"] == 1:
        return found.vectors  # each encoding is of one record
    from sourdine.attacks import mixtures  # noqa: PLC0415
    from sourdine.attacks import similarity as by_network  # noqa: PLC0415

    attack = by_network.reconstruct if similarity else mixtures.reconstruct
    sources, mixed, masks = (how[name] for name in ("sources", "mixed", "masks"))
    return attack(found.vectors, sources=sources, mixed=mixed, masks=masks, public=public)


def _measured(guess: Any, seen: dict[str, Any], paired: bool) -> dict[str, Any]:
    from sourdine.attacks.recovered import recovered  # noqa: PLC0415

    result = recovered(
        guess, seen["truth"], public=seen["public"], distractors=seen["candidates"], paired=paired
    )
    return {
        "matched": result.matched,
        "identified": result.identified,
        "chance": result.chance,
        "records": len(seen["truth"]),
    }


def _present(found: Any, how: dict[str, int], seen: dict[str, Any]) -> dict[str, float]:
    """The share of records that show among mixtures without masks, where there are enough of those."""
    if how["mixed"] == 1 or how["masks"] > 1 or len(found) <= found.vectors.shape[1]:
        return {}
    from sourdine.attacks.presence import identified  # noqa: PLC0415

    return {"present": identified(found.vectors, seen["truth"], seen["candidates"])}


def _closest(guess: Any, seen: dict[str, Any], texts: list[str]) -> list[dict[str, Any]]:
    """For the clearest few of the recovered vectors, the candidate that they are closest to."""
    import numpy as np  # noqa: PLC0415 (only now: other verbs start without it)

    middle = seen["public"].mean(0)
    every = seen["candidates"]

    def unit(rows: Any) -> Any:
        rows = rows - middle
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)

    cosines = unit(guess) @ unit(every).T
    best = cosines.argmax(1)
    order = np.argsort(-cosines.max(1))[:_SHOWN]
    return [
        {"cosine": round(float(cosines[place, best[place]]), 4), "candidate": texts[best[place]]}
        for place in order
    ]


def _say(result: dict[str, Any]) -> None:
    print(f"{result['encodings']} encodings of {result['sources']} records ({result['scheme']})")
    if "matched" in result:
        count = result["records"]
        print(f"recovered: {result['matched']:.0%} of {count} vectors, with a cosine of 0.9 or more")
        print(
            f"identified: {result['identified']:.1%} of the records; by chance {result['chance']:.2%}"
        )
    if "present" in result:
        print(f"present: {result['present']:.1%} of the records show among the mixtures; same chance")
    print("closest candidates:")
    for row in result["closest"]:
        print(f"  {row['cosine']:.3f}  {row['candidate'][:90]}")
