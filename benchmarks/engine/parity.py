"""The clipped sum of every model of the tests' zoo against brute force, on any device.

    python benchmarks/engine/parity.py [--device cuda] [--graphs traced] [--match bert] [--part 3/8] [--seconds 500]

Prints the worst relative error, in fp32 without TF32, and every case above 1e-5. The tests do the same
on the CPU; this is for accelerators, which the tests do not have. With --graphs, sums are made by graphs,
as they are traced, or cut into the smallest pieces (sgd/pieces.py), or compiled; models without one are
counted, with the reasons.
"""

import argparse
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "sgd"))

from cutting import cut
from zoo import ZOO

from sourdine import sgd
from sourdine.sgd.batches import Batch
from sourdine.sgd.gradients import Knowledge
from sourdine.sgd.graphs import Graphs
from sourdine.sgd.sums import Sums

COMPILERS = {"traced": sgd.traced, "cut": cut, "compiled": sgd.compiled}


def moved(x: object, device: str) -> object:
    return {name: value.to(device) for name, value in x.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--graphs", choices=list(COMPILERS))
    parser.add_argument("--match", default="", help="only cases with this in their names")
    parser.add_argument("--part", default="0/1", help="3/8: the fourth of every eight cases")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no new case after that")
    asked = parser.parse_args()
    device = asked.device
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    worst, bad, started, failed = 0.0, 0, time.time(), 0
    reasons: Counter[str] = Counter()
    first, step = map(int, asked.part.split("/"))
    cases = [case for case in ZOO if not case.random and asked.match in case.name][first::step]
    for place, case in enumerate(cases):
        if time.time() - started > asked.seconds:
            cases = cases[:place]
            break
        try:
            error = one(case, device, asked.graphs, reasons)
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
        f"torch {torch.__version__}, {device}: {len(cases)} cases, worst {worst:.2g}, {bad} above 1e-5,"
    )
    print(f"{failed} did not run, {took:.0f} s")
    for reason, count in reasons.most_common():
        print(f"{count} by {reason}")


def one(case: object, device: str, graphs: str | None, reasons: Counter[str]) -> float:
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
    knowledge, sums = Knowledge(), Sums(weights)
    made = Graphs(model, loss, compiler=COMPILERS[graphs]) if graphs else None
    batch_of = Batch(batch, torch.ones(len(each), device=device), len(each), True)

    def eagerly() -> sgd.Clipped:
        return sgd.clipped_sum(model, losses, clip, knowledge=knowledge)

    errors = []
    for _ in range(2):  # the second time with what was learnt
        sums.begin()
        if made is None:
            eagerly()
        else:
            made.begin(sums)
            made.add(batch_of, sgd.Flat(clip), knowledge, eagerly, lambda: None)
            if not made.sound():
                raise RuntimeError("the graph cannot judge this batch")
        errors.append(float((sums.flats[0] - wanted).norm() / wanted.norm()))
    if made is not None:
        short = next(iter(made.reasons.values()), "no graph: to be proved for every batch")
        reasons["graphs" if made.made == [True] else short[:90]] += 1
    return max(errors)


if __name__ == "__main__":
    main()
