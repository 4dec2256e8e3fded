"""The shortened gradient of the cross-entropy is autograd's, and stands where autograd's stood."""

from __future__ import annotations

from typing import Any

import pytest
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import cross_entropy
from zoo import torch

from sourdine.sgd.pieces import _tidied
from sourdine.sgd.softmax import gradient, shorten_

LABELS = (0, 6, 3, -100, 3)
LONG = ("nll_loss_backward", "_log_softmax_backward_data")


def by_autograd(x: Any, labels: Any, g: Any, weight: Any = None, smooth: float = 0.0) -> Any:
    with torch.enable_grad():
        own = x.detach().requires_grad_()
        logs = own.log_softmax(1)  # in half precision, as on a GPU under autocast
        each = torch.nn.functional.nll_loss(logs.float(), labels, weight, reduction="none")
        if smooth:
            each = cross_entropy(own, labels, weight, reduction="none", label_smoothing=smooth)
        return torch.autograd.grad((each * g).sum(), own)[0]


def given(kind: Any) -> tuple[Any, Any, Any]:
    chance = torch.Generator().manual_seed(5)
    x = (9 * torch.randn(5, 7, generator=chance)).to(kind)
    return x, torch.tensor(LABELS), torch.randn(5, generator=chance)


def shortened(function: Any, *tensors: Any) -> Any:
    graph = make_fx(function, tracing_mode="fake")(*tensors)
    _tidied(graph)
    shorten_(graph.graph)
    graph.graph.lint()
    graph.recompile()
    return graph


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_it_is_the_gradient(kind: Any) -> None:
    tensors = given(kind)

    def run(x: Any, labels: Any, g: Any) -> Any:
        return by_autograd(x, labels, g)

    graph = shortened(run, *tensors)
    assert not any(name in graph.code for name in LONG)
    found, wanted = graph(*tensors), by_autograd(*tensors)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6 if kind == torch.float32 else 1e-2)
    assert found[3].abs().max() == 0  # ignored
    assert found[0].abs().max() > 0


def test_the_last_digits_are_better_at_the_label() -> None:
    """-g + g * softmax loses digits where softmax is close to one."""
    logs = torch.tensor([[-1e-6, -14.0]])
    found = gradient(torch.ones(1), logs, torch.tensor([0]), -100, torch.float32, torch.float32)
    assert float(found[0, 0]) == pytest.approx(-1e-6, rel=0.2)


@pytest.mark.parametrize(("weight", "smooth"), [(torch.linspace(1, 2, 7), 0.0), (None, 0.1)])
def test_other_losses_stay(weight: Any, smooth: float) -> None:
    tensors = given(torch.float32)

    def run(x: Any, labels: Any, g: Any, weight: Any) -> Any:
        return by_autograd(x, labels, g, weight, smooth)

    graph = shortened(run, *tensors, weight)
    assert "_log_softmax_backward_data" in graph.code
    torch.testing.assert_close(graph(*tensors, weight), run(*tensors, weight))


def test_averages_and_pictures_stay() -> None:
    x, labels, _ = given(torch.float32)

    def mean(x: Any, labels: Any) -> Any:
        with torch.enable_grad():
            own = x.detach().requires_grad_()
            return torch.autograd.grad(cross_entropy(own, labels), own)[0]

    def picture(x: Any, labels: Any) -> Any:
        with torch.enable_grad():
            own = x.detach().requires_grad_()
            each = cross_entropy(own.t()[None], labels[None], reduction="none")
            return torch.autograd.grad(each.sum(), own)[0]

    for run in (mean, picture):
        graph = shortened(run, x, labels)
        assert "_log_softmax_backward_data" in graph.code
        torch.testing.assert_close(graph(x, labels), run(x, labels))


def test_a_row_that_somebody_else_reads_stays() -> None:
    x, labels, g = given(torch.float32)

    def run(x: Any, labels: Any, g: Any) -> Any:
        logs = x.log_softmax(1)
        total = torch.ones(())
        row = torch.ops.aten.nll_loss_backward(g, logs, labels, None, 0, -100, total)
        return row, torch.ops.aten._log_softmax_backward_data(row, logs, 1, torch.float32)

    graph = shortened(run, x, labels, g)
    assert "nll_loss_backward" in graph.code
    assert "_log_softmax_backward_data" not in graph.code
    for found, wanted in zip(graph(x, labels, g), run(x, labels, g), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("half", [False, True])
def test_a_vocabulary_that_was_filled_up_has_zeros_at_once(steps: int, half: bool) -> None:
    """Of logits in half precision, cut from more of them; by the twin of the kernel.

    On a GPU under autocast the log-softmax itself is made of halves.
    """
    chance = torch.Generator().manual_seed(5)
    padded = (9 * torch.randn(5 // steps, steps, 16, generator=chance)).bfloat16()
    tensors = (padded, torch.tensor(LABELS), torch.randn(5, generator=chance))

    def run(padded: Any, labels: Any, g: Any) -> Any:
        with torch.enable_grad():
            own = padded.mul(1).requires_grad_()
            logits = own[..., :7].flatten(0, 1)
            logs = logits.log_softmax(1) if half else logits.float().log_softmax(1)
            each = torch.nn.functional.nll_loss(logs.float(), labels, reduction="none")
            return torch.autograd.grad((each * g).sum(), own)[0]

    graph = shortened(run, *tensors)
    assert "by_class" in graph.code
    assert not any(name in graph.code for name in (*LONG, "slice_backward", "_log_softmax"))
    found, wanted = graph(*tensors), run(*tensors)
    near = {"rtol": 0, "atol": 1e-2} if half else {"rtol": 2**-7, "atol": 1e-6}
    torch.testing.assert_close(found, wanted, **near)
    assert found[..., 7:].abs().max() == 0 and found.view(5, -1)[3].abs().max() == 0


@pytest.mark.parametrize("why", ["given", "read later", "returned"])
def test_logits_that_somebody_else_reads_stay(why: str) -> None:
    """The gradient is not written in their place."""

    def run(padded: Any, labels: Any, g: Any) -> Any:
        with torch.enable_grad():
            made = padded.detach() if why == "given" else padded.mul(1)
            own = made.requires_grad_()
            each = cross_entropy(own[..., :7].float(), labels, reduction="none")
            (found,) = torch.autograd.grad((each * g).sum(), own)
        if why == "read later":
            return found, own.detach()[:2].sum()
        return found, own.detach() if why == "returned" else found

    tensors = (torch.randn(5, 16).bfloat16(), torch.tensor(LABELS), torch.randn(5))
    before = tensors[0].clone()
    graph = shortened(run, *tensors)
    assert "by_class" not in graph.code
    for found, wanted in zip(graph(*tensors), run(*tensors), strict=True):
        torch.testing.assert_close(found, wanted, rtol=2**-7, atol=1e-6)
    assert torch.equal(tensors[0], before)


MORE = ("logits", "logarithms", "losses", "other losses", "changed", "nothing")


@pytest.mark.parametrize("why", MORE)
def test_logits_of_which_more_is_made_stay(why: str) -> None:
    of_more(why, lambda graph: graph)


def of_more(why: str, compiler: Any) -> None:
    def run(x: Any, w: Any, labels: Any, g: Any) -> Any:
        with torch.enable_grad():
            own = (x @ w).requires_grad_()
            before = own.detach().square()[:, 3]
            wide = own.view(2, 3, 128)[..., :100].flatten(0, 1).float()
            if why == "changed":
                own.detach().clamp_(-1, 1)
            logs = wide.log_softmax(1)
            each = torch.nn.functional.nll_loss(logs, labels, reduction="none")
            (found,) = torch.autograd.grad((each.view(2, 3).mean(1) * g).sum(), own)
        logs = logs.detach()
        other = torch.nn.functional.nll_loss(logs, labels.flip(0), reduction="none")
        more = {"logits": before, "logarithms": logs.exp()[:, 1], "other losses": other, "changed": g}
        return found @ w.t(), {**more, "losses": each.detach().view(2, 3).mean(1), "nothing": g}[
            why
        ] + 1

    chance = torch.Generator().manual_seed(5)
    x = torch.randn(6, 8, generator=chance).bfloat16()
    w = torch.randn(8, 128, generator=chance).bfloat16()
    tensors = (x, w, torch.tensor([0, 6, 99, -100, 3, 3]), torch.rand(2, generator=chance))
    graph, wanted = shortened(run, *tensors), run(*tensors)
    assert ("by_class" in graph.code) == (why == "nothing")
    found = compiler(graph)(*tensors)
    torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=0.03)
    torch.testing.assert_close(found[1], wanted[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cut", [slice(9, 16), slice(0, 14, 2)])
def test_what_is_cut_elsewhere_stays(cut: slice) -> None:
    """The last classes, or every second: other numbers are filled up with zeros."""

    def run(padded: Any, labels: Any, g: Any) -> Any:
        with torch.enable_grad():
            own = padded.detach().requires_grad_()
            each = cross_entropy(own[..., cut].float(), labels, reduction="none")
            return torch.autograd.grad((each * g).sum(), own)[0]

    tensors = (torch.randn(5, 16).bfloat16(), torch.tensor(LABELS), torch.randn(5))
    graph = shortened(run, *tensors)
    assert "by_class" not in graph.code
    torch.testing.assert_close(graph(*tensors), run(*tensors), rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("why", ["several losses a row", "another order"])
def test_the_kernel_is_for_one_loss_a_row_in_order(why: str) -> None:
    """It would write beyond the logits, or to other places."""
    shape = (5, 16) if why == "several losses a row" else (16, 5)
    count, classes = (10, 7) if why == "several losses a row" else (5, 7)

    def run(padded: Any, labels: Any, g: Any) -> Any:
        with torch.enable_grad():
            own = padded.mul(1).requires_grad_()
            rows = own if why == "several losses a row" else own.t()
            cut = rows[..., : count // 5 * classes].float().reshape(count, classes)
            each = cross_entropy(cut, labels, reduction="none")
            return torch.autograd.grad((each * g).sum(), own)[0]

    labels = torch.arange(count) % classes
    tensors = (torch.randn(shape).bfloat16(), labels, torch.randn(count))
    graph = shortened(run, *tensors)
    assert "by_class" not in graph.code
    torch.testing.assert_close(graph(*tensors), run(*tensors), rtol=2**-7, atol=1e-6)
