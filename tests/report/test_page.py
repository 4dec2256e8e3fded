"""The report: what it says is proven, complete, escaped, self-contained, and the same every time."""

import copy
import json
import math
import re
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import samples
from scipy import stats

from sourdine.accounting import curve
from sourdine.cli import main
from sourdine.errors import InputError
from sourdine.events import GaussianEvent, ShuffledEvent
from sourdine.report import plots, words
from sourdine.report.card import card
from sourdine.report.fields import parts
from sourdine.report.findings import LEVELS, find, level
from sourdine.report.page import page

VOID = {"meta", "br", "link", "img", "hr"}
ALARMS = [0.0, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.3, 0.5, 0.9, 1.0]


class Reader(HTMLParser):
    """Checks that tags are balanced; collects tags, attributes and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.said.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.said).replace("\u00a0", " ").split())


@pytest.fixture(scope="module")
def full() -> tuple[str, Reader]:
    html = page(samples.certificate(), {**samples.METRICS, "reference": samples.REFERENCE})
    return html, Reader(html)


def test_the_verdict_comes_first_and_is_rounded_up(full: tuple[str, Reader]) -> None:
    epsilon = samples.certificate()["guarantee"]["epsilon"]
    sentence = re.search(r"learns at most epsilon = ([\d.]+) about any one record", full[1].text)
    assert sentence and epsilon <= float(sentence[1]) < epsilon + 0.01
    assert "convention, not a theorem" in full[1].text
    current = [attrs for tag, attrs in full[1].tags if "aria-current" in attrs]
    assert len(current) == 1 and 'aria-current="true"><b>solid</b>' in full[0]


def test_everything_is_said(full: tuple[str, Reader]) -> None:
    for words_ in (
        "NOT ACCOUNTED",
        "duplicates shown to the owner",
        "Brown et al. 2022",
        "No attack has been run",
        "sourdine verify DIR --key KEY",
        "special_tokens_map.json",
        "Without privacy, accuracy is 0.881: 0.028 higher.",
        "95 % confidence",
        "300 × a Poisson lot at rate 0.1 with Gaussian noise of multiplier 2.95",
        "Matthews correlation",
        "1 in 1,000,000",
    ):
        assert words_ in full[1].text, words_


def test_every_field_of_the_certificate_is_shown() -> None:
    shown = parts(samples.certificate())
    rows = {(part.name, row.name): row for part in shown for row in part.rows}
    assert rows["sampling", "executed"].mark == "unknown"
    assert rows["accesses", "3 · cost"].mark == "warning"
    assert rows["other fields", "audit"].value == "UNKNOWN"
    assert rows["released", "files · special_tokens_map.json"].value == "cd" * 32
    assert rows["guarantee", "mu"].value == "none"
    names = {part.name for part in shown} | {name for _, name in rows}
    assert {key.replace("_", " ") for key in samples.certificate()} <= names

    def leaves(value: Any) -> int:
        if isinstance(value, dict) and value.get("format") == "sourdine.event":
            return 1
        if isinstance(value, dict):
            pair = set(value) <= {"delta", "epsilon", "epsilon_lower"}
            return 1 if pair else sum(leaves(inner) for inner in value.values())
        if isinstance(value, list) and any(isinstance(item, dict) for item in value):
            return sum(leaves(item) for item in value)
        return 1

    assert len(rows) == leaves(samples.certificate())
    extra = samples.quick() | {"new_field": {"of": "tomorrow"}}
    assert ("of", "tomorrow") in {(row.name, row.value) for p in parts(extra) for row in p.rows}


def test_nothing_is_fetched_and_nothing_runs(full: tuple[str, Reader]) -> None:
    html, reader = full
    tags = {tag for tag, _ in reader.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "form", "a", "base", "image", "use"}
    names = {name for _, attrs in reader.tags for name in attrs}
    assert not names & {"src", "href", "srcset", "data", "action", "xlink:href", "background", "style"}
    assert not any(name.startswith("on") for name in names)
    assert "http" not in html.replace('http-equiv="Content-Security-Policy"', "").lower()
    assert "url(" not in html and "@import" not in html
    assert "default-src 'none'" in html


def test_figures_can_be_heard(full: tuple[str, Reader]) -> None:
    drawn = [attrs for tag, attrs in full[1].tags if tag == "svg"]
    assert len(drawn) == 6
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in drawn)
    assert ("html", {"lang": "en"}) in full[1].tags


def test_headings_go_down_one_step_at_a_time(full: tuple[str, Reader]) -> None:
    depths = [int(tag[1]) for tag, _ in full[1].tags if re.fullmatch(r"h[1-6]", tag)]
    assert depths[0] == 1 and depths.count(1) == 1
    assert all(below - above <= 1 for above, below in pairwise(depths))


def test_no_number_is_missing(full: tuple[str, Reader]) -> None:
    assert not re.search(r"\b(nan|NaN|inf|None|Undefined)\b", full[0])


def test_the_same_input_gives_the_same_bytes_in_time(full: tuple[str, Reader]) -> None:
    start = time.process_time()
    again = page(samples.certificate(), {**samples.METRICS, "reference": samples.REFERENCE})
    assert again == full[0]
    assert time.process_time() - start < 3  # seconds of one core, accounting included


# --- what the numbers mean ---


def power(mu: float, alarms: float) -> float:
    """What the best attack on N(0, 1) against N(mu, 1) really reaches."""
    return float(stats.norm.cdf(stats.norm.ppf(alarms) + mu))


@pytest.mark.parametrize("sigma", [0.3, 0.7, 1.7, 6.0])
def test_no_attack_finds_more_than_the_page_says(sigma: float) -> None:
    found = find(samples.certificate(GaussianEvent(sigma))).tradeoff
    for alarms in ALARMS:
        assert power(1 / sigma, alarms) <= found.found(alarms) + 1e-12
        assert found.found(alarms) <= power(1 / sigma, alarms) + 0.03
    for rows in (2, 5):  # a group of k records is at distance k / sigma
        for alarms in ALARMS:
            assert power(rows / sigma, alarms) <= found.found(alarms, rows) + 1e-12
    assert stats.norm.cdf(0.5 / sigma) <= found.guess <= stats.norm.cdf(0.5 / sigma) + 0.01


@pytest.mark.parametrize("sigma", [0.7, 1.7, 6.0])
def test_a_tenth_less_noise_is_noticed(sigma: float) -> None:
    """The twin: the bound for this noise does not hold for an attack on a tenth less of it."""
    found = find(samples.certificate(GaussianEvent(sigma))).tradeoff
    less = 1 / (0.9 * sigma)
    assert any(power(less, alarms) > found.found(alarms) for alarms in ALARMS)
    assert any(power(2 * less, alarms) > found.found(alarms, 2) for alarms in ALARMS)
    assert stats.norm.cdf(less / 2) > found.guess


def test_the_middle_number_is_the_bound(full: tuple[str, Reader]) -> None:
    event = samples.TRAINING + samples.SCORING + samples.LABELS
    proven = 1 - curve(event).tradeoff(0.01).lower
    shown = re.search(r"at most (\d+) with this model", full[1].text)
    assert shown and proven * 100 <= int(shown[1]) <= proven * 100 + 1.2
    assert f"{shown[1]} of 100" in [attrs.get("aria-label") for _, attrs in full[1].tags]


def test_epsilon_grows_to_the_claim() -> None:
    found = find(samples.certificate())
    steps, spent = zip(*found.path, strict=True)
    assert steps[0] == 0 and steps[-1] == 300
    assert list(spent) == sorted(spent)
    assert spent[-1] == found.guarantee.epsilon
    others = curve(samples.SCORING + samples.LABELS).epsilon(1e-6)
    assert others.lower <= spent[0] <= others.upper + 1e-3


def test_accesses_cost_what_they_cost_alone() -> None:
    costs = find(samples.certificate()).costs
    assert costs[0] == pytest.approx(curve(samples.TRAINING).epsilon_upper(1e-6), rel=1e-3)
    assert costs[1] == pytest.approx(curve(samples.SCORING).epsilon_upper(1e-6), rel=1e-3)
    assert costs[2:] == (None, None)


@pytest.mark.parametrize(
    ("epsilon", "name"),
    [(0.5, "strong"), (1.0, "strong"), (2.9, "solid"), (8, "moderate"), (11, "weak")],
)
def test_the_scale(epsilon: float, name: str) -> None:
    given = samples.quick(epsilon=epsilon)
    assert level(find(given).guarantee, given).name == name


def test_a_large_delta_is_weak_whatever_epsilon_is() -> None:
    given = samples.quick(epsilon=5.0, delta=1e-3)
    given["data"]["records"] = 1000
    assert find(given).level is LEVELS[-1]
    assert "publishing one at random would be allowed" in page(given, None)
    given["data"]["records"] = 999
    assert find(given).level.name == "moderate"


def test_a_claim_below_its_events_is_not_believed() -> None:
    given = samples.quick()
    given["guarantee"]["epsilon"] *= 0.98
    html = page(given, None)
    assert "Do not rely on this certificate" in html
    assert "by any attack" not in html
    assert find(given).tradeoff.found(0.01) == 1.0


def test_a_claim_by_a_filter_is_taken_alone() -> None:
    """Releases chosen after looking at others: the curve of the events proves nothing about them."""
    given = samples.quick()
    plan = find(given)
    given["by"]["accountant"] = "sourdine filter"
    alone = find(given)
    assert plan.agrees is True and alone.agrees is None
    assert alone.tradeoff.pairs == ((alone.guarantee.epsilon, 1e-6),)
    assert alone.tradeoff.found(0.01) > plan.tradeoff.found(0.01)
    assert "follows from epsilon and delta alone" in page(given, None)
    more = samples.quick(epsilon=5.0)  # and so does a claim that is far above the events
    assert find(more).tradeoff.pairs == ((5.0, 1e-6),)


# --- variants ---


def test_unit_user_speaks_of_persons() -> None:
    reader = Reader(page(samples.quick(unit="user", contribution_bound=8), samples.METRICS))
    assert "about any one person" in reader.text
    assert "at most 8 count" in reader.text
    assert "A person with several rows" not in reader.text


def test_unit_example_gives_the_price_of_several_rows() -> None:
    reader = Reader(page(samples.quick(), None))
    epsilon = samples.quick()["guarantee"]["epsilon"]
    assert "A person with several rows" in reader.text
    assert all(words.above(k * epsilon) in reader.text for k in (2, 5))


def test_attacks_stand_beside_the_claim() -> None:
    given = samples.quick()
    given["audit"] = [{"attack": "canaries", "lower_bound": 0.61, "confidence": 0.95, "delta": 1e-6}]
    fine = Reader(page(given, None)).text
    assert "canaries 0.61" in fine and "below the claim" in fine and "Do not rely" not in fine
    assert "prove that epsilon is at least 0.61" in fine  # beside the verdict, at the head of the page
    high = {"attack": "one run", "lower_bound": 99.0, "confidence": 0.95, "delta": 1e-5}
    broken = Reader(page(given, None, attacks=[high])).text
    assert "above the claim" in broken and "Do not rely on this certificate" in broken
    other = Reader(page(given, None, attacks=[{**high, "delta": 1e-9}])).text
    assert "not comparable" in other and "Do not rely" not in other
    assert "at least 99" not in other and "Checked from below" not in broken
    assert "Checked from below" not in Reader(page(samples.quick(), None)).text


def test_a_useless_model_is_called_so() -> None:
    words_ = "no better than always answering the most frequent class (no): the interval"
    shown = Reader(page(samples.quick(), samples.METRICS)).text
    assert (
        words_ not in shown and "share of the largest class" in shown and "Classes: yes, no." in shown
    )
    useless = samples.METRICS | {"beats_largest_class": False}
    assert words_ in Reader(page(samples.quick(), useless)).text
    assert words_ in card(samples.quick(), useless) and words_ not in card(
        samples.quick(), samples.METRICS
    )
    reference = samples.REFERENCE | {"largest_class": 0.511}
    shown = Reader(page(samples.quick(), samples.METRICS | {"reference": reference})).text
    assert "Without privacy, share" not in shown  # says nothing of a model


def test_how_many_were_held_out_is_said_once() -> None:
    """It used to say "Records held out: UNKNOWN" beside "about 900 of 4,500 records"."""
    how = "Gaussian noise on the confusion matrix of about 900 of 4,500 records held out, charged"
    shown = Reader(page(samples.quick(), samples.METRICS | {"records": "UNKNOWN", "how": how})).text
    use = shown.split("How useful it is")[1].split("What is not covered")[0]
    assert "about 900 of 4,500" in use and "UNKNOWN" not in use and "Records held out" not in use


def test_no_metrics_and_no_reference() -> None:
    assert "No metrics were released" in page(samples.quick(), None)
    untested = {"how": "no units are held out. So nothing is known.", "classes": ["yes", "no"]}
    shown = Reader(page(samples.quick(), untested)).text
    assert "No units are held out. So nothing is known." in shown and "Classes: yes, no." in shown
    without = page(samples.quick(), samples.METRICS)
    assert "No reference without privacy was run" in without and "Diamond" not in without


def test_a_draft_says_where_the_signature_is() -> None:
    """The report is written before the seal: its folder has files, and gets a signature."""
    given = samples.quick() | {"signature": "UNKNOWN"}
    given["released"]["files"] = {}
    shown = {row.name: row.value for part in parts(given) for row in part.rows}
    later = "in certificate.json, as this page was written before the folder was sealed"
    assert shown["signature"] == later and shown["files"] == f"{later}, each with its hash"
    assert (
        later in page(given, None)
        and "none" not in Reader(page(given, None)).text.split("files")[1][:9]
    )


def test_a_key_out_of_the_folder_is_no_pin() -> None:
    """Whoever made the whole folder made its key too: the page must not offer that as the one to pin."""
    how = (
        Reader(page(samples.quick(), None)).text.split("How to check it")[1].split("field by field")[0]
    )
    assert "--key KEY" in how and "by another way than this folder" in how and "5e5e" not in how


def test_what_cannot_be_recomputed_says_so() -> None:
    event = ShuffledEvent(3.0, 10)
    given = samples.certificate(event)
    assert "this was no series of sampled steps" in page(given, None)
    given["events"] = "UNKNOWN"
    assert "only the total is promised" in page(given, None)


def test_an_infinite_epsilon_promises_nothing() -> None:
    reader = Reader(page(samples.quick(epsilon=math.inf), None))
    assert "Nothing is promised about any one record" in reader.text
    assert "learns at most" not in reader.text


def test_seeded_noise_is_told() -> None:
    given = samples.quick()
    given["randomness"]["source"] = "seeded"
    assert "whoever knows their seed removes the noise" in page(given, None)


# --- foreign text, bad input ---

HOSTILE = "</style></title><script>alert('1')</script>\"'><img src=x onerror=alert(1)>{{ 7 * 7 }}"


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, found in inner:
        yield (*at, key)
        if isinstance(found, dict | list):
            yield from paths(found, (*at, key))


def replaced(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    changed = copy.deepcopy(value)
    place = changed
    for key in at[:-1]:
        place = place[key]
    place[at[-1]] = new
    return changed


def test_foreign_text_stays_text() -> None:
    given = samples.quick()
    texts = [at for at in paths(given) if isinstance(_at(given, at), str) and at[0] != "events"]
    for at in texts:
        if at[:2] not in [("guarantee", "unit"), ("guarantee", "adjacency")] and "cost" not in at:
            given = replaced(given, at, HOSTILE)
    given["data"][HOSTILE] = HOSTILE
    metrics = {**samples.METRICS, HOSTILE: {"value": 0.5, "low": 0.4, "high": 0.6}, "how": HOSTILE}
    metrics["reference"] = {"accuracy": 0.9, "how": HOSTILE}
    reader = Reader(page(given, metrics, attacks=[{"attack": HOSTILE}]))
    tags = {tag for tag, _ in reader.tags}
    assert not tags & {"script", "img"}
    assert not any(name.startswith("on") for _, attrs in reader.tags for name in attrs)
    assert "{{ 7 * 7 }}" in reader.text and "alert('1')" in reader.text


def _at(value: Any, at: tuple[Any, ...]) -> Any:
    for key in at:
        value = value[key]
    return value


def test_any_damage_is_a_sentence_or_a_page() -> None:
    given, checked = samples.quick(), 0
    for at in paths(given):
        for odd in (None, "odd", math.nan, {"a": [None]}):
            damaged = replaced(given, at, odd)
            try:
                metrics = damaged.get("utility")
                Reader(page(damaged, metrics if isinstance(metrics, dict) else None))
            except InputError as error:
                assert len(str(error)) > 30
                checked += 1
    assert checked > 20


@pytest.mark.parametrize("missing", ["guarantee", "events", "accesses", "signature", "model", "by"])
def test_missing_parts(missing: str) -> None:
    given = samples.quick()
    del given[missing]
    if missing == "guarantee":
        with pytest.raises(InputError, match="no guarantee"):
            page(given, None)
    else:
        Reader(page(given, None))


# --- small parts ---


def test_rounding_is_to_the_safe_side() -> None:
    assert (words.above(2.891), words.below(2.899), words.number(2.8951)) == ("2.9", "2.89", "2.895")
    assert words.above(3.0) == "3" and words.above(1e-6) == "1e-6" and words.above(1.91e-5, 2) == "2e-5"
    assert words.share(0.04411) == "4.5 %" and words.share(1.2) == "100 %"
    assert (words.of_hundred(0.0441), words.of_hundred(0.05), words.of_hundred(1.0)) == (5, 5, 100)
    assert words.chance(3e-6) == "1 in 333,333" and words.chance(1e-6) == "1 in 1,000,000"


@pytest.mark.parametrize("most", [0.003, 0.7, 1.0, 3.36, 12.0, 300.0, 12345.0])
def test_ticks_are_few_and_round(most: float) -> None:
    found = plots.ticks(most)
    assert 3 <= len(found) <= 6 and found[0] == 0 and found[-1] <= most * (1 + 1e-9)
    assert found[-1] > 0.5 * most


def test_metrics_outside_their_range_stay_in_the_figure() -> None:
    svg = plots.usefulness([plots.Measured("accuracy", 1.04, 0.97, 1.11, -0.2)])
    drawn = [float(x) for x in re.findall(r'(?:x1|x2|cx)="([-\d.]+)"', svg)]
    assert drawn and all(0 <= x <= plots.WIDTH for x in drawn)


# --- the verb ---


def folder(tmp_path: Path) -> Path:
    run = tmp_path / "reviews"
    run.mkdir()
    (run / "certificate.json").write_text(json.dumps(samples.quick()), encoding="utf-8")
    (run / "metrics.json").write_text(json.dumps(samples.METRICS), encoding="utf-8")
    (run / "report.html").write_text("sealed", encoding="utf-8")
    return run


def test_the_verb_writes_beside_the_sealed_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["report", "reviews"]) == 0
    assert capsys.readouterr().out == "the report lies at reviews-report.html\n"
    assert (tmp_path / "reviews-report.html").read_text("utf-8") == page(
        samples.quick(), samples.METRICS
    )
    assert (run / "report.html").read_text("utf-8") == "sealed"
    assert main(["report", "reviews", "--out", "other.html", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == "other.html" and told["delta"] == 1e-6
    (run / "metrics.json").unlink()
    assert main(["report", str(run)]) == 0
    assert "No metrics were released" in (tmp_path / "reviews-report.html").read_text("utf-8")


def test_the_verb_refuses_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = folder(tmp_path)

    def refused(*arguments: str) -> str:
        assert main(["report", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        return err

    assert "there is no folder" in refused("nowhere")
    assert "sealed" in refused("reviews", "--out", "reviews/report.html")
    assert (run / "report.html").read_text("utf-8") == "sealed"
    assert "cannot be written" in refused("reviews", "--out", "no/such/folder.html")
    for text in ("", "{", "[]", '"text"', '{"guarantee": 1}', '{"guarantee": {}}', "[" * 100_000):
        (run / "certificate.json").write_text(text, encoding="utf-8")
        refused("reviews")
    (run / "certificate.json").write_bytes(b"\xff\xfe\x00")
    assert "no text file" in refused("reviews")
    (run / "certificate.json").unlink()
    assert "no certificate.json" in refused("reviews")
    assert not list(tmp_path.glob("*.html"))
