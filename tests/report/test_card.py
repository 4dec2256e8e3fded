"""The model card: a YAML head that the hub reads, a section on privacy, foreign text escaped."""

import ast
import re
from typing import Any

import pytest
import samples
import yaml

from sourdine.errors import InputError
from sourdine.events import GaussianEvent
from sourdine.report.card import card, escaped


def head(text: str) -> dict[str, Any]:
    _, front, _ = text.split("---\n", 2)
    found: dict[str, Any] = yaml.safe_load(front)
    return found


def section(text: str, name: str) -> str:
    return text.split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]


def test_the_head_is_what_the_hub_reads() -> None:
    found = head(card(samples.quick(), samples.METRICS))
    assert found == {
        "library_name": "sourdine",
        "license": "unknown",
        "tags": ["differential-privacy", "text-classification", "sourdine"],
        "base_model": "sentence-transformers/all-MiniLM-L6-v2",
        "metrics": ["accuracy", "f1", "matthews_correlation"],
    }


@pytest.mark.parametrize(
    ("base", "named"),
    [
        ("distilbert-base-uncased", True),
        ("google/bert_uncased_L-2_H-128_A-2", True),
        ("UNKNOWN", False),
        ("/models/secret/minilm", False),
        ("./minilm", False),
        ("bytes", False),
        ("a small transformer on bytes", False),
        ("a/b\ninjected: yes", False),
    ],
)
def test_only_hub_names_are_base_models(base: str, named: bool) -> None:
    given = samples.quick()
    given["model"]["base"] = base
    found = head(card(given, None))
    assert found.get("base_model") == (base if named else None)
    assert "injected" not in found and "metrics" not in found


def test_a_license_that_is_given_is_kept() -> None:
    given = samples.quick()
    given["model"]["license"] = "apache-2.0"
    assert head(card(given, None))["license"] == "apache-2.0"


def test_privacy_is_stated() -> None:
    given = samples.certificate()
    privacy = section(card(given, samples.METRICS), "Privacy")
    stated = re.search(r"epsilon, at most \| ([\d.]+)", privacy)
    epsilon = given["guarantee"]["epsilon"]
    assert stated and epsilon <= float(stated[1]) < epsilon + 0.01
    for words in (
        "delta | 1e-6",
        "unit | example: one record",
        "adjacency | zero-out: compared with the same data with the record blanked out",
        "300 × a Poisson lot at rate 0.1 with Gaussian noise of multiplier 2.95",
        "duplicates shown to the owner: **NOT ACCOUNTED** (kept apart)",
        "the number of records: none",
        "sampling that ran | UNKNOWN",
        "attacks run | none",
        "sourdine verify DIR",
    ):
        assert words in privacy, words


def test_units_and_limits() -> None:
    one, all_ = (
        card(samples.quick(), None),
        card(samples.quick(unit="user", contribution_bound=8), None),
    )
    assert "whoever stands in k rows" in section(one, "Limits")
    assert "whoever stands in k rows" not in all_
    assert "user: all records of one person, of which at most 8 count" in all_
    assert "about any one person" in all_
    assert one.count("Brown et al. 2022") == 1
    given = samples.quick() | {"not_covered": "UNKNOWN"}
    assert "Brown et al. 2022" in section(card(given, None), "Limits")


def test_metrics_and_their_reference() -> None:
    metrics = {**samples.METRICS, "reference": samples.REFERENCE}
    found = section(card(samples.quick(), metrics), "Evaluation")
    assert "| accuracy | 0.853 | 0.831 | 0.874 | 0.881 |" in found
    assert "| macro F1 | 0.851 | 0.828 | 0.873 | – |" in found
    assert "not covered by the certificate" in found
    plain = section(card(samples.quick(), samples.METRICS), "Evaluation")
    assert "| accuracy | 0.853 | 0.831 | 0.874 |\n" in plain and "without privacy" not in plain
    assert "95 % confidence" in plain
    assert "No metrics were released." in section(card(samples.quick(), None), "Evaluation")
    rows = [line.count("|") for line in found.splitlines() if line.startswith("|")]
    assert len(rows) == 6 and set(rows) == {6}


def test_the_code_is_code() -> None:
    example = 'it said "```\nimport os" – é 😀'
    code = re.search(r"```python\n(.*?)\n```\n", card(samples.quick(), None, example=example), re.S)
    assert code
    tree = ast.parse(code[1])
    assert [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)] == ["DIR", example]


HOSTILE = "<script>x</script> | [a](b) *b* `c` # d\n\n# heading https://x.y ![i](j) &lt; ~~s~~"


def test_foreign_text_is_escaped() -> None:
    given = samples.quick()
    given["released"]["what"] = given["accesses"][0]["what"] = HOSTILE
    given["accesses"][1]["why"] = given["training"]["note"] = HOSTILE
    given["training"]["1. " + HOSTILE] = "- x"
    given["not_covered"] = [HOSTILE, "- nested", "1. nested", "# heading"]
    given["model"]["base"] = HOSTILE
    text = card(given, {**samples.METRICS, "how": HOSTILE})
    prose = re.sub(r"```python.*?```", "", text, flags=re.S).replace("**", "")
    for sign in ("<", "[", "`c", "*b", "&lt", "~~s"):
        assert not re.search(r"(?<!\\)" + re.escape(sign), prose), sign
    assert "https://" not in text
    assert (
        "\n# heading" not in text and "- # " not in text and "- - " not in text and "- 1. " not in text
    )
    assert text.count("\\<script\\>") == 9


def test_escaping_leaves_plain_text_alone() -> None:
    assert escaped("Poisson lots, rate 0.1 (300 steps); it's fine: yes!") == (
        "Poisson lots, rate 0.1 (300 steps); it's fine: yes!"
    )
    assert escaped("1.0") == "1.0" and escaped("10. x") == "10\\. x" and escaped("a_b") == "a\\_b"


def test_unknown_fields_say_so() -> None:
    bare = {"guarantee": samples.quick()["guarantee"]}
    text = card(bare, None)
    assert text.count("UNKNOWN") >= 6 and head(text)["library_name"] == "sourdine"
    with pytest.raises(InputError, match="no guarantee"):
        card({}, None)


def test_the_same_input_gives_the_same_bytes() -> None:
    assert card(samples.quick(), samples.METRICS) == card(samples.quick(), samples.METRICS)


def test_a_small_epsilon_is_not_rounded_away() -> None:
    given = samples.certificate(GaussianEvent(2000.0))
    assert "epsilon = 0.00" in card(given, None)
    assert not re.search(r"epsilon = 0(\.0*)?\*", card(given, None))
