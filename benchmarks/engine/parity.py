"""The clipped sum of every model of the tests' zoo against brute force, on any device.

    python benchmarks/engine/parity.py [--device cuda]

Prints the worst relative error, in fp32 without TF32, and every case above 1e-5. The tests do the same
on the CPU; this is for accelerators, which the tests do not have.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "sgd"))

from zoo import ZOO

from sourdine.sgd.clipped import clipped_sum
from sourdine.sgd.gradients import Knowledge


def moved(x: object, device: str) -> object:
    return {name: value.to(device) for name, value in x.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    worst, bad, started, failed = 0.0, 0, time.time(), 0
    for case in ZOO:
        if case.random:
            continue
        try:
            error = one(case, device)
        except Exception as wrong:  # the table is to be complete
            failed += 1
            print(f"{case.name}: {type(wrong).__name__}: {str(wrong)[:160]}", flush=True)
            continue
        worst = max(worst, error)
        if not error <= 1e-5:
            bad += 1
            print(f"{case.name}: {error:.2g}", flush=True)
    took = time.time() - started
    print(
        f"torch {torch.__version__}, {device}: {len(ZOO)} cases, worst {worst:.2g}, {bad} above 1e-5,"
    )
    print(f"{failed} did not run, {took:.0f} s")


def one(case: object, device: str) -> float:
    model, batch, loss = case.make()
    model, batch = model.to(device), moved(batch, device)
    weights = [weight for weight in model.parameters() if weight.requires_grad]

    def losses() -> torch.Tensor:
        return loss(model, batch)

    rows = []
    for value in losses():
        parts = torch.autograd.grad(
            value, weights, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        rows.append(torch.cat([part.to_dense().flatten() for part in parts]))
    each = torch.stack(rows)
    norms = each.norm(dim=1)
    clip = float(norms.median()) if len(norms) > 1 else float(norms) / 2
    wanted = (each * (clip / norms).clamp(max=1).nan_to_num(1)[:, None]).sum(0)
    knowledge = Knowledge()
    errors = []
    for _ in range(2):  # the second time with what was learnt
        model.zero_grad()
        clipped_sum(model, losses, clip, knowledge=knowledge)
        parts = [torch.zeros_like(w) if w.grad is None else w.grad.to_dense() for w in weights]
        got = torch.cat([part.flatten() for part in parts])
        errors.append(float((got - wanted).norm() / wanted.norm()))
    return max(errors)


if __name__ == "__main__":
    main()
