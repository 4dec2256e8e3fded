"""Does everything install? Resolve every extra for each system and Python, from the public index alone.

`make resolve` runs this. Nothing is installed: uv reads the index and picks versions, and it takes only
packages that have a wheel for the system, so no user needs a compiler. It resolves three sets of versions:

- pinned: with constraints.txt, as `make demo` and `make test` install
- newest: without constraints, as `pip install sourdine` does
- lowest: the lowest version that pyproject.toml allows of each direct dependency

The exit status is 1 if anything does not resolve.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SETS = {
    "pinned": ("--constraints", "constraints.txt"),
    "newest": (),
    "lowest": ("--resolution", "lowest-direct"),
}
# The name for people, uv's name, and what environment markers see there.
SYSTEMS = {
    "Linux x86_64": ("x86_64-manylinux_2_28", "Linux", "linux", "x86_64"),
    "Linux ARM": ("aarch64-manylinux_2_28", "Linux", "linux", "aarch64"),
    "macOS 14 ARM": ("aarch64-apple-darwin", "Darwin", "darwin", "arm64"),
    "Windows": ("x86_64-pc-windows-msvc", "Windows", "win32", "AMD64"),
}
ONLY_BASE = {"Windows": "training and ledgers need file locks"}

Cell = tuple[str, str, str, str]


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = ("", *project["optional-dependencies"])
    cells = [
        cell
        for cell in product(extras, SYSTEMS, PYTHONS, SETS)
        if not (cell[0] and cell[1] in ONLY_BASE)
    ]
    start = time.monotonic()
    with ThreadPoolExecutor(8) as pool:  # they wait for the network
        complaints = dict(zip(cells, pool.map(complaint, cells), strict=True))
    print(table(complaints))
    for sentence in left_out(project["optional-dependencies"]):
        print(sentence)
    failed = {cell: said for cell, said in complaints.items() if said}
    for cell, said in failed.items():
        print(f"\n{' '.join(part for part in cell if part)}:\n{said}", file=sys.stderr)
    minutes = (time.monotonic() - start) / 60
    print(f"{len(cells) - len(failed)} of {len(cells)} resolve; {minutes:.1f} minutes.")
    return 1 if failed else 0


def complaint(cell: Cell) -> str:
    """What uv says against this extra there; empty if it resolves."""
    extra, system, python, versions = cell
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("UV_", "PIP_")) or name == "UV_CACHE_DIR"
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "uv", "pip", "compile", "--no-config", "--quiet"),
            *("--only-binary", ":all:", "--python-platform", SYSTEMS[system][0]),
            # Else uv would download a Python for each version, which resolving does not need.
            *("--python", sys.executable, "--no-python-downloads"),
            *("--python-version", python, *SETS[versions]),
            *(("--extra", extra) if extra else ()),
            "pyproject.toml",
        ],
        cwd=ROOT,
        env={**clean, "MACOSX_DEPLOYMENT_TARGET": "14.0"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr.strip() or f"exit status {done.returncode}" if done.returncode else ""


def table(complaints: dict[Cell, str]) -> str:
    """A row for each extra and system, a column for each set and Python."""
    head = f"{'':24}" + "".join(f"{versions:^{6 * len(PYTHONS)}}" for versions in SETS)
    lines = [head, f"{'':24}" + "".join(f"{python:>6}" for _ in SETS for python in PYTHONS)]
    rows = dict.fromkeys((extra, system) for extra, system, _, _ in complaints)
    for extra, system in rows:
        said = [complaints[extra, system, python, versions] for versions in SETS for python in PYTHONS]
        marks = "".join(f"{'NO' if one else 'ok':>6}" for one in said)
        lines.append(f"{extra or '(base)':11}{system:13}{marks}")
    return "\n".join(lines)


def left_out(extras: dict[str, list[str]]) -> list[str]:
    """What is not offered somewhere, by name."""
    lines = [f"{system}: only the base package is offered; {why}." for system, why in ONLY_BASE.items()]
    for system, (_, platform, short, machine) in SYSTEMS.items():
        for extra, asked in extras.items() if system not in ONLY_BASE else ():
            for requirement in map(Requirement, asked):
                seen = {"platform_system": platform, "sys_platform": short, "platform_machine": machine}
                missing = [
                    python
                    for python in PYTHONS
                    if requirement.marker
                    and not requirement.marker.evaluate({**seen, "python_version": python})
                ]
                if missing:
                    lines.append(f"{system}, {extra}: no {requirement.name} on {', '.join(missing)}.")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
