"""What pyproject.toml asks for is what the code imports; what the source archive must hold."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
# Packages whose import has another name than the package.
IMPORTED_AS = {"attrs": "attr", "scikit-learn": "sklearn", "pyyaml": "yaml"}
# Rooms that run only with torch, which `pip install sourdine[text]` brings.
WITH_TEXT = {"attacks", "encoding", "pate", "sgd", "text"}
# Loaded by other means than an import: a driver that SQLAlchemy finds, backends that pip options choose.
LOADED_OTHERWISE = {"psycopg"}
COMES_WITH_TORCH = {"triton"}  # on Linux; looked for before it is imported
# pip is part of a virtual environment.
PART_OF_PYTHON = {"pip"}


def modules(requirements: list[str]) -> set[str]:
    """The names under which these requirements are imported; an extra of ours stands for its own."""
    names = set()
    for requirement in requirements:
        name, inner = re.match(r"([\w.-]+)(?:\[([^]]*)\])?", requirement).groups()
        if name == "sourdine":
            names |= modules([asked for extra in inner.split(",") for asked in EXTRAS[extra]])
        else:
            names.add(IMPORTED_AS.get(name.lower(), name.lower().replace("-", "_")))
    return names


BASE = modules(PROJECT["project"]["dependencies"])
TEXT = modules(EXTRAS["text"])
DEV = modules(EXTRAS["dev"])


def imports(file: Path, at_once: bool = False) -> Iterator[str]:
    """The packages that a file imports anywhere, or asks for by name; `at_once`: at its top level."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in tree.body if at_once else ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [str(node.module)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("importorskip", "import_module", "find_spec")
        ):
            names = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
        else:
            continue
        yield from (name.split(".")[0] for name in names)


def foreign(folder: str, at_once: bool = False) -> set[tuple[str, str]]:
    """Each third-party package that a folder imports, or imports as soon as it is loaded, and the file."""
    files = list((ROOT / folder).rglob("*.py"))
    own = {"sourdine"} | {file.stem for file in files} | {file.parent.name for file in files}
    known = own | set(sys.stdlib_module_names) | PART_OF_PYTHON
    return {
        (name, file.relative_to(ROOT).as_posix())
        for file in files
        for name in imports(file, at_once)
        if name not in known
    }


def test_every_package_that_the_library_imports_is_declared() -> None:
    assert {
        found for found in foreign("src") if found[0] not in BASE | TEXT | COMES_WITH_TORCH
    } == set()


def test_the_base_package_loads_without_the_extras() -> None:
    missing = {
        (name, file)
        for name, file in foreign("src", at_once=True)
        if name not in BASE and not WITH_TEXT & set(Path(file).parts)
    }
    assert missing == set()


@pytest.mark.parametrize("folder", ["tests", "examples"])
def test_every_package_that_the_tests_import_is_declared(folder: str) -> None:
    assert {found for found in foreign(folder) if found[0] not in BASE | DEV} == set()


def test_every_package_that_the_benchmarks_import_is_declared() -> None:
    tests = {file.stem for file in (ROOT / "tests").rglob("*.py")}
    known = BASE | DEV | modules(EXTRAS["bench"]) | tests
    assert {found for found in foreign("benchmarks") if found[0] not in known} == set()


def test_nothing_is_asked_for_in_vain() -> None:
    used = {name for name, _ in foreign("src")} | LOADED_OTHERWISE
    assert (BASE | TEXT | modules(EXTRAS["postgres"])) - used == set()


def test_the_pinned_set_covers_every_requirement() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [re.match(r"([\w.-]+)==\S+$", line) for line in lines if line and not line.startswith("#")]
    assert all(pins)
    pinned = modules([pin[1] for pin in pins if pin])
    asked = BASE.union(*(modules(extra) for extra in EXTRAS.values()))
    assert asked - pinned == set()


def test_the_pinned_versions_fit_what_the_packages_ask_of_each_other() -> None:
    """As far as those installed here say; `make resolve` asks the index about all of them."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.lower().split("==") for line in lines if "==" in line)
    clashes = []
    for name, version in pinned.items():
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        for asked in map(Requirement, installed.requires or []):
            held = pinned.get(asked.name.lower())
            applies = asked.marker is None or asked.marker.evaluate({"extra": ""})
            if (
                installed.version.split("+")[0] == version
                and held
                and applies
                and held not in asked.specifier
            ):
                clashes.append(f"{name} {version} needs {asked}, not {held}")
    assert clashes == []


def test_the_source_archive_holds_what_its_tests_and_readme_need() -> None:
    include = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    needed = {
        "src",
        "tests",
        "examples",
        "benchmarks",
        "docs",
        "Makefile",
        "constraints.txt",
        "LICENSE",
        "*.md",
    }
    assert needed - set(include) == set()
    assert [asked for asked in include if not any(ROOT.glob(asked))] == []
