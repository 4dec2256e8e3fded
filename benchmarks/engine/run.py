"""One private training step: how long, how much memory, and is the sum right?

    python benchmarks/engine/run.py [--models bert,lstm] [--engines ours,vmap] [--rounds 9] [--device cuda] [--json out.json]

All engines do one step of AdamW on the same fixed batch, noise included, in one process and in turn: each
round times every engine once, and what counts is the ratio to the non-private step of the same round.
On the CPU: one thread, fp32, process time. On a GPU: bf16 autocast, wall time around a synchronised step.

On the CPU, malloc is told to keep what is freed. Otherwise the pages of large tensors are mapped anew at each
step, which slows the engines that hold every example's gradient down, and by another amount each time.

Memory on the CPU is what a step allocates above weights and optimizer state at its highest point, each
engine in a process of its own, summed up from the allocations and frees that torch.profiler records
(tensors alone: the high-water mark of the process would also hold what malloc keeps and what importing
took). On a GPU it is what a step has allocated at its highest point, weights, optimizer and all that recorded
graphs hold included, above what was there before the engine was made.

The error is that of the clipped sum of 4 examples, without noise, in fp32, against one backward pass for
each example: the largest over the parameters, relative.
"""

import argparse
import ctypes
import gc
import importlib.metadata
import json
import platform
import statistics
import subprocess
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from models import CPU, CUDA, Batch, Task, losses
from torch import nn
from torch.func import functional_call, grad, vmap

CLIP = 1.0
NOISE = 10.0  # deviation over the clip; an epsilon above 100 is refused
RATE = 1e-4
CHECKED = 4  # examples


class Engine(ABC):
    """A model with its optimizer; `step` is one training step, `clear` forgets its gradients.

    After a step, `.grad` holds (clipped sum + noise) / lot size.
    """

    rowwise = False  # whether the model must be given position ids with a row for each example

    def __init__(
        self, model: nn.Module, batch: Batch, *, clip: float, noise: float, half: bool
    ) -> None:
        self.model = model
        dropped = {"labels"} if self.rowwise else {"labels", "position_ids", "token_type_ids"}
        self.inputs = {name: rows for name, rows in batch.items() if name not in dropped}
        self.labels = batch["labels"]
        self.clip, self.noise, self.lot_size = clip, noise, len(self.labels)
        self.half = half
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=self.labels.is_cuda)
        self.prepare()

    def prepare(self) -> None:  # noqa: B027 (most have nothing to do)
        """What happens once, before training."""

    @staticmethod
    def fitted(model: nn.Module) -> nn.Module:
        """The model with the layers that the engine asks for."""
        return model

    @abstractmethod
    def step(self) -> None: ...

    def clear(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def precision(self) -> AbstractContextManager[object]:
        return torch.autocast("cuda", torch.bfloat16) if self.half else nullcontext()

    def losses(self) -> torch.Tensor:
        with self.precision():
            return losses(self.model(**self.inputs), self.labels)

    def finish(self) -> None:
        """Noise of torch's own generator, the division by the lot size, and the step."""
        for weight in self.model.parameters():
            weight.grad.add_(torch.randn_like(weight), alpha=self.noise * self.clip)
        self.divide()

    def divide(self) -> None:
        torch._foreach_div_([weight.grad for weight in self.model.parameters()], self.lot_size)
        self.optimizer.step()


class NonPrivate(Engine):
    def step(self) -> None:
        self.losses().mean().backward()
        self.optimizer.step()


class Ours(Engine):
    """sourdine with torch's noise, as the peers have."""

    def prepare(self) -> None:
        from sourdine.sgd.clipped import clipped_sum
        from sourdine.sgd.proofs import Knowledge

        self.knowledge, self.clipped_sum = Knowledge(), clipped_sum

    def step(self) -> None:
        self.clipped_sum(self.model, self.losses, self.clip, knowledge=self.knowledge)
        self.finish()


class OursSecure(Ours):
    """sourdine with its own noise, from a cryptographic source."""

    def prepare(self) -> None:
        from sourdine import rng
        from sourdine.sgd.noise import add_noise_

        super().prepare()
        self.source, self.add_noise_ = rng.secure(), add_noise_

    def finish(self) -> None:
        if self.noise:
            gradients = [weight.grad for weight in self.model.parameters()]
            self.add_noise_(gradients, self.noise * self.clip, self.source)
        self.divide()


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """What torch's AdamW does, and the noise on the way."""
    from sourdine.sgd import AdamW

    own = [x for x in model.parameters() if x.requires_grad]
    return AdamW(own, lr=RATE, weight_decay=0.01, corrected=False)


class Compiled(NonPrivate):
    def prepare(self) -> None:
        self.losses = torch.compile(self.losses, dynamic=False)


class OursCompiled(OursSecure):
    """The same by one compiled graph, on a GPU recorded and replayed."""

    def prepare(self) -> None:
        from sourdine.sgd.batches import Batch
        from sourdine.sgd.clipping import Flat
        from sourdine.sgd.graphs import Graphs
        from sourdine.sgd.sums import Sums

        super().prepare()
        self.optimizer = adamw(self.model)
        self.sums = Sums(x for x in self.model.parameters() if x.requires_grad)
        full = self.lot_size not in self.inputs["input_ids"].shape[1:]
        if not full:  # as an Engine does (sgd/batches.py): one more, of weight 0
            self.inputs = {name: torch.cat([x, x[:1]]) for name, x in self.inputs.items()}
            self.labels = torch.cat([self.labels, self.labels[:1]])
        weights = torch.ones(len(self.labels), device=self.labels.device)
        weights[self.lot_size :] = 0
        self.whole = Batch((self.inputs, self.labels), weights, len(weights), full)
        self.graphs, self.flat = (
            Graphs(self.model, self.loss, compiler=self.compiler()),
            Flat(self.clip),
        )

    @staticmethod
    def compiler() -> Callable[..., object]:
        from sourdine.sgd import compiled

        return compiled

    def loss(self, model: nn.Module, data: tuple[Batch, torch.Tensor]) -> torch.Tensor:
        inputs, labels = data
        with self.precision():
            return losses(model(**inputs), labels)

    def eagerly(self) -> object:
        self.sums.show()
        return self.clipped_sum(
            self.model,
            self.losses,
            self.clip,
            weights=None if self.whole.full else self.whole.weights,
            knowledge=self.knowledge,
        )

    def step(self) -> None:
        self.sums.begin(shown=False)
        self.graphs.begin(self.sums)
        self.graphs.add(self.whole, self.flat, self.knowledge, self.eagerly, lambda: None)
        if not all(self.graphs.made):
            raise RuntimeError(f"no graph: {next(iter(self.graphs.reasons.values()), 'not proved')}")
        if not self.graphs.sound():
            raise RuntimeError("a gradient is not finite")
        self.finish()

    def finish(self) -> None:
        deviation = self.noise * self.clip
        if not self.optimizer.take(self.sums, deviation, self.source, self.lot_size):
            self.add_noise_(self.sums.flats, deviation, self.source)
            for flat in self.sums.flats:
                flat.div_(self.lot_size)
            self.sums.show()
        self.optimizer.step()


class OursTraced(OursCompiled):
    """By the graph as it was traced."""

    @staticmethod
    def compiler() -> Callable[..., object]:
        from sourdine.sgd import traced

        return traced


class Opacus(Engine):
    """Opacus as its users call it; the lot is the fixed batch."""

    mode = "hooks"
    rowwise = True

    @staticmethod
    def fitted(model: nn.Module) -> nn.Module:
        """With Opacus' own LSTM, of linear layers, where there is one."""
        from opacus.validators import ModuleValidator

        return ModuleValidator.fix(model)

    def prepare(self) -> None:
        from opacus import PrivacyEngine
        from torch.utils.data import DataLoader, TensorDataset

        # The loader tells Opacus the lot size, and is not used otherwise.
        made = PrivacyEngine().make_private(
            module=self.model.train(),
            optimizer=self.optimizer,
            criterion=Criterion(),
            data_loader=DataLoader(TensorDataset(self.labels), batch_size=self.lot_size),
            noise_multiplier=self.noise,
            max_grad_norm=self.clip,
            poisson_sampling=False,
            grad_sample_mode=self.mode,
        )
        self.model, self.optimizer = made[0], made[1]
        self.criterion = made[2] if self.mode == "ghost" else Criterion()

    def step(self) -> None:
        with self.precision():
            loss = self.criterion(self.model(**self.inputs), self.labels)
        loss.backward()
        self.optimizer.step()


class OpacusGhost(Opacus):
    mode = "ghost"


class Criterion:
    """What Opacus' ghost mode expects: it sets `reduction` to "none" where it wants single losses."""

    reduction = "mean"

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        each = losses(logits, labels)
        return each if self.reduction == "none" else each.mean()


class Vmap(Engine):
    """Every example's gradient by torch.func."""

    def prepare(self) -> None:
        self.gradients = vmap(grad(self.loss), (None, 0, 0))

    def loss(self, weights: Batch, inputs: Batch, label: torch.Tensor) -> torch.Tensor:
        rows = {name: row[None] for name, row in inputs.items()}
        with self.precision():
            return losses(functional_call(self.model, weights, (), rows), label[None])[0]

    def step(self) -> None:
        weights = dict(self.model.named_parameters())
        fixed = {name: weight.detach() for name, weight in weights.items()}
        each = self.gradients(fixed, self.inputs, self.labels)
        squares = sum(g.flatten(1).square().sum(1) for g in each.values())
        factors = (self.clip / squares.sqrt()).clamp(max=1)
        for name, weight in weights.items():
            weight.grad = torch.tensordot(factors, each[name], dims=1)
        del each
        self.finish()


ENGINES: dict[str, tuple[str, type[Engine]]] = {
    "plain": ("non-private, eager", NonPrivate),
    "compiled": ("non-private, torch.compile", Compiled),
    "ours": ("sourdine, secure noise", OursSecure),
    "ours-compiled": ("sourdine, compiled, secure noise", OursCompiled),
    "ours-traced": ("sourdine, traced, secure noise", OursTraced),
    "ours-torch": ("sourdine, torch's noise", Ours),
    "opacus": ("Opacus hooks", Opacus),
    "ghost": ("Opacus ghost", OpacusGhost),
    "vmap": ("torch.func vmap(grad)", Vmap),
}


class Bench:
    """One model on one device, and the engines that run on it."""

    def __init__(self, name: str, device: str) -> None:
        self.task: Task = (CPU if device == "cpu" else CUDA)[name]
        self.device = device

    def engine(self, name: str) -> Engine:
        kind = ENGINES[name][1]
        half = self.device != "cpu"
        return kind(self.model(kind), self.batch(self.task.examples), clip=CLIP, noise=NOISE, half=half)

    def model(self, kind: type[Engine]) -> nn.Module:
        torch.manual_seed(0)
        return kind.fitted(self.task.build()).to(self.device).train()

    def batch(self, count: int) -> Batch:
        return {name: rows.to(self.device) for name, rows in self.task.batch(count).items()}

    def seconds(self, work: Callable[[], None]) -> float:
        if self.device == "cpu":
            start = time.process_time()
            work()
            return time.process_time() - start
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def error(self, name: str) -> float:
        """How far an engine's clipped sum is from that of one backward pass per example."""
        kind = ENGINES[name][1]
        model, batch = self.model(kind), self.batch(CHECKED)
        clip, sums = brute_force(model, batch)
        engine = kind(model, batch, clip=clip, noise=0.0, half=False)
        weights = list(model.parameters())  # before the step changes nothing but their values
        engine.step()
        whole = torch.stack([total.norm() for total in sums]).norm()
        return max(
            float((weight.grad * CHECKED - total).norm() / total.norm().clamp(min=1e-3 * whole))
            for weight, total in zip(weights, sums, strict=True)
        )

    def memory(self, name: str) -> int:
        """Bytes of the fifth step at its highest point, see the top of this file.

        The first makes AdamW's state; in the first four sourdine also proves which rows are whose.
        """
        engine = started(self.engine(name))
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile:
            engine.step()
        events = profile.profiler.kineto_results.events()
        changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
        now = highest = 0
        for _, change in sorted(changes, key=lambda pair: pair[0]):
            now += change
            highest = max(highest, now)
        return highest


def brute_force(model: nn.Module, batch: Batch) -> tuple[float, list[torch.Tensor]]:
    """A clip that cuts every example, and the sum of the clipped gradients, one example at a time."""
    weights = list(model.parameters())
    gradients = []
    for at in range(len(batch["labels"])):
        rows = {name: row[at : at + 1] for name, row in batch.items()}
        labels = rows.pop("labels")
        loss = losses(model(**rows), labels).sum()
        found = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
        gradients.append(found)
    norms = [torch.stack([g.norm() for g in each]).norm() for each in gradients]
    clip = 0.5 * float(min(norms))
    sums = [torch.zeros_like(weight) for weight in weights]
    for each, norm in zip(gradients, norms, strict=True):
        for total, g in zip(sums, each, strict=True):
            total.add_(clip / norm * g)
    return clip, sums


def attempt(work: Callable[[], object]) -> tuple[object, str]:
    """What comes out, or the first line of the error."""
    try:
        return work(), ""
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0].split(" (/")[0]  # no paths
        return None, f"{type(error).__name__}: {first}"[:110]


def compare(
    name: str, engines: list[str], rounds: int, device: str, errors: bool
) -> dict[str, dict[str, object]]:
    """One row for each engine on one model."""
    bench = Bench(name, device)
    rows: dict[str, dict[str, object]] = {engine: {} for engine in engines}
    alive: dict[str, Engine] = {}
    for engine in engines:
        if errors and engine not in ("plain", "compiled"):
            rows[engine]["error"], problem = attempt(lambda engine=engine: bench.error(engine))
            if problem:
                rows[engine]["failed"] = problem
                continue
        before, start = present(device), time.perf_counter()
        made, problem = attempt(lambda engine=engine: started(bench.engine(engine)))
        if problem:
            rows[engine]["failed"] = problem
            continue
        alive[engine] = made
        rows[engine]["seconds to start"] = time.perf_counter() - start
        print(f"{name}: {engine} started in {time.perf_counter() - start:.0f} s", file=sys.stderr)
        if device != "cpu":
            rows[engine]["bytes"] = held(made) - before
    times: dict[str, list[float]] = {engine: [] for engine in alive}
    for _ in range(rounds):
        for engine, one in alive.items():
            times[engine].append(bench.seconds(lambda one=one: once(one)))
    for engine, taken in times.items():
        ratios = [t / base for t, base in zip(taken, times["plain"], strict=True)]
        rows[engine]["ms"] = 1e3 * statistics.median(taken)
        rows[engine]["ms least"], rows[engine]["ms most"] = 1e3 * min(taken), 1e3 * max(taken)
        tokens = alive[engine].inputs["input_ids"].numel()
        rows[engine]["tokens a second"] = tokens / statistics.median(taken)
        rows[engine]["ratio"] = statistics.median(ratios)
        rows[engine]["least"], rows[engine]["most"] = min(ratios), max(ratios)
    alive.clear()
    if device != "cpu":
        return rows
    for engine in times:
        rows[engine]["bytes"] = apart(name, engine, device)
    return rows


def present(device: str) -> int:
    """Bytes on the GPU that cannot be had by others: tensors, and memory that recorded graphs hold."""
    if device == "cpu":
        return 0
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated() + idle()


def idle() -> int:
    """Bytes that lie in the pools of recorded graphs and that no tensor has at the moment."""
    segments = torch.cuda.memory_snapshot()
    own = [x for x in segments if tuple(x["segment_pool_id"]) != (0, 0)]
    return sum(x["total_size"] - x["allocated_size"] for x in own)


def held(engine: Engine) -> int:
    """The most of the same while this engine trains."""
    present("cuda")
    torch.cuda.reset_peak_memory_stats()
    once(engine)
    once(engine)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() + idle()


def once(engine: Engine) -> None:
    engine.step()
    engine.clear()


def started(engine: Engine) -> Engine:
    """After some steps that are not timed; sourdine proves something in steps 1, 2, 4 and 8."""
    for _ in range(8):
        once(engine)
    return engine


def apart(name: str, engine: str, device: str) -> int | None:
    """The memory of a step, measured in a fresh process."""
    command = [sys.executable, __file__, "--memory", "--models", name, "--engines", engine]
    done = subprocess.run([*command, "--device", device], capture_output=True, text=True, check=False)
    return int(done.stdout.split()[-1]) if done.returncode == 0 else None


def table(describe: str, rows: dict[str, dict[str, object]]) -> str:
    lines = [
        f"| {describe} | ms (least to most) | ratio (least to most) | tokens a second | MiB | error |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for engine, row in rows.items():
        label = ENGINES[engine][0]
        error = "–" if row.get("error") is None else f"{row['error']:.0e}"
        if "failed" in row:
            lines.append(f"| {label} | {row['failed']} | – | – | – | {error} |")
            continue
        memory = "–" if row["bytes"] is None else f"{row['bytes'] / 2**20:.0f}"
        lines.append(
            f"| {label} | {row['ms']:.1f} ({row['ms least']:.1f} to {row['ms most']:.1f}) | {row['ratio']:.2f} "
            f"({row['least']:.2f} to {row['most']:.2f}) | {row['tokens a second']:.0f} | {memory} | {error} |"
        )
    return "\n".join(lines)


def keep_freed_memory() -> None:
    """glibc's malloc returns nothing to the system and takes large blocks from its heap."""
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of malloc.h
        mallopt(trim_threshold, -1)
        mallopt(mmap_max, 0)


def versions(device: str) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("torch", "opacus", "transformers", "sourdine"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    found["device"] = torch.cuda.get_device_name() if device != "cpu" else platform.machine()
    return found


def chosen(text: str, known: list[str]) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}.")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument(
        "--no-errors", action="store_true", help="leave the errors out, which take time"
    )
    parser.add_argument("--default-malloc", action="store_true", help="leave malloc as it is")
    parser.add_argument("--memory", action="store_true", help="print one engine's bytes on one model")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")  # the peers' hooks warn at each step
    torch.set_num_threads(1)
    if not arguments.default_malloc:
        keep_freed_memory()
    known = list(CPU if arguments.device == "cpu" else CUDA)
    models, engines = (
        chosen(arguments.models or ",".join(known), known),
        chosen(arguments.engines, list(ENGINES)),
    )
    if arguments.memory:
        print(Bench(models[0], arguments.device).memory(engines[0]))
        return
    engines = ["plain", *(engine for engine in engines if engine != "plain")]
    results: dict[str, object] = {"versions": versions(arguments.device)}
    print(json.dumps(results["versions"]), flush=True)
    for name in models:
        rows = compare(name, engines, arguments.rounds, arguments.device, not arguments.no_errors)
        results[name] = rows
        describe = (CPU if arguments.device == "cpu" else CUDA)[name].describe
        print(f"\n{table(describe, rows)}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
