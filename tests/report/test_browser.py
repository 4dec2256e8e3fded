"""The report in a real browser: it opens, figures are drawn, nothing is logged, fetched or cut off."""

import base64
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import samples

from sourdine.report.page import page

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="chromium and chromium-driver are not installed"
)
LONG = "averyveryverylongnamewithoutanyplacetobreakit" * 3


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", *sandbox):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    given = samples.certificate()
    given["model"]["base"] = given["data"]["label"] = given["accesses"][0]["what"] = LONG
    metrics = {**samples.METRICS, "reference": samples.REFERENCE}
    attack = {"attack": LONG, "lower_bound": 0.8, "confidence": 0.95, "delta": 1e-6}
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page(given, metrics, attacks=[attack]), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def opened(browser: Any, address: str) -> Any:
    show(browser, 1000, "light")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(address)
    return browser


def show(browser: Any, width: int, theme: str) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": scheme})


def test_it_opens_and_logs_nothing(opened: Any) -> None:
    assert opened.title.startswith("Privacy report")
    assert "learns at most" in opened.find_element("tag name", "h1").text
    assert opened.get_log("browser") == []


def test_nothing_but_the_file_is_asked_for(opened: Any, address: str) -> None:
    sent = [entry["message"] for entry in opened.get_log("performance")]
    asked = [message for message in sent if '"Network.requestWillBeSent"' in message]
    assert asked and all(address in message for message in asked)


def test_the_log_would_tell(opened: Any) -> None:
    """The twin: a page that asks for something is stopped, and found out."""
    opened.execute_script(
        "const i = document.createElement('img'); i.src = 'http://localhost:9/x.png';"
        "document.body.append(i);"
    )
    assert any("Content Security Policy" in entry["message"] for entry in opened.get_log("browser"))


@pytest.mark.parametrize("width", [375, 1000])
def test_figures_are_drawn(opened: Any, width: int) -> None:
    show(opened, width, "light")
    boxes = opened.execute_script(
        "return [...document.querySelectorAll('svg')].map(s => {const b = s.getBoundingClientRect();"
        "return [b.width, b.height, b.left, b.right]})"
    )
    assert len(boxes) == 6
    for wide, high, left, right in boxes:
        assert wide > 80 and high > 60 and left >= 0 and right <= width


OVERLAPS = """
const found = [];
for (const svg of document.querySelectorAll('svg.figure')) {
  const frame = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')];
  const boxes = texts.map(t => t.getBoundingClientRect());
  boxes.forEach((a, i) => {
    if (a.left < frame.left - 1 || a.right > frame.right + 1) found.push('outside: ' + texts[i].textContent);
    boxes.slice(i + 1).forEach((b, j) => {
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)
        found.push(texts[i].textContent + ' / ' + texts[i + 1 + j].textContent);
    });
  });
}
return found;
"""


@pytest.mark.parametrize("width", [375, 1000])
def test_no_texts_of_a_figure_overlap(opened: Any, width: int) -> None:
    show(opened, width, "light")
    assert opened.execute_script(OVERLAPS) == []
    opened.execute_script("document.querySelector('svg.figure text').setAttribute('y', '400')")
    opened.execute_script("document.querySelector('svg.figure text').setAttribute('x', '9999')")
    assert opened.execute_script(OVERLAPS) != []  # it can fail


@pytest.mark.parametrize("width", [320, 375, 768, 1000])
def test_nothing_scrolls_sideways(opened: Any, width: int) -> None:
    show(opened, width, "light")
    whole, seen = opened.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert whole <= seen == width


def light(color: str) -> float:
    """The relative luminance of a CSS colour, as WCAG defines it."""
    parts = [float(part) / 255 for part in color.split("(")[1].rstrip(")").split(",")[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


COLORS = """
const found = [];
for (const e of document.querySelectorAll('body *')) {
  if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
  let behind = e;
  while (behind && getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') behind = behind.parentElement;
  const ink = e instanceof SVGElement ? getComputedStyle(e).fill : getComputedStyle(e).color;
  found.push([e.tagName + '.' + e.getAttribute('class'), ink, getComputedStyle(behind).backgroundColor]);
}
return found;
"""


def check_contrast(browser: Any) -> float:
    """WCAG AA for every text; the luminance of the paper."""
    seen = browser.execute_script(COLORS)
    assert len(seen) > 100
    for name, ink, behind in seen:
        brighter, darker = sorted((light(ink), light(behind)), reverse=True)
        assert (brighter + 0.05) / (darker + 0.05) >= 4.5, (name, ink, behind)
    return light(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_can_be_read(opened: Any, theme: str) -> None:
    show(opened, 1000, theme)
    paper = check_contrast(opened)
    assert paper < 0.05 if theme == "dark" else paper > 0.8


def test_it_prints_black_on_white_whatever_the_theme(opened: Any) -> None:
    show(opened, 1000, "dark")
    printed = base64.b64decode(opened.print_page())
    assert printed.startswith(b"%PDF") and len(printed) > 20_000
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": dark})
    assert check_contrast(opened) == pytest.approx(1.0)
