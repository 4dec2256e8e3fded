"""What the README shows is what happens."""

import doctest
import re
import shlex
from pathlib import Path

import pytest

from sourdine.cli import main

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text(encoding="utf-8")
COMMANDS = [
    (command, output)
    for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
    for command, output in re.findall(r"^\$ sourdine (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]


def test_python_examples() -> None:
    result = doctest.testfile(str(README), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 8
    assert result.failed == 0


@pytest.mark.parametrize(("command", "output"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_console_examples(command: str, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == output


def test_the_two_commands_exist() -> None:
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in TEXT
        assert f"\n{target}:" in makefile


def test_every_linked_file_exists() -> None:
    pages = [README, *sorted((README.parent / "docs").glob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
