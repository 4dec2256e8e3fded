"""Questions reach the terminal; facts about records are marked."""

import pytest

from sourdine.cli import owner


def test_nobody_can_answer_in_a_pipe():
    assert not owner.on_terminal()


def test_facts_about_records_are_marked_and_go_to_stderr(capsys):
    owner.tell_privately("3 records have other labels.")
    owner.tell("Nothing was charged.")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "sourdine (for you only, not for release): 3 records have other labels.",
        "sourdine: Nothing was charged.",
    ]


@pytest.mark.parametrize(("typed", "answer"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_enter_is_no(monkeypatch, capsys, typed, answer):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert owner.confirmed("Go on?") is answer
    out, err = capsys.readouterr()
    assert "Go on?" in err
    assert out == ""
