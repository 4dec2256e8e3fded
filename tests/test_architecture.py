"""The house rules that a machine can check."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sourdine

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "sourdine"
# Who may import whom: a room may import itself and the rooms named here (docs/architecture.md).
MAY_IMPORT = {
    "digits": set(),
    "errors": set(),
    "home": set(),
    "modes": set(),
    "notebook": {"digits", "errors"},
    "checks": {"errors"},
    "rng": {"checks", "errors"},
    "budget": {"checks", "notebook"},
    "events": {"checks", "errors", "event_files"},
    "event_files": {"events", "errors"},
    "dp_events": {"events", "errors"},
    "accounting": {"budget", "checks", "errors", "events", "dp_events", "notebook"},
    "ledger": {"accounting", "budget", "checks", "errors", "events", "notebook"},
    "audit": {"accounting", "checks", "digits", "errors", "events"},
    "mechanisms": {"accounting", "checks", "errors", "events", "rng"},
    "data": {"checks", "errors", "home"},
    "register": {"budget", "checks", "data", "digits", "errors", "events", "home", "ledger"},
    "query": {
        "accounting",
        "budget",
        "checks",
        "data",
        "errors",
        "events",
        "ledger",
        "mechanisms",
        "register",
        "rng",
    },
    "sgd": {"accounting", "budget", "checks", "errors", "events", "home", "ledger", "register", "rng"},
    "certificate": {
        "accounting",
        "audit",
        "budget",
        "checks",
        "digits",
        "dp_events",
        "errors",
        "events",
        "home",
        "ledger",
        "modes",
    },
    "text": {
        *(
            "accounting",
            "audit",
            "budget",
            "certificate",
            "checks",
            "data",
            "digits",
            "errors",
            "events",
            "home",
            "ledger",
            "mechanisms",
        ),
        *("modes", "pate", "register", "report", "rng", "sgd", "__init__"),
    },
    # Its noise is made where that of training is: there is one place for it.
    "encoding": {
        *("accounting", "budget", "certificate", "checks", "digits", "errors", "events", "ledger"),
        *("mechanisms", "modes", "register", "report", "rng", "sgd"),
    },
    "pate": {
        *("accounting", "budget", "certificate", "checks", "data", "digits", "errors", "events"),
        *("ledger", "mechanisms", "modes", "register", "report", "rng"),
    },
    "report": {"accounting", "budget", "certificate", "checks", "digits", "errors", "events"},
    "attacks": {"audit", "checks", "data", "errors", "rng"},
    "cli": {
        *(
            "accounting",
            "attacks",
            "audit",
            "budget",
            "certificate",
            "checks",
            "data",
            "digits",
            "encoding",
            "errors",
            "events",
            "ledger",
            "mechanisms",
            "pate",
            "query",
        ),
        *("modes", "register", "report", "rng", "text", "__init__"),
    },
    "__init__": {
        "accounting",
        "audit",
        "budget",
        "certificate",
        "encoding",
        "errors",
        "events",
        "ledger",
        "mechanisms",
        "query",
        "rng",
        "sgd",
        "text",
    },
    "__main__": {"cli"},
}


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "sourdine":
                names = [
                    f"sourdine.{alias.name}"
                    if (SOURCE / f"{alias.name}.py").exists() or (SOURCE / alias.name).is_dir()
                    else "sourdine.__init__"
                    for alias in node.names
                ]
        rooms |= {
            name.split(".")[1] if "." in name else "__init__"
            for name in names
            if name.split(".")[0] == "sourdine"
        }
    return rooms


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_rooms_import_only_what_they_may(path: Path) -> None:
    here = room(path)
    assert here in MAY_IMPORT, f"{here} is not drawn in docs/architecture.md"
    assert imported_rooms(path) <= MAY_IMPORT[here] | {here}


def test_the_rule_can_fail(tmp_path: Path) -> None:
    stray = tmp_path / "stray.py"
    stray.write_text("from sourdine.cli import app\nfrom sourdine import checks\n", encoding="utf-8")
    assert imported_rooms(stray) == {"cli", "checks"}


def fresh(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_import_is_light() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); import sourdine; took = time.perf_counter() - start; "
        "import json; print(json.dumps([took, sorted(m.split('.')[0] for m in sys.modules)]))"
    )
    took, modules = min((json.loads(fresh(code)) for _ in range(3)), key=lambda run: run[0])
    assert took < 0.3
    assert not {"torch", "opendp", "scipy", "numpy", "dp_accounting", "matplotlib"} & set(modules)


def test_exported_names() -> None:
    assert set(sourdine.__all__) <= set(dir(sourdine))
    for name in sourdine.__all__:
        assert getattr(sourdine, name).__name__ == name
    with pytest.raises(AttributeError, match="nonsense"):
        sourdine.nonsense  # noqa: B018


def test_architecture_page_names_every_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for name in MAY_IMPORT.keys() - {"__init__", "__main__"}:
        assert f"`{name}" in page


def test_no_global_randomness_in_the_library() -> None:
    banned = re.compile(
        r"np\.random\.(rand|seed|normal|choice)|\brandom\.(random|seed)\(|torch\.manual_seed"
    )
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path == SOURCE / "sgd" / "engine.py":  # the user's dropout, inside fork_rng, from our stream
            text = text.replace("torch.manual_seed(self._streams", "")
        assert not banned.search(text), path
