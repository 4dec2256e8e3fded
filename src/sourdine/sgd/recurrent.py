"""Recurrent layers: torch's own forward pass, and a backward pass that shows the gates' gradients.

An LSTM or GRU uses its weights at every position: gates_t = W x_t + U h_{t-1} + b. The gradient D_t of
gates_t gives all per-example gradients as those of a linear map: sum_t D_t (x) x_t for W,
sum_t D_t (x) h_{t-1} for U, sum_t D_t for b. torch's kernel does not show D, so the backward pass is
made here: gates come from one product over all positions, since every h is known, and only the
recursion of the gradients runs position by position.

Under autocast LSTM and GRU are made in single precision, and only what they return is rounded: a
backward pass of half precision would have to round at every position as torch's kernels do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import linear

from sourdine.errors import InputError
from sourdine.sgd.layout import Layout
from sourdine.sgd.rules import linear_uses
from sourdine.sgd.tape import AS_IS, Choice, Function, Tape, rule

Weights = Sequence[Tensor]


class _Lstm(torch.autograd.Function):
    """One layer, one direction, x (T, B, d). `shown` is zero: its gradient is that of the gates."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, h0: Tensor, c0: Tensor, shown: Tensor, *weights: Tensor) -> Any:
        own, bias = _apart(weights), len(weights) > 2
        y, _, c = torch.lstm(x, (h0[None], c0[None]), own, bias, 1, 0.0, False, False, False)
        ctx.save_for_backward(x, h0, c0, y, *weights)
        return y, c[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        dy, dc = gradients
        x, h0, c0, y, w, u, *biases = ctx.saved_tensors
        before = torch.cat((h0[None], y[:-1]))
        gates = _affine(x, w, biases[:1]).add_(_affine(before, u, biases[1:]))
        i, f, g, o = gates.unflatten(2, (4, -1)).unbind(2)
        g.mul_(2)  # tanh(z) = 2 sigmoid(2 z) - 1: one pass for all gates
        gates.sigmoid_()
        g.mul_(2).sub_(1)
        c = torch.empty_like(y)
        past = c0
        for t in range(len(y)):
            torch.mul(f[t], past, out=c[t])
            past = c[t].addcmul_(i[t], g[t])
        shut = c.tanh()
        slope = o * (1 - shut * shut)  # of h in c
        keep = f.clone()
        c_before = torch.cat((c0[None], c[:-1]))
        # Slopes of c in the gates i, f, g and of h in o, written over the gates themselves.
        slopes = gates.unflatten(2, (4, -1))
        new = (g * i * (1 - i), c_before * f * (1 - f), i * (1 - g * g), shut * o * (1 - o))
        for place, value in enumerate(new):
            slopes[:, :, place] = value
        shown = torch.empty_like(gates)
        out = shown.unflatten(2, (4, -1))
        dc, dh = dc.clone(), dy[-1]
        for t in range(len(y) - 1, -1, -1):
            dc.addcmul_(dh, slope[t])
            torch.mul(slopes[t, :, :3], dc[:, None], out=out[t, :, :3])
            torch.mul(slopes[t, :, 3], dh, out=out[t, :, 3])
            dc *= keep[t]
            dh = torch.addmm(dy[t - 1], shown[t], u) if t else shown[0] @ u
        dx = shown @ w if ctx.needs_input_grad[0] else None
        return dx, dh, dc, shown, *[None] * (2 + len(biases))


class _Gru(torch.autograd.Function):
    """As _Lstm. Gates r, z, n: n = tanh(W x + b + r (U h + b')), so that there are two gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, h0: Tensor, shown: Any, hidden: Any, *weights: Tensor) -> Tensor:
        own, bias = _apart(weights), len(weights) > 2
        y, _ = torch.gru(x, h0[None], own, bias, 1, 0.0, False, False, False)
        ctx.save_for_backward(x, h0, y, *weights)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (dy,) = gradients
        x, h0, y, w, u, *biases = ctx.saved_tensors
        before = torch.cat((h0[None], y[:-1]))
        given = _affine(x, w, biases[:1]).unflatten(2, (3, -1))
        held = _affine(before, u, biases[1:]).unflatten(2, (3, -1))
        r, z = (given[:, :, :2] + held[:, :, :2]).sigmoid_().unbind(2)
        past = held[:, :, 2]
        n = (given[:, :, 2] + r * past).tanh_()
        in_n = (1 - z) * (1 - n * n)
        slopes = torch.stack((in_n * past * r * (1 - r), (before - n) * z * (1 - z), in_n), 2)
        shown, hidden = torch.empty_like(slopes), torch.empty_like(slopes)
        dh = dy[-1]
        for t in range(len(y) - 1, -1, -1):
            torch.mul(slopes[t], dh[:, None], out=shown[t])
            hidden[t] = shown[t]
            hidden[t, :, 2] *= r[t]
            dh = torch.addmm(dh * z[t], hidden[t].flatten(1), u)
            if t:
                dh += dy[t - 1]
        shown, hidden = shown.flatten(2), hidden.flatten(2)
        dx = shown @ w if ctx.needs_input_grad[0] else None
        return dx, dh, shown, hidden, *[None] * (2 + len(biases))


_lstm: Any = _Lstm.apply
_gru: Any = _Gru.apply


def _apart(weights: Weights) -> list[Tensor]:
    """Weights in memory of their own.

    Where all layers' weights lie in one stretch, cuDNN takes a part of it for another layout: wrong
    results without bias (seen with torch 2.11 on an H200).
    """
    return [x.clone() if x.is_cuda else x for x in weights]


def _affine(x: Tensor, weight: Tensor, bias: Sequence[Tensor]) -> Tensor:
    return linear(x, weight, bias[0] if bias else None)


@dataclass(frozen=True)
class _Layer:
    """One layer in one direction: what is needed to run it and to write it down."""

    tape: Tape
    func: Function
    weights: Weights  # W, U and perhaps two biases; parameters

    def free(self) -> list[Tensor]:
        return [self.tape.free(x) for x in self.weights]

    def run(self, x: Tensor, start: Sequence[Tensor]) -> list[Tensor]:
        """The outputs (T, B, H) and the last states."""
        device = x.device.type
        if torch.is_autocast_enabled(device) and x.dtype != torch.float64:
            wide = device == "cpu" and self.func is torch.gru  # torch leaves it as it is
            kind = torch.float32 if wide else torch.get_autocast_dtype(device)
            with torch.autocast(device, enabled=False):
                return [y.to(kind) for y in self.run(x.float(), [h.float() for h in start])]
        size = (*x.shape[:2], len(self.weights[0]))
        shown = [x.new_zeros(()).expand(size).requires_grad_() for _ in range(3 - len(start))]
        if len(start) == 2:
            y, c = _lstm(x, *start, *shown, *self.free())
            last = [y[-1], c]
        else:
            y = _gru(x, *start, *shown, *self.free())
            last = [y[-1]]
        before = torch.cat((start[0].detach()[None], y[:-1].detach()))
        self._write(x, self.weights[0], self.weights[2:3], shown[0])
        self._write(before, self.weights[1], self.weights[3:4], shown[-1])
        return [y, *last]

    def _write(self, x: Tensor, weight: Tensor, bias: Weights, shown: Tensor) -> None:
        options: tuple[Choice, ...] = (Layout(1), AS_IS)
        key = self.tape.key(self.func, [x, weight])
        if self.tape.choose(key, options) == AS_IS:
            raise InputError(
                f"the loss of one example depends on another example, seen at "
                f"{self.tape.names.get(id(weight), 'a recurrent layer')}. Losses must not mix examples."
            )
        uses = linear_uses(self.tape, x, weight, (*bias, None)[0])
        self.tape.record(key, shown, options, Layout(1), uses)


def _plain(tape: Tape, func: Function, weights: Weights, x: Tensor, h: Tensor) -> list[Tensor]:
    """A layer without gates, position by position."""
    w, u = weights[:2]
    b, b_hidden = (*weights[2:], None, None)[:2]
    given, outputs = linear(x, w, b), []
    for row in given:
        h = row + linear(h, u, b_hidden)
        h = torch.tanh(h) if func is torch.rnn_tanh else torch.relu(h)
        outputs.append(h)
    return [torch.stack(outputs), h]


@rule(torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
def _recurrent(tape: Tape, func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if kwargs or len(args) != 9 or tape.tracks(args[0]):
        return NotImplemented  # packed sequences: left to the guarantee of completeness
    x, start, weights, bias, layers, dropout, training, both, batch_first = args
    if x.dim() != 3 or any(tape.tracks(h) for h in start):
        return NotImplemented
    directions, each = (2 if both else 1), (4 if bias else 2)
    if len(weights) != layers * directions * each:
        return NotImplemented  # projected states
    states = list(start) if isinstance(start, list | tuple) else [start]
    x = x.transpose(0, 1) if batch_first else x
    if tape.examples is None:
        tape.examples = x.shape[1]
    if tape.examples != x.shape[1]:
        return NotImplemented
    ends: list[list[Tensor]] = [[] for _ in states]
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            place = layer * directions + direction
            own = weights[place * each : (place + 1) * each]
            seen, begin = x.flip(0) if direction else x, [h[place] for h in states]
            if func in (torch.lstm, torch.gru):
                y, *last = _Layer(tape, func, own).run(seen, begin)
            else:
                with tape:
                    y, *last = _plain(tape, func, own, seen, *begin)
            outputs.append(y.flip(0) if direction else y)
            for end, value in zip(ends, last, strict=True):
                end.append(value)
        x = torch.cat(outputs, 2) if both else outputs[0]
        if dropout and training and layer + 1 < layers:
            x = drop(x, dropout)
    return (x.transpose(0, 1) if batch_first else x, *(torch.stack(end) for end in ends))


@rule(torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell)
def _cell(tape: Tape, func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """One step, written out in linear maps."""
    x, start, w, u, *biases = args
    b, b_hidden = (*biases, None, None)[:2]
    with tape:
        if func is torch.lstm_cell:
            h, c = start
            i, f, g, o = (linear(x, w, b) + linear(h, u, b_hidden)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            return o.sigmoid() * c.tanh(), c
        given, held = linear(x, w, b), linear(start, u, b_hidden)
        if func is torch.gru_cell:
            (r, z, n), (r_held, z_held, n_held) = given.chunk(3, 1), held.chunk(3, 1)
            new = (n + (r + r_held).sigmoid() * n_held).tanh()
            return new + (z + z_held).sigmoid() * (start - new)
        return torch.tanh(given + held) if func is torch.rnn_tanh_cell else torch.relu(given + held)
