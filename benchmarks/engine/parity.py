"""The clipped sum of every model of the tests' zoo against brute force in double precision.

    python benchmarks/engine/parity.py [--device cuda] [--graphs compiled] [--match bert] [--part 3/8]
        [--skip 19] [--seconds 500] [--jsonl FILE] [--read FILE]

Relative errors of sums of the same batch, in fp32 without TF32:

- ours: of the clipped sum. It holds what norms are rounded upwards by on purpose (sgd/uses.py).
- rest: of the same, against the true gradients scaled by the norms that ours found: without that.
- plain: of one backward pass for each example, by torch's own kernels.
- compiler: of the same by torch.compile of the loss, which rounds otherwise and knows nothing of ours;
  only where rest is above 1e-5 and graphs are compiled.

A case is bad if rest is above 1e-5 and above three times the larger of plain and compiler, which is
more than any fp32 training rounds; or if a norm is below the true one by 1e-5; or if ours is above
1e-4. `low` and `high` say how far norms are from the true ones.

The tests do the same on the CPU; this is for accelerators, which the tests do not have. With --graphs,
sums are made by graphs, as they are traced, or cut into the smallest pieces (sgd/pieces.py), or
compiled; models without one are counted, with the reasons. Where a model does not do the same in double
precision, plain takes its place. --jsonl appends a line for each case, also from several processes;
--read sums such a file up and runs nothing.
"""

import argparse
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "sgd"))

from cutting import cut
from zoo import ZOO

from sourdine import sgd
from sourdine.sgd.batches import Batch
from sourdine.sgd.graphs import Graphs
from sourdine.sgd.proofs import Knowledge
from sourdine.sgd.sums import Sums

COMPILERS = {"traced": sgd.traced, "cut": cut, "compiled": sgd.compiled}
TOLERANCE = 1e-5
MOST = 1e-4  # what norms that are rounded upwards may add to an error
ANOTHER = 1e-3  # plain that far from double precision: the model does something else there


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--graphs", choices=list(COMPILERS))
    parser.add_argument("--match", default="", help="only cases with this in their names")
    parser.add_argument("--part", default="0/1", help="3/8: the fourth of every eight cases")
    parser.add_argument("--skip", type=int, default=0, help="so many cases of this part are left out")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no new case after that")
    parser.add_argument("--jsonl", type=Path, help="a line for each case is appended here")
    parser.add_argument("--read", type=Path, help="only sum up what such a file holds")
    asked = parser.parse_args()
    if asked.read:
        found = [json.loads(line) for line in asked.read.read_text().splitlines()]
        for result in found:
            show(result)
        sum_up(found)
        return
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    first, step = map(int, asked.part.split("/"))
    cases = [case for case in ZOO if not case.random and asked.match in case.name][first::step]
    found, began = [], time.time()
    for case in cases[asked.skip :]:
        start = time.time()
        if start - began > asked.seconds:
            break
        try:
            result = one(case, asked.device, asked.graphs)
        except Exception as wrong:  # the table is to be complete
            result = {"failed": f"{type(wrong).__name__}: {str(wrong)[:160]}"}
        found.append({"name": case.name, **result, "seconds": round(time.time() - start, 1)})
        show(found[-1])
        if asked.jsonl:
            with asked.jsonl.open("a") as file:
                file.write(json.dumps(found[-1]) + "\n")
    left = len(cases[asked.skip :]) - len(found)
    print(
        f"torch {torch.__version__}, {asked.device}, graphs: {asked.graphs}, {left} cases not reached"
    )
    sum_up(found)


def show(result: dict) -> None:
    """A line for what did not run or is above the tolerance."""
    if "failed" in result:
        print(f"{result['name']}: {result['failed']}", flush=True)
    elif bad(result) or not result["ours"] <= TOLERANCE:
        kinds = {x: result[x] for x in ("ours", "rest", "plain", "compiler", "low", "high")}
        shown = (f"{x} {y:.2g}" if isinstance(y, float) else f"{x} {y}" for x, y in kinds.items() if y)
        mark = "BAD " if bad(result) else ""
        print(f"{mark}{result['name']}: {', '.join(shown)}; {result['how']}", flush=True)


def bad(result: dict) -> bool:
    """Whether ours is further off than rounding explains."""
    others = [x for x in (result["plain"], result["compiler"]) if isinstance(x, float)]
    explained = result["rest"] <= max(TOLERANCE, 3 * max(others)) and result["ours"] <= MOST
    return not (explained and result["low"] >= -TOLERANCE)


def sum_up(found: list[dict]) -> None:
    ran = [x for x in found if "failed" not in x]
    worst = {x: max((y[x] for y in ran), default=0.0) for x in ("ours", "rest", "plain", "high")}
    print(
        f"{len(found)} cases, {len(found) - len(ran)} did not run, {sum(map(bad, ran))} bad; "
        f"worst of ours {worst['ours']:.2g}, rest {worst['rest']:.2g}, plain {worst['plain']:.2g}; "
        f"{sum(not x['ours'] <= TOLERANCE for x in ran)} of ours above 1e-5, "
        f"{sum(not x['rest'] <= TOLERANCE for x in ran)} of rest; "
        f"norms off by {min((x['low'] for x in ran), default=0.0):.2g} to {worst['high']:.2g}; "
        f"{sum(not x['double'] for x in ran)} without double precision; "
        f"{sum(x['seconds'] for x in found):.0f} s"
    )
    for how, count in Counter(x["how"] for x in ran).most_common():
        print(f"{count} by {how}")


def one(case: object, device: str, graphs: str | None) -> dict:
    """The errors of one case, and how ours was made."""
    model, batch, loss = case.make()
    model, batch = model.to(device), {name: value.to(device) for name, value in batch.items()}
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    plain = rows(lambda: loss(model, batch), weights)
    try:
        exact = in_double(case, device)
        double = off(plain.sum(0), exact.sum(0)) < ANOTHER
    except Exception:  # what is only there in single precision
        double = False
    exact = exact if double else plain.double()
    norms = exact.norm(dim=1)
    clip = float(norms.median()) if len(norms) > 1 else float(norms) / 2
    wanted = clipped(exact, norms, clip)
    sums, own, how = ours(model, loss, batch, weights, clip, graphs)
    by_own = clipped(exact, own.double(), clip)
    rest, compiler = max(off(x, by_own) for x in sums), None
    if not rest <= TOLERANCE and graphs == "compiled":
        try:
            other = by_compiler(model, loss, batch, weights)
            compiler = off(clipped(other, other.norm(dim=1), clip), wanted)
        except Exception as wrong:  # not everything can be compiled
            compiler = f"{type(wrong).__name__}: {str(wrong)[:80]}"
    apart = (own.double() / norms - 1)[norms > 1e-6 * norms.max()]
    return {
        "ours": max(off(x, wanted) for x in sums),
        "rest": rest,
        "plain": off(clipped(plain, plain.norm(dim=1), clip), wanted),
        "compiler": compiler,
        "low": float(apart.min()),
        "high": float(apart.max()),
        "double": double,
        "how": how,
    }


def rows(losses: Callable[[], torch.Tensor], weights: list, anew: bool = False) -> torch.Tensor:
    """The gradient of each loss, flat, by one backward pass each; anew: and one forward pass each."""
    found, values = [], losses()
    for place in range(len(values)):
        value = (losses() if anew else values)[place]
        parts = torch.autograd.grad(
            value, weights, retain_graph=not anew, allow_unused=True, materialize_grads=True
        )
        found.append(torch.cat([part.to_dense().flatten() for part in parts]))
    return torch.stack(found)


def clipped(each: torch.Tensor, norms: torch.Tensor, clip: float) -> torch.Tensor:
    return (each * (clip / norms).clamp(max=1).nan_to_num(1)[:, None]).sum(0)


def off(sums: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((sums.double() - wanted).norm() / wanted.norm())


class Doubled(TorchFunctionMode):
    """What a model asks for in single precision, as norms and softmax do, it gets in double."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        args, kwargs = pytree.tree_map(
            lambda x: torch.float64 if x is torch.float32 else x, (args, kwargs or {})
        )
        return function(*args, **kwargs)


@contextmanager
def doubled() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        with Doubled():
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def in_double(case: object, device: str) -> torch.Tensor:
    """The gradients of the same model, made once more from its seed, as not all can be copied."""
    model, batch, loss = case.make()
    model = model.to(device).double()
    batch = {name: value.to(device) for name, value in batch.items()}
    batch = {name: x.double() if x.is_floating_point() else x for name, x in batch.items()}
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    with doubled():
        return rows(lambda: loss(model, batch), weights)


def ours(
    model: torch.nn.Module, loss: Callable, batch: dict, weights: list, clip: float, graphs: str | None
) -> tuple[list[torch.Tensor], torch.Tensor, str]:
    """The sums of the first and the second time, the norms of the second, and how they were made."""
    knowledge, sums = Knowledge(), Sums(weights)
    made = Graphs(model, loss, compiler=COMPILERS[graphs]) if graphs else None
    count = len(next(iter(batch.values())))
    batch_of = Batch(batch, torch.ones(count, device=weights[0].device), count, True)

    def eagerly() -> sgd.Clipped:
        return sgd.clipped_sum(model, lambda: loss(model, batch), clip, knowledge=knowledge)

    found = []
    for _ in range(2):  # the second time with what was learnt
        sums.begin()
        if made is None:
            norms = eagerly().norms
        else:
            made.begin(sums)
            norms = made.add(batch_of, sgd.Flat(clip), knowledge, eagerly, lambda: None)
            if not made.sound():
                raise RuntimeError("the graph cannot judge this batch")
        found.append(sums.flats[0].clone())
    if made is None:
        return found, norms, "the eager code"
    short = next(iter(made.reasons.values()), "no graph: to be proved for every batch")
    return found, norms, "graphs" if made.made == [True] else short[:90]


def by_compiler(model: torch.nn.Module, loss: Callable, batch: dict, weights: list) -> torch.Tensor:
    """The gradients by torch's compiler, asked as in sgd/graphs.py, of a loss that is not private."""
    torch.compiler.reset()  # it would give up on a function that it has seen with many models
    quick = torch.compile(
        lambda: loss(model, batch), dynamic=False, options={"emulate_precision_casts": True}
    )
    return rows(quick, weights, anew=True)  # its backward pass keeps nothing for a second one


if __name__ == "__main__":
    main()
