"""The training loop, private and plain, for any strategy.

The learning rate falls to zero in a straight line. Without privacy lots are drawn in the same way, the
mean loss of each is followed, and no example is clipped or charged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from sourdine.rng import Source
from sourdine.sgd import Engine
from sourdine.sgd.batches import Units, batches
from sourdine.sgd.canaries import Canaries
from sourdine.sgd.charge import Charge
from sourdine.sgd.sampling import PoissonLots
from sourdine.sgd.shapes import whole
from sourdine.text.machine import graphs_on
from sourdine.text.plan import Plan
from sourdine.text.tasks import OnFeatures, losses

Tell = Callable[[int], object]


def optimizer(model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
    """AdamW without decay; what is pretrained learns slower than the head, which starts from zero."""
    named = [(name, x) for name, x in model.named_parameters() if x.requires_grad]
    head = [x for name, x in named if name.startswith("head.")]
    rest = [x for name, x in named if not name.startswith("head.")]
    rate = plan.learning_rate
    groups = [{"params": rest, "lr": rate}, {"params": head, "lr": rate * plan.head_factor}]
    cuda = named[0][1].is_cuda
    own = [group for group in groups if group["params"]]
    return torch.optim.AdamW(own, weight_decay=0.0, fused=cuda)


def schedule(of: torch.optim.Optimizer, steps: int, done: int, rising: int = 0) -> Any:
    """A straight line down to zero, from where a run goes on; up to it in `rising` steps."""
    for group in of.param_groups:
        group.setdefault("initial_lr", group["lr"])

    def pace(step: int) -> float:
        return min(max(0.0, 1 - step / steps), (step + 1) / (rising + 1))

    return torch.optim.lr_scheduler.LambdaLR(of, pace, done - 1)


def train_privately(
    model: nn.Module,
    dataset: Any,
    charge: Charge,
    plan: Plan,
    *,
    collate: Callable[[list[Any]], Any],
    users: list[str] | None,
    most_per_user: int,
    source: Source | None,
    tell: Callable[[Engine], object],
    canaries: Canaries | None = None,
) -> Engine:
    """Every step of the plan, by the engine; `tell` hears of it before the first and after each."""
    of = optimizer(model, plan)
    engine = Engine(
        model,
        of,
        dataset,
        charge,
        loss=losses,
        clip=plan.clip,
        users=users,
        most_per_user=most_per_user,
        batch_size=plan.batch_size,
        collate=collate,
        source=source,
        canaries=canaries,
        graphs=graphs_on(next(model.parameters()).device),
    )
    pace = schedule(of, engine.steps, engine.done)
    tell(engine)
    for lot in engine.lots():  # none are left of a run that is done; it is settled, its keys destroyed
        engine.step(lot)
        pace.step()
        tell(engine)
    return engine


def train_plainly(
    model: nn.Module,
    dataset: Any,
    plan: Plan,
    *,
    collate: Callable[[list[Any]], Any],
    source: Source,
    tell: Tell,
) -> None:
    """The plan without privacy. Averages of few texts vary: they rise slowly, and no step is huge."""
    of = optimizer(model, plan)
    pace = schedule(of, plan.steps, 0, rising=0 if isinstance(model, OnFeatures) else plan.steps // 10)
    lots = PoissonLots(len(dataset), plan.lot_size)
    device = next(model.parameters()).device
    for step in range(plan.steps):
        of.zero_grad()
        units = lots.draw(step, source)
        for batch in batches(Units(dataset), units, collate, device, source, whole(plan.batch_size)):
            total = (losses(model, batch.data) * batch.weights).sum() / plan.lot_size
            total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        of.step()
        pace.step()
        tell(step + 1)


def predicted(model: nn.Module, dataset: Any, collate: Any, batch_size: int) -> list[int]:
    """The class that the model finds most likely, for each example."""
    device = next(model.parameters()).device
    sizes = getattr(dataset, "sizes", None)
    order = range(len(dataset)) if sizes is None else sorted(range(len(dataset)), key=sizes.__getitem__)
    found = [0] * len(dataset)
    model.eval()
    with torch.no_grad():
        for places in _cut(list(order), batch_size):
            batch: dict[str, Tensor] = collate([dataset[place] for place in places])
            scores = model({name: x.to(device) for name, x in batch.items()})
            for place, answer in zip(places, scores.argmax(1).tolist(), strict=True):
                found[place] = int(answer)
    return found


def _cut(places: list[int], size: int) -> Iterator[list[int]]:
    for part in range(math.ceil(len(places) / size)):
        yield places[part * size : (part + 1) * size]
