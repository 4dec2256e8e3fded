"""Lists on the command line: CSV, several times, or from a file."""

import pytest

from sourdine.cli.options import listed
from sourdine.errors import InputError


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, None),
        ("yes,no", ["yes", "no"]),
        (["yes, no"], ["yes", "no"]),
        (["yes", "no"], ["yes", "no"]),
        (['"no, never",yes'], ["no, never", "yes"]),
        (['yes, "no, never"'], ["yes", "no, never"]),
        (['"say ""no""",yes'], ['say "no"', "yes"]),
        (['"@home",away'], ["@home", "away"]),
        (" , ,", []),
    ],
)
def test_items(given, found):
    assert listed(given) == found


def test_a_file_holds_one_label_a_line(tmp_path):
    names = tmp_path / "labels.txt"
    names.write_bytes('\ufeffcredit\r\n"loan, mortgage"\r\n\r\ndebt\x85old\r\n'.encode())
    assert listed([f"@{names}", "other"]) == ["credit", "loan, mortgage", "debt\x85old", "other"]


def test_a_list_that_cannot_be_read_says_how_to_write_it():
    with pytest.raises(InputError, match="double quotes"):
        listed('yes,"no')


def test_a_file_that_is_not_there():
    with pytest.raises(InputError, match="cannot be read"):
        listed("@nowhere.txt")


def test_what_is_spent_is_never_rounded_above_its_budget():
    from sourdine.cli.options import spending

    assert spending(2.9999996, 0.0, 3.0)[0] == "3"
    assert spending(0.99999996, 0.0, 1.0)[0] == "1"
    assert spending(2.9999996, 0.0, 2.9999997)[0] == "2.9999997"
    assert spending(3.44, 0.0, 3.0)[0] == "3.44"  # what is above it is said
