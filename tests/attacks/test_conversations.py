"""The example of the conversations runs, and shows what it says."""

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "conversations.py"


def test_a_secret_outlives_the_messages_of_the_person_it_is_about(
    capsys: pytest.CaptureFixture[str],
) -> None:
    example = runpy.run_path(str(EXAMPLE))
    found = example["main"](200)
    assert found.pop("without all that tell it") == 0
    assert all(count >= 5 for count in found.values()) and len(found) == 4
    without = example["trainings"]()["without Mira's conversations"]
    assert all(message.speaker != "Mira" for message in without)
    assert not any(example["SECRET"] in prompt for prompt in example["PROMPTS"])
    assert "without Mira's conversations" in capsys.readouterr().out
