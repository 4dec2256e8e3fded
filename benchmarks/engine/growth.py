"""How time and memory of a private step grow with the batch and with the length of texts.

    python benchmarks/engine/growth.py --device cuda --lines growth.jsonl [--models bert] [--compiled] [--seconds 500]
    python benchmarks/engine/growth.py --lines growth.jsonl --figure growth.png

BERT-base and GPT-2 small (tied, as published), random weights and tokens, bf16 autocast: batches of 8 to 512
texts of 128 tokens, and batches of 8 texts of 64 to 4096 tokens, with as many position embeddings as that takes.
A step is one of AdamW with all that belongs to it. The private one is made by graphs as they are traced (or by
compiled ones), with secure noise; beside it the non-private one, eager, and with --compiled by torch.compile.

Every point starts from an empty GPU. After 8 steps that are not timed come two for the memory, 5 for the time (median,
least and most, wall time around a synchronised step) and two more for the memory, of which one is proved anew
(sgd/graphs.py: the 1st, 2nd, 4th, ... and every 256th). Memory is the most that is allocated in two steps, and what lies
in the pools of recorded graphs, weights and optimizer included: "bytes" of ordinary steps, "bytes most" with a proof.
One JSON line for each point, as it comes; what is in the file already is not measured again, so that a run can be
cut into several. What runs out of memory is said so, and nothing larger is tried. --tiny is for a try on
the CPU, where memory is what a step allocates (the private sums lie there before) and time that of the process.
"""

import argparse
import gc
import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import models
import run
import torch
from torch import nn

SIZE = ("model", "engine", "batch", "length")
Key, Row = tuple[str, str, int, int], dict[str, object]
MODELS = {"bert": (models.bert, 30522, 2), "gpt2": (partial(models.gpt2, tied=True), 50257, None)}


ENGINES: dict[str, tuple[str, type[run.Engine]]] = {
    "plain": ("", run.NonPrivate),
    "compiled": (", compiled", run.Compiled),
    "ours-traced": (" private", run.OursTraced),
    "ours-compiled": (" private, compiled", run.OursCompiled),
}


class Point(run.Bench):
    """One model at one size."""

    def __init__(self, model: str, batch: int, length: int, device: str, tiny: bool) -> None:
        build, vocabulary, classes = MODELS[model]
        size, made = (2, 64) if tiny else (12, 768), models.positioned(vocabulary, length, classes)
        one = partial(enlarged, partial(build, *size), length, device)
        self.task, self.device = models.Task(model, one, made, batch), device

    def engine(self, name: str) -> run.Engine:
        kind, batch = ENGINES[name][1], self.batch(self.task.examples)
        return kind(self.model(kind), batch, clip=run.CLIP, noise=run.NOISE, half=self.device != "cpu")

    def measured(self, name: str) -> Row:
        start = time.perf_counter()
        engine = run.started(self.engine(name))
        row: Row = {"seconds to start": time.perf_counter() - start}
        if self.device != "cpu":
            row["bytes"] = run.held(engine)
        times = [1e3 * self.seconds(lambda: run.once(engine)) for _ in range(5)]
        if self.device == "cpu":
            row["bytes"] = row["bytes most"] = self.memory(name)
        else:
            row["bytes most"] = run.held(engine)  # of the 16th step, which is proved, and the 17th
        return row | {"ms": statistics.median(times), "least": min(times), "most": max(times)}


def enlarged(build: Callable[[], nn.Module], length: int, device: str) -> nn.Module:
    """The model with position embeddings for texts of this length."""
    with torch.device("meta"):
        model = build().model
    model.config.max_position_embeddings = max(model.config.max_position_embeddings, length)
    with torch.device(device):
        return models.Logits(type(model)(model.config))


def attempted(work: Callable[[], Row]) -> Row:
    """What was measured, or what went wrong; nothing stays in memory."""
    row, problem = run.attempt(work)
    gc.collect()
    torch.compiler.reset()
    torch.cuda.empty_cache()
    return {"failed": problem} if problem else row


def series(names: list[str], tiny: bool) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Models with sizes (batch, length), each larger than the one before."""
    batch, length = (2, 16) if tiny else (8, 128)
    for name in names:
        yield name, [(batch << step, length) for step in range(3 if tiny else 7)]
        yield name, [(batch, length << step >> 1) for step in range(4 if tiny else 7)]


def measure(arguments: argparse.Namespace, engines: list[str]) -> None:
    """All points that are not in the file yet."""
    end, known = time.monotonic() + arguments.seconds, rows(arguments.lines)
    precision = "fp32" if arguments.device == "cpu" else "bf16 autocast"
    tell({"versions": run.versions(arguments.device), "precision": precision}, arguments.lines)
    for name, sizes in series(arguments.models.split(","), arguments.tiny):
        full: set[str] = set()  # engines that have run out of memory
        for key in [(name, engine, *size) for size in sizes for engine in engines]:
            if key not in known:
                if time.monotonic() > end:
                    print("time is up; the rest is for another run.", file=sys.stderr)
                    return
                row: Row = {"failed": "out of memory at a smaller size"}
                if key[1] not in full:
                    point = Point(name, *key[2:], arguments.device, arguments.tiny)
                    row = attempted(lambda point=point, engine=key[1]: point.measured(engine))
                known[key] = dict(zip(SIZE, key, strict=True)) | row
                tell(known[key], arguments.lines)
            if "out of memory" in known[key].get("failed", ""):
                full.add(key[1])


def tell(row: Row, path: Path) -> None:
    print(json.dumps(row), flush=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def rows(path: Path) -> dict[Key, Row]:
    """What is in the file; what failed for other reasons than memory is left out, and tried again."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    found = [row for row in map(json.loads, text.splitlines()) if "model" in row]
    kept = [row for row in found if "out of memory" in row.get("failed", "out of memory")]
    return {tuple(row[name] for name in SIZE): row for row in kept}


def draw(lines: Path, path: Path) -> None:
    """Time above, memory below; by the batch on the left, by the length on the right."""
    from sourdine.report import style

    found = rows(lines)
    there = {key: row for key, row in found.items() if "failed" not in row}
    text = lines.read_text(encoding="utf-8")
    first = json.loads(text.splitlines()[0])
    batch = min(key[2] for key in there)
    length = next(key[3] for key in there if key[2] > batch)
    version, notes = first["versions"], []
    if len(there) < len(found):
        notes.append("Curves end where the next size runs out of memory.")
    if "no graph" in text:
        notes.append("Gap: a size for which there is no graph.")

    def ratios(what: str) -> list[str]:
        ours = {(key[0], "plain", *key[2:]): row for key, row in there.items() if "ours" in key[1]}
        own = sorted(row[what] / there[base][what] for base, row in ours.items() if base in there)
        return list(dict.fromkeys(f"{x:.1f}" for x in (own[0], own[-1])))

    with style.house():
        figure = style.canvas(
            f"A private step takes {' to '.join(ratios('ms'))} times the time and {' to '.join(ratios('bytes'))} "
            "times the memory of a non-private one",
            f"One step of AdamW, {first['precision']}, {version['device']}, torch {version['torch']}. Dashed: non-private, eager. "
            "Shaded: memory of the few steps in which it is proved anew which rows are whose, up to "
            f"{ratios('bytes most')[-1]} times. {' '.join(notes)}",
            taller=1.6,
            margin=0.95,
        )
        figure.subplots_adjust(wspace=0.62, hspace=0.22)
        for place, what in enumerate(("ms", "ms", "bytes", "bytes")):
            at, y = 2 + place % 2, "ms a step" if what == "ms" else "GiB held"
            own = {key: row for key, row in there.items() if key[5 - at] == (length, batch)[place % 2]}
            x = (f"texts of {length} tokens in a batch", f"tokens in each of {batch} texts")[place % 2]
            plot = style.axes(figure, (2, 2), place + 1, x=x, y=y)
            curves(plot, own, at, what)
        figure.savefig(path, dpi=style.DPI)


def curves(plot: object, chosen: dict[Key, Row], at: int, what: str) -> None:
    """One curve for each model and engine, with its name at its end."""
    from matplotlib.ticker import LogLocator

    from sourdine.report import style

    looks = {"bert": ("BERT", style.BLUE), "gpt2": ("GPT-2", style.ORANGE)}
    scale, ends = 2.0**30 if what == "bytes" else 1.0, []
    plot.set_xscale("log", base=2)
    plot.set_yscale("log")
    ticks = sorted({key[at] for key in chosen})
    for model, engine in sorted({key[:2] for key in chosen}):
        own = {key[at]: row for key, row in chosen.items() if key[:2] == (model, engine)}
        xs = [x for x in ticks if x <= max(own)]
        ys, most = (
            [own[x][name] / scale if x in own else math.nan for x in xs]  # no line over a gap
            for name in (what, "bytes most")
        )
        (name, color), line = looks[model], ("-", "--")["ours" not in engine]
        width, dots = (style.LINE, "o") if line == "-" else (1.2, "")
        plot.plot(xs, ys, line, color=color, linewidth=width, marker=dots, markersize=4)
        if line == "-" and what == "bytes":
            plot.fill_between(xs, ys, most, color=color, alpha=0.12, linewidth=0)
        ends.append((ys[-1], xs[-1], name + ENGINES[engine][0], color))
    plot.set_xticks(ticks, [str(x) for x in ticks])
    plot.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    plot.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    plot.minorticks_off()
    last = -1e9
    for y, x, text, color in sorted(ends):  # from the lowest up, moved up where they would meet
        by, align = (0.0, 9.0), "right"
        if x == ticks[-1]:
            height = plot.transData.transform((x, y))[1] * 72 / plot.figure.dpi
            last = max(height, last + style.SMALL + 2)
            by, align = (6.0, last - height), "left"
        style.label(plot, (x, y), text, color, by=by, align=align, size=style.SMALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--models", default="bert,gpt2")
    parser.add_argument("--graphs", default="traced", choices=["traced", "compiled"])
    parser.add_argument("--compiled", action="store_true", help="also torch.compile, non-private")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing new after so long")
    parser.add_argument(
        "--lines", type=Path, required=True, help="the file of JSON lines, which is added to"
    )
    parser.add_argument("--figure", type=Path, help="measure nothing, draw what is in the file")
    parser.add_argument("--tiny", action="store_true", help="two layers and small sizes, to try it")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if arguments.figure:
        draw(arguments.lines, arguments.figure)
    else:
        peers = ["plain", "compiled"] if arguments.compiled else ["plain"]
        measure(arguments, [*peers, f"ours-{arguments.graphs}"])


if __name__ == "__main__":
    main()
