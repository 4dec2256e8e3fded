"""The clipped sum is that of one backward pass for each example, on every model of the zoo."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from zoo import EITHER, REFUSED, ZOO, Batch, Case, Loss, torch

from sourdine.errors import SourdineError
from sourdine.sgd import clipped_sum

TOLERANCE = 1e-5


def each(cases: list[Case]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def trained(model: Any) -> list[Any]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def losses_of(case: Case, model: Any, loss: Loss, batch: Batch) -> Callable[[], Any]:
    """The same losses at every call, dropout included, and the caller's generator as it was."""

    def losses() -> Any:
        with torch.random.fork_rng(devices=[]), case.silence():
            torch.manual_seed(7)
            return loss(model, batch)

    return losses


def rows(model: Any, losses: Any) -> Any:
    """The gradient of each loss, flat, by one backward pass each."""
    weights, found = trained(model), []
    for one in losses:
        gradient = torch.autograd.grad(
            one, weights, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        found.append(torch.cat([part.to_dense().flatten() for part in gradient]))
    return torch.stack(found)


def part(batch: Batch, start: int, stop: int) -> Batch:
    return {name: value[start:stop] for name, value in batch.items()}


def median(norms: Any) -> float:
    """Some are cut and some are not; a single one is."""
    return float(norms.median()) if len(norms) > 1 else float(norms) / 2


def clipped(rows: Any, clip: float) -> Any:
    return (rows * (clip / rows.norm(dim=1, keepdim=True)).clamp(max=1).nan_to_num(1)).sum(0)


def summed(model: Any) -> Any:
    parts = [torch.zeros_like(w) if w.grad is None else w.grad.to_dense() for w in trained(model)]
    return torch.cat([part.flatten() for part in parts])


def error(model: Any, wanted: Any) -> float:
    """Of the whole sum, in parts of its norm; so the part of no parameter is off by more."""
    return float((summed(model) - wanted).norm() / wanted.norm())


def check(case: Case, model: Any, batch: Batch, loss: Loss, clip: float | None = None) -> float:
    """One call against the reference on the same forward; gives the clip that was used."""
    losses = losses_of(case, model, loss, batch)
    wanted = rows(model, losses())
    norms = wanted.norm(dim=1)
    clip = clip or median(norms)
    model.zero_grad()
    result = clipped_sum(model, losses, clip)
    assert result.norms.shape == norms.shape
    torch.testing.assert_close(
        result.norms.to(norms), norms, rtol=TOLERANCE, atol=TOLERANCE * float(norms.max())
    )
    assert error(model, clipped(wanted, clip)) <= TOLERANCE
    return clip


@each(ZOO)
def test_whole_batch(case: Case) -> None:
    """All at once, each example alone, and all again after a step."""
    model, batch, loss = case.make()
    clip = check(case, model, batch, loss)
    if not case.random:
        count = len(next(iter(batch.values())))
        alone = [
            rows(model, losses_of(case, model, loss, part(batch, i, i + 1))()) for i in range(count)
        ]
        assert error(model, clipped(torch.cat(alone), clip)) <= TOLERANCE
    torch.optim.SGD(trained(model), lr=0.1).step()
    check(case, model, batch, loss)


@each([case for case in ZOO if not case.random and case.examples > 1])
def test_in_two_physical_batches(case: Case) -> None:
    model, batch, loss = case.make()
    wanted = rows(model, losses_of(case, model, loss, batch)())
    clip, cut = median(wanted.norm(dim=1)), len(wanted) // 2
    for start, stop in ((0, cut), (cut, len(wanted))):
        clipped_sum(model, losses_of(case, model, loss, part(batch, start, stop)), clip)
    assert error(model, clipped(wanted, clip)) <= TOLERANCE


@pytest.mark.filterwarnings("ignore:.*with projections")
@each(
    [x for x in ZOO if not (x.random or "through-a-function" in x.name or re.search(r"\dx\d$", x.name))]
)
def test_in_half_precision(case: Case) -> None:
    """By autocast to bf16: near autograd's gradients, and no example adds more than the clip.

    The largest, the smallest and the last are also taken alone.

    Functions that define their own derivative have to know of autocast; those of the zoo do not. Other
    numbers of examples and tokens are left out, to save time.
    """
    model, batch, loss = case.make()

    def half() -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return loss(model, batch).float()

    wanted = rows(model, half())
    norms = wanted.norm(dim=1)
    clip = median(norms)
    clipped_sum(model, half, clip)
    assert error(model, clipped(wanted, clip)) <= 0.02
    for place in {int(norms.argmax()), int(norms.argmin()), len(norms) - 1}:
        norm, alone = norms[place], torch.eye(len(norms))[place]
        model.zero_grad()
        clipped_sum(model, half, clip, weights=alone)
        added = float(summed(model).double().norm()) / clip
        assert added <= 1
        assert added >= 0.98 or norm < 1.1 * clip


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
def test_recurrent_layers_return_what_torch_returns_under_autocast(kind: Any, wide: Any) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        layer, x = kind(3, 4, batch_first=True).to(wide), torch.randn(2, 5, 3, dtype=wide)
    kinds: list[Any] = []

    def half() -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y, ends = layer(x)
            kinds.append([y.dtype, *(end.dtype for end in (ends if kind is torch.nn.LSTM else [ends]))])
        return y.float().sum((1, 2))

    wanted = rows(layer, half())
    clipped_sum(layer, half, 1.0)
    assert kinds[0] == kinds[1]
    assert error(layer, clipped(wanted, 1.0)) <= 0.02


HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
)


def traces(model: Any) -> Any:
    """All that could be left behind on a model: names, identities, kinds, hooks and attributes."""
    modules = [
        (
            name,
            id(module),
            type(module),
            sorted(vars(module)),
            [list(getattr(module, hooks)) for hooks in HOOKS],
        )
        for name, module in model.named_modules()
    ]
    weights = [
        (
            name,
            id(w),
            type(w),
            w.requires_grad,
            sorted(vars(w)),
            w._backward_hooks,
            w._post_accumulate_grad_hooks,
        )
        for name, w in model.named_parameters(remove_duplicate=False)
    ]
    everywhere = [
        list(hooks)
        for name, hooks in vars(torch.nn.modules.module).items()
        if name.startswith("_global_") and name.endswith("_hooks")
    ]
    return modules, weights, everywhere, list(model.state_dict()), model.training


@each(ZOO)
def test_the_model_is_left_as_it_was(case: Case) -> None:
    model, batch, loss = case.make()
    losses = losses_of(case, model, loss, batch)
    with torch.no_grad():
        losses()  # some models keep something from their first forward
    before, state = traces(model), {name: value.clone() for name, value in model.state_dict().items()}
    drawn = torch.get_rng_state()
    clipped_sum(model, losses, 1.0)
    assert traces(model) == before
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(w.grad is None for w in model.parameters() if not w.requires_grad)
    assert all(w.grad is None or not w.grad.requires_grad for w in trained(model))


@each(EITHER)
def test_exact_or_refused(case: Case) -> None:
    model, batch, loss = case.make()
    try:
        check(case, model, batch, loss)
    except SourdineError:
        assert all(weight.grad is None for weight in model.parameters())


@each(REFUSED)
def test_refused(case: Case) -> None:
    model, batch, loss = case.make()
    with pytest.raises(SourdineError):
        clipped_sum(model, losses_of(case, model, loss, batch), 1.0)
    assert all(weight.grad is None for weight in model.parameters())


# The check can fail


CASE = next(case for case in ZOO if case.name == "gpt2")


def wrong(model: Any, losses: Any, clip: float, how: Callable[[Any, float], Any]) -> Any:
    """A clipped sum by brute force, of other rows or at another clip."""
    found = rows(model, losses())
    places = [weight.numel() for weight in trained(model)]
    for weight, grad in zip(trained(model), how(found, clip).split(places), strict=True):
        weight.grad = grad.view_as(weight)
    return type("Result", (), {"norms": found.norm(dim=1)})


def swapped(rows: Any, clip: float) -> Any:
    """The factors of two examples mixed up."""
    factors = (clip / rows.norm(dim=1, keepdim=True)).clamp(max=1)
    return (rows * factors.roll(1, 0)).sum(0)


@pytest.mark.parametrize(
    "how",
    [
        lambda rows, clip: clipped(rows, 1.0001 * clip),
        lambda rows, clip: clipped(rows, clip) / len(rows),
        lambda rows, clip: rows.sum(0),
        lambda rows, clip: clipped(rows[1:], clip),
        swapped,
    ],
    ids=["a little over the clip", "mean", "not clipped", "one left out", "factors swapped"],
)
def test_a_wrong_sum_is_noticed(
    how: Callable[[Any, float], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def false(model: Any, losses: Any, clip: float) -> Any:
        return wrong(model, losses, clip, how)

    monkeypatch.setitem(globals(), "clipped_sum", false)
    with pytest.raises(AssertionError):
        test_whole_batch(CASE)


def test_brute_force_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "clipped_sum", lambda *given: wrong(*given, clipped))
    test_whole_batch(CASE)


def test_a_tied_weight_counted_twice_is_noticed() -> None:
    # The squares of its uses, added, leave out twice their product; peers cut at such norms.
    model, batch, loss = CASE.make()
    losses = losses_of(CASE, model, loss, batch)
    right = rows(model, losses()).norm(dim=1)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    apart = rows(model, losses()).norm(dim=1)
    assert (
        float((apart / right - 1).abs().max()) > 100 * TOLERANCE
    )  # one is enough for the check to fail
