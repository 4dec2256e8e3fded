"""Lots that are drawn and collated ahead are the lots that would have been drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stopping import engine
from test_resume import run
from torch.utils.data import default_collate
from zoo import torch

from sourdine.rng import seeded
from sourdine.sgd import traced, unchanging
from sourdine.sgd.ahead import Ahead


def weights(of: Any) -> Any:
    return torch.cat([x.detach().flatten() for x in of.model.parameters()])


class Collate:
    """Counts its calls; may draw numbers."""

    def __init__(self, noisy: bool = False) -> None:
        self.calls, self.noisy = 0, noisy

    def __call__(self, rows: list[Any]) -> Any:
        self.calls += 1
        x, y = default_collate(rows)
        return [x + 0.1 * torch.randn_like(x) if self.noisy else x, y]


def made(collate: Any, **settings: Any) -> Any:
    return engine(None, source=seeded(1), collate=collate, check=False, **settings)


@pytest.mark.parametrize("noisy", [False, True])
def test_the_weights_are_those_of_lots_drawn_in_time(
    monkeypatch: pytest.MonkeyPatch, noisy: bool
) -> None:
    """To the bit, also where collating draws from torch's generator, as masking of words does."""
    ahead = run(made(Collate(noisy), graphs=unchanging))
    monkeypatch.setattr(Ahead, "look", lambda *_: None)
    late = run(made(Collate(noisy), graphs=unchanging))
    assert torch.equal(weights(ahead), weights(late))


def test_a_batch_is_collated_once() -> None:
    """Unless it draws random numbers, which belong to its own step."""
    counts = [Collate(), Collate(noisy=True)]
    for collate in counts:
        run(made(collate, graphs=traced))
    assert counts[0].calls < counts[1].calls


def test_what_collating_raises_comes_up_in_its_own_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step before is made; what fails only once, ahead of its time, does no harm."""
    failed, broken = list[int](), list[int]()

    def collate(rows: list[Any]) -> Any:
        if broken and of.done >= 5:
            raise OSError("the disk is gone")
        if looking and not failed:
            failed.append(of.done)
            raise OSError("the disk is busy")
        return default_collate(rows)

    for broken in ([], [1]):
        of, looking = made(collate, graphs=traced), list[int]()
        look = of._ahead.look

        def watched(*given: Any, look: Any = look, looking: list[int] = looking) -> None:
            looking.append(1)
            look(*given)
            looking.clear()

        monkeypatch.setattr(of._ahead, "look", watched)
        if broken:
            with pytest.raises(OSError, match="gone"):
                run(of)
            assert of.done == 5
        else:
            assert run(of).done == of.steps and failed


def test_no_lot_is_drawn_past_a_save_or_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURDINE_HOME", str(tmp_path / "home"))
    of = engine(tmp_path / "run", graphs=unchanging)
    seen: list[int] = []
    look = of._ahead.look
    monkeypatch.setattr(of._ahead, "look", lambda step, *rest: (seen.append(step), look(step, *rest)))
    run(of)
    assert seen and not any(step % of._save_every == 0 for step in seen)
    assert max(seen) < of.steps


def test_a_lot_of_other_streams_or_another_size_is_not_used() -> None:
    of = engine(None, graphs=traced, source=seeded(1))
    lots = of.lots()
    of.step(next(lots))
    _, lot = of._ahead._next
    assert lot is not None
    assert lot.begun(of.batch_size + 1) is None
    assert of._ahead.lot(lot.step, seeded(2)) is not lot


@pytest.mark.parametrize("graphs", [None, traced])
def test_the_callers_generator_stays_as_it_is(graphs: Any) -> None:
    """Whatever collating draws, and however often it is called."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        before = torch.get_rng_state()
        run(made(Collate(noisy=True), graphs=graphs))
        assert torch.equal(torch.get_rng_state(), before)
