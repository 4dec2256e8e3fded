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


def test_python_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(README.parent)
    result = doctest.testfile(str(README), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 8
    assert result.failed == 0


EXACT = [pair for pair in COMMANDS if pair[0].split()[0] in ("account", "calibrate")]
NOISY = [pair for pair in COMMANDS if pair not in EXACT]


@pytest.mark.parametrize(("command", "output"), EXACT, ids=[command for command, _ in EXACT])
def test_console_examples(command: str, output: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == output


def test_console_examples_with_noise(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, as a reader would; released numbers are left out of the comparison."""
    (tmp_path / "examples").symlink_to(README.parent / "examples")
    monkeypatch.chdir(tmp_path)
    assert len(NOISY) > 5
    for command, output in NOISY:
        assert main(shlex.split(command)) == 0
        assert plain(capsys.readouterr().out) == plain(output), command


def plain(text: str) -> str:
    """Answers without their numbers: `mean of stars: # (# to # with 95% confidence)`."""
    found = re.sub(r"(?<=: )-?[\d.]+%?(?= \()", "#", text)
    return re.sub(r"\(-?[\d.]+%? to -?[\d.]+%? with", "(# to # with", found)


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
