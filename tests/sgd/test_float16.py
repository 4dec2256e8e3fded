"""Proofs where gradients go through float16: numbers below 2^-14 have few digits, none are beyond 65504.

Whatever the size of the gradients, mixing is found, a sound model is trained, and one example moves the
sum by no more than the clip.
"""

from __future__ import annotations

from typing import Any

import pytest
from test_tape import Losses, net_of, repeatable, wanted  # noqa: F401 (a fixture for all)
from torch import nn
from zoo import torch

from sourdine.errors import InputError
from sourdine.sgd import clipped_sum, proofs
from sourdine.sgd.proofs import Knowledge

SCALES = [1e-7, 1e-6, 1e-5, 1e-4, 1e-2, 1.0, 100.0, 3e4]


def narrow(net: Any, x: Any, scale: float, mixed: bool) -> Any:
    """Losses of texts, time first and flattened; of every 32nd token, most of whose rows are zero."""
    steps, examples, _ = x.shape
    with torch.autocast("cpu", torch.float16):
        hidden = net[0](x.flatten(0, 1)).view(steps, examples, -1)
        hidden = hidden + 4 * hidden.mean(1, keepdim=True) if mixed else hidden
        found = net[1](hidden.flatten(0, 1)).view(steps, examples, -1)[::32].mean(0)
    return scale * found.float().logsumexp(1)


@pytest.mark.parametrize("scale", SCALES)
def test_rows_are_told_apart_in_float16(scale: float) -> None:
    net, x, clip = net_of(16, 16, 2), torch.randn(256, 8, 16), 0.1 * scale
    with_all, without = (
        _sum(net, lambda: narrow(net, x, scale, mixed=False), clip, weights)
        for weights in (torch.ones(8), torch.tensor([0.0] + 7 * [1.0]))
    )
    assert float((with_all - without).norm()) <= clip * 1.001


@pytest.mark.parametrize("scale", SCALES[1:])  # of the first, all that is added up is zero
def test_mixing_is_found_in_float16(scale: float) -> None:
    net, x = net_of(16, 16, 2), torch.randn(256, 8, 16)
    with pytest.raises(InputError, match="depends on another example"):
        _sum(net, lambda: narrow(net, x, scale, mixed=True), 0.1 * scale, torch.ones(8))


class Between(nn.Module):
    """A trained layer in single precision in front of a frozen one in float16, as adapters are."""

    def __init__(self, mixed: bool) -> None:
        super().__init__()
        self.adapter, self.mixed = nn.Linear(6, 6), mixed
        self.base = nn.Linear(6, 6).half().requires_grad_(False)

    def forward(self, x: Any, losses_in_half: bool = False) -> Any:
        """Losses of texts (time, examples, features), each of its own text or of all."""
        found = self.base(self.adapter(x).half())
        found = found - found.mean(1, keepdim=True) if self.mixed else found
        losses = found.square().mean((0, 2))
        return losses if losses_in_half else losses.float()


@pytest.mark.parametrize("how", ["known", "small", "not known", "losses in half"])
@pytest.mark.parametrize("size", [3, 4, 8])
def test_float16_behind_what_trains(how: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All gradients that are looked at are in single precision; larger weights would overflow behind."""
    if how == "not known":
        monkeypatch.setattr(proofs, "check_graph", lambda values: {torch.float32})
    x, half = torch.randn(size, size, 6), how == "losses in half"
    scale = 1e-4 if how == "small" else 1.0
    net = Between(mixed=True)
    with pytest.raises(InputError, match="depends on another example"):
        clipped_sum(net, lambda: scale * net(x, half), 0.5 * scale)
    net = Between(mixed=False)
    clipped_sum(net, lambda: scale * net(x, half), 0.5 * scale)
    found = torch.cat([w.grad.flatten() for w in net.adapter.parameters()]) / scale
    own = wanted(net, scale * net(x, half), 0.5 * scale) / scale
    torch.testing.assert_close(found, own, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize(
    ("scale", "size"), [(1.0, 1.0), (1e-3, 1.0), (1e-5, 1.0), (1e-6, 1.0), (1e-8, 1.0), (1e-9, 1e4)]
)
def test_branches_that_hardly_count_in_float16(scale: float, size: float) -> None:
    """Gradients for which float16 has no digits are left out; the others are what they are."""
    main, branch = nn.Linear(16, 16), nn.Linear(16, 16)
    net, x = nn.ModuleList([main, branch]), torch.randn(40, 6, 16)

    def losses() -> Any:
        with torch.autocast("cpu", torch.float16):
            found = x.flatten(0, 1)
            found = (main(found) + scale * branch(found).tanh()).view(40, 6, 16)
        return size * found.float().logsumexp(2).mean(0)

    knowledge = Knowledge()
    for _ in range(3):
        net.zero_grad()
        clipped_sum(net, losses, 0.5, knowledge=knowledge)
    found = torch.cat([w.grad.flatten() for w in net.parameters()])
    if size > 1:
        each = torch.autograd.grad(losses().sum(), branch.bias)[0]
        assert each.any() and not branch.bias.grad.any(), "nobody has proved whose they are"
    torch.testing.assert_close(found, wanted(net, losses(), 0.5), rtol=2e-2, atol=2e-3)
    if scale > 1e-4:
        assert branch.weight.grad.norm() > 0.1 * scale * main.weight.grad.norm()


def _sum(net: Any, losses: Losses, clip: float, weights: Any) -> Any:
    net.zero_grad()
    clipped_sum(net, losses, clip, weights=weights)
    return torch.cat([w.grad.flatten() for w in net.parameters()])
