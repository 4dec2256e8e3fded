"""How accurate private text classifiers are: tasks, budgets and ways to train, by the Trainer itself.

    python benchmarks/text/run.py DATA --out results.jsonl --device cuda --workers 6
    python benchmarks/text/run.py --table results.jsonl
    python benchmarks/text/run.py --figure results.jsonl

DATA is a folder with TASK.train.jsonl and TASK.test.jsonl (fields text, perhaps text2, label). Each line of
the result is one run. The test records are public and counted exactly. `planner` is what the planner
chooses by itself; `scratch` is the built-in model on bytes. Lines that are there already are not run
again, so a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import sys
import time
from pathlib import Path
from typing import Any

DELTA = 1e-5
MEASURES = {"cola": "matthews", "complaints": "macro_f1"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", nargs="?")
    parser.add_argument("--table")
    parser.add_argument("--figure")
    parser.add_argument("--out", default="results.jsonl")
    parser.add_argument("--model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tasks", default="sst2")
    parser.add_argument("--methods", default="planner")
    parser.add_argument("--epsilons", default="1,3,8,inf")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--steps", type=int, help="in place of the planner's number")
    parser.add_argument(
        "--batch", type=int, help="in place of the planner's number; several workers share"
    )
    parser.add_argument("--seconds", type=float, default=1e9)
    asked = parser.parse_args()
    if asked.table:
        table(Path(asked.table))
        return
    if asked.figure:
        figure(Path(asked.figure))
        return
    done = {identity(row) for row in rows(Path(asked.out))}
    jobs = [
        {"task": task, "method": method, "epsilon": epsilon, "seed": seed}
        for task in asked.tasks.split(",")
        for seed in range(asked.seeds)
        for method in asked.methods.split(",")
        for epsilon in asked.epsilons.split(",")
    ]
    jobs = [job for job in jobs if identity(job) not in done]
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        queue, end = manager.Queue(), time.time() + asked.seconds
        for job in jobs:
            queue.put(job)
        workers = [
            context.Process(target=work, args=(queue, end, vars(asked))) for _ in range(asked.workers)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def work(queue: Any, end: float, asked: dict[str, Any]) -> None:
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // asked["workers"]))
    while time.time() < end:
        try:
            job = queue.get_nowait()
        except Exception:
            return
        try:
            found = one(job, asked)
        except Exception as error:
            print("FAILED", job, repr(error)[:400], file=sys.stderr, flush=True)
            continue
        line = json.dumps(found)
        print(line, flush=True)
        with Path(asked["out"]).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def one(job: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    import sourdine as sd

    start = time.time()
    train, test = (
        load(Path(asked["data"]) / f"{job['task']}.{part}.jsonl") for part in ("train", "test")
    )
    text = ["text", "text2"] if "text2" in train else "text"
    private = job["epsilon"] != "inf"
    method = job["method"]
    trainer = sd.Trainer(
        train,
        sd.Budget(float(job["epsilon"]), DELTA) if private else None,
        not_private=not private,
        model="bytes" if method == "scratch" else asked["model"],
        trains=None if method in ("planner", "scratch") else method,
        text=text,
        label="label",
        labels=sorted(set(train["label"])),
        test=test,
        test_is_public=True,
        leave_out_copies=private,
        minutes=None if method == "planner" else math.inf,
        device=asked["device"],
        steps=asked["steps"],
        batch_size=asked["batch"],
    )
    run = trainer.fit()
    found = {
        name: round(run.metrics[name]["value"], 4) for name in ("accuracy", "macro_f1", "matthews")
    }
    chosen = trainer.prepare().plan
    about = {"trains": chosen.strategy.name, "lot": chosen.lot_size, "steps": chosen.steps}
    return {**job, **found, **about, "seconds": round(time.time() - start, 1)}


def load(path: Path) -> dict[str, list[str]]:
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    return {name: [str(row[name]) for row in found] for name in found[0]}


def rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def identity(job: dict[str, Any]) -> tuple[str, str, str, int]:
    return job["task"], job["method"], str(job["epsilon"]), job["seed"]


def collected(path: Path) -> dict[tuple[str, str], dict[str, list[float]]]:
    """By task and method, then by epsilon: what each repetition reached."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows(path):
        measure = MEASURES.get(row["task"], "accuracy")
        cell = found.setdefault((row["task"], row["method"]), {})
        cell.setdefault(str(row["epsilon"]), []).append(row[measure])
    return found


def figure(path: Path) -> None:
    """One plot a task, one line a method; beside the file, as PNG."""
    from sourdine.report import style

    found = collected(path)
    tasks = list(dict.fromkeys(task for task, _ in found))
    inks = {"planner": (style.BLUE, "o"), "head": (style.ORANGE, "s"), "all": (style.GREEN, "^")}
    inks |= {"bitfit": (style.PURPLE, "D"), "scratch": (style.GREY, "X"), "lora": (style.AMBER, "v")}
    budgets = sorted({float(e) for cell in found.values() for e in cell if e != "inf"})
    places = {f"{e:g}": math.log2(e) for e in budgets} | {"inf": math.log2(budgets[-1]) + 0.8}
    with style.house():
        said = "MiniLM, delta 1e-5, public test records; SST-2 with three seeds, the others with one."
        page = style.canvas(
            "What privacy costs depends on the task and on what is trained",
            said,
            taller=1.2,
            headed=True,
        )
        page.subplots_adjust(hspace=0.55, wspace=0.3)
        for number, task in enumerate(tasks, 1):
            measure = MEASURES.get(task, "accuracy").replace("_", " ")
            plot = style.axes(page, (2, 3), number, title=f"{task}: {measure}", x="epsilon")
            for (name, method), cell in found.items():
                if name == task:
                    color, marker = inks[method]
                    points = sorted((places[e], statistics.mean(values)) for e, values in cell.items())
                    plot.plot(*zip(*points, strict=True), color=color, marker=marker, label=method)
            plot.set_xticks(list(places.values()), [*(f"{e:g}" for e in budgets), "none"])
        lines = {x.get_label(): x for plot in page.axes for x in plot.get_lines()}
        page.legend(
            lines.values(), lines.keys(), loc="center", bbox_to_anchor=(0.83, 0.28), frameon=False
        )
        page.savefig(path.with_suffix(".png"), dpi=style.DPI)


def table(path: Path) -> None:
    """Mean and spread over the repetitions, as Markdown."""
    found = collected(path)
    budgets = sorted({epsilon for cell in found.values() for epsilon in cell}, key=float)
    print(
        "| task | measure | trains | " + " | ".join(f"epsilon {epsilon}" for epsilon in budgets) + " |"
    )
    print("| --- | --- | --- |" + " --- |" * len(budgets))
    for (task, method), cell in sorted(found.items()):
        shown = [said(cell.get(epsilon, [])) for epsilon in budgets]
        print(f"| {task} | {MEASURES.get(task, 'accuracy')} | {method} | " + " | ".join(shown) + " |")


def said(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"


if __name__ == "__main__":
    main()
