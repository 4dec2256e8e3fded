"""What many tests of this folder need and few look at: made once, or left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sourdine.accounting import calibration
from sourdine.accounting.filter import Filter


@pytest.fixture(autouse=True)
def quick_report(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report costs seconds of accounting; whoever looks at it marks the test with `report`."""
    if "report" not in request.keywords:
        monkeypatch.setattr(
            "sourdine.text.run.page", lambda *_: "<!doctype html><title>a report</title>"
        )


@pytest.fixture(scope="session", autouse=True)
def remembered() -> Iterator[None]:
    """What an event costs is worked out once for all tests."""
    costs: dict[Any, Any] = {}
    price, cost = Filter._cost, calibration._cost

    def filtered(self: Filter, event: Any) -> Any:
        key = (self.budget, event)
        if key not in costs:
            costs[key] = price(self, event)
        return costs[key]

    def priced(budget: Any, event: Any) -> Any:
        if (budget, event, "curve") not in costs:
            costs[budget, event, "curve"] = cost(budget, event)
        return costs[budget, event, "curve"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Filter, "_cost", filtered)
        patch.setattr(calibration, "_cost", priced)
        yield
