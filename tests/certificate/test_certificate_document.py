"""The certificate as a document: read strictly, written the same way every time."""

import json
from pathlib import Path
from typing import Any

import pytest
from run_folder import TRAINING, drafted, make_ledger

from sourdine.certificate import Certificate
from sourdine.errors import InputError
from sourdine.events import compose
from sourdine.ledger import Ledger


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    return make_ledger(None)  # type: ignore[arg-type]  # in memory


@pytest.fixture(scope="module")
def certificate(ledger: Ledger) -> Certificate:
    return drafted(ledger)


def shuffled(value: Any) -> Any:
    """The same document with its fields in another order."""
    if isinstance(value, dict):
        return {name: shuffled(value[name]) for name in sorted(value, reverse=True)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


def test_the_text_is_stable(certificate: Certificate) -> None:
    text = certificate.to_json()
    assert Certificate.from_json(text) == certificate
    assert Certificate.from_json(text).to_json() == text
    assert Certificate.of(shuffled(certificate.document)).to_json() == text
    assert list(certificate.document)[:3] == ["format", "version", "made"]
    assert text.endswith("}\n")


def test_a_copy_of_the_document_changes_nothing(certificate: Certificate) -> None:
    certificate.document["guarantee"]["epsilon"] = 0.1
    assert certificate.epsilon > 2


def test_what_it_says(certificate: Certificate, ledger: Ledger) -> None:
    assert certificate.delta == 1e-6
    assert certificate.event == compose(entry.event for entry in ledger.history()[1:])
    assert TRAINING.parts[0] in certificate.event.parts
    assert not certificate.signed


WRONG = [
    ("guarantee.epsilon is not a number", lambda d: d["guarantee"].update(epsilon=True)),
    ("guarantee.epsilon is not a number", lambda d: d["guarantee"].update(epsilon=None)),
    ("guarantee.delta is not a number between 0 and 1", lambda d: d["guarantee"].update(delta=0)),
    ("guarantee.unit is not example or user", lambda d: d["guarantee"].update(unit="group")),
    ("guarantee.curve is not a list", lambda d: d["guarantee"].update(curve={})),
    (
        "guarantee.curve, item 1 has no field 'epsilon'",
        lambda d: d["guarantee"]["curve"][0].pop("epsilon"),
    ),
    ("guarantee has a field 'alpha'", lambda d: d["guarantee"].update(alpha=1)),
    ("the certificate has no field 'audit'", lambda d: d.pop("audit")),
    ("the certificate has a field 'seed'", lambda d: d.update(seed=7)),
    ("version is not a whole number", lambda d: d.update(version=1.0)),
    ("no certificate: one says", lambda d: d.update(format="x")),
    ("version 2, newer than the version 1 .*update sourdine", lambda d: d.update(version=2)),
    ("events is not an event", lambda d: d["events"].update(version=7)),
    ("accesses, item 1.cost is not an event or", lambda d: d["accesses"][0].update(cost="free")),
    ("audit is not a list", lambda d: d.update(audit="fine")),
    ("audit, item 1.lower_bound is not", lambda d: d["audit"][0].update(lower_bound=-1)),
    ("released.files is not an object of SHA-256", lambda d: d["released"].update(files={"a": "b"})),
    ("data.records is not a whole number", lambda d: d["data"].update(records=-1)),
    ("data.text, item 1 is not a text", lambda d: d["data"].update(text=[1])),
    ("training.deep holds half a character", lambda d: d["training"].update(deep=["\ud800"])),
    ("not_covered, item 1 is not a text", lambda d: d.update(not_covered=[""])),
    ("signature is not an object", lambda d: d.update(signature="signed")),
    ("signature.value is not 128", lambda d: d.update(signature={**SIGNATURE, "value": "zz" * 64})),
    ("signature.algorithm is not", lambda d: d.update(signature={**SIGNATURE, "algorithm": "none"})),
]
SIGNATURE = {"algorithm": "Ed25519", "public_key": "00" * 32, "value": "00" * 64}


@pytest.mark.parametrize(("said", "change"), WRONG)
def test_a_wrong_field_is_named(certificate: Certificate, said: str, change: Any) -> None:
    document = certificate.document
    change(document)
    with pytest.raises(InputError, match=said):
        Certificate.of(document)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no complete JSON document"),
        ('{"format": "sourdine.cert', "cut short"),
        ("[1]", "not an object"),
        ("[" * 100_000, "no complete JSON document"),
        ('{"format": "x", "format": "y"}', "'format' stands twice"),
        ('{"epsilon": NaN}', "NaN, which is no number"),
        ('{"epsilon": -Infinity}', "-Infinity, which is no number"),
        ("{}", "is no certificate"),
    ],
)
def test_what_is_no_certificate(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Certificate.from_json(text)


def test_infinity_in_a_free_field_is_named(certificate: Certificate) -> None:
    text = certificate.to_json().replace('"value": 0.85', '"value": 1e999')
    with pytest.raises(InputError, match=r"utility\.accuracy\.value holds a number that is not finite"):
        Certificate.from_json(text)
    with pytest.raises(InputError, match="finite numbers"):
        Certificate.of({**certificate.document, "utility": {"accuracy": float("nan")}})
    with pytest.raises(InputError, match="finite numbers"):
        Certificate.of({**certificate.document, "utility": {"accuracy": object()}})


def test_the_first_version_stays_readable() -> None:
    """A certificate as version 1 writes it; it must load for ever, so this file is never changed."""
    text = (Path(__file__).parent / "version1.json").read_text(encoding="utf-8")
    found = Certificate.from_json(text)
    assert found.to_json() == text
    assert json.loads(text)["guarantee"]["epsilon"] == found.epsilon


def test_in_jupyter(certificate: Certificate) -> None:
    shown = Certificate.of(
        {**certificate.document, "released": {"what": "<script>x</script>", "to": "a", "files": {}}}
    )._repr_html_()
    assert "&lt;script&gt;" in shown and "<script>" not in shown
    assert "nobody yet (a draft)" in shown and "duplicates" in shown
    stated = float(shown.split("epsilon ≤ ")[1].split(" ")[0])
    assert certificate.epsilon <= stated < certificate.epsilon + 1e-4
