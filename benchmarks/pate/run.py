"""PATE on text: the student at several budgets, beside what it could reach without privacy.

    python benchmarks/pate/run.py split REVIEWS.csv OUT       REVIEWS.csv: `sourdine fetch reviews`
    python benchmarks/pate/run.py features OUT                MiniLM, half an hour on a core
    python benchmarks/pate/run.py learn OUT --seeds 5
    python benchmarks/pate/run.py figure OUT benchmarks/pate/text.png
    python benchmarks/pate/run.py speed

33,530 film reviews (IMDb and Rotten Tomatoes), two classes: 4,000 public texts without labels, 3,000 to
test on, the rest private; private copies of public texts are left out. Everything reads frozen features
of MiniLM (all-MiniLM-L6-v2, at most 128 tokens). The plan of each budget comes from `plan_blindly`, the
answers from a ledger of that budget; delta 1e-6, one record left out. Noise is seeded, so that the
figures can be repeated: they are figures and no releases.

DP-SGD at the same budgets comes from `sourdine compare` (README.md).
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from sourdine.budget import Budget
from sourdine.data.corpus import Corpus, read_corpus
from sourdine.data.overlap import overlap
from sourdine.pate import (
    Labelling,
    Votes,
    analysis,
    fit_heads,
    fit_student,
    partitions,
    plan_blindly,
    simulated,
    smooth,
)
from sourdine.rng import seeded

PUBLIC, TEST, DELTA = 4000, 3000, 1e-6
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)


def split(reviews: Path, out: Path) -> None:
    """Three files; which review goes where is drawn once, with a fixed seed."""
    csv.field_size_limit(10**9)
    with reviews.open(encoding="utf-8", newline="") as file:
        rows = [(row["text"], row["label"]) for row in csv.DictReader(file)]
    random.Random(0).shuffle(rows)
    parts = {
        "public": rows[:PUBLIC],
        "test": rows[PUBLIC : PUBLIC + TEST],
        "private": rows[PUBLIC + TEST :],
    }
    private, public = (_corpus(parts[name]) for name in ("private", "public"))
    found = overlap(private, public)
    kept = private.take(at for at in range(len(private)) if at not in found.places)
    print(found.sentence(), "They are left out.")
    parts["private"] = list(zip(kept.texts[0], kept.labels or [], strict=True))
    out.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        with (out / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *part])


def _corpus(rows: list[tuple[str, str]]) -> Corpus:
    columns = {"text": [text for text, _ in rows], "label": [label for _, label in rows]}
    return read_corpus(columns, text="text", label="label")


def features(out: Path) -> None:
    from sourdine.text.frozen import Frozen

    read = Frozen(None, "cpu")
    for name in ("test", "public", "private"):
        corpus = read_corpus(out / f"{name}.csv", text="text", label="label")
        np.save(out / f"{name}.npy", read(corpus.texts).astype(np.float32))
        print(name, len(corpus), flush=True)


def learn(out: Path, seeds: int, teachers: list[int]) -> None:
    """Every line of the table, as it comes, into results.jsonl."""
    corpora = {
        n: read_corpus(out / f"{n}.csv", text="text", label="label")
        for n in ("private", "public", "test")
    }
    rows = {name: np.load(out / f"{name}.npy").astype(np.float64) for name in corpora}
    truth = {name: np.array([int(x) for x in corpus.labels or []]) for name, corpus in corpora.items()}

    def tested(student: Any) -> float:
        return float((student.predict(rows["test"]) == truth["test"]).mean())

    lines = [
        {
            "method": "head on all private records, no privacy",
            "accuracy": [tested(fit_student(rows["private"], truth["private"], 2))],
        },
        {
            "method": "student with true labels, no privacy",
            "accuracy": [tested(fit_student(rows["public"], truth["public"], 2))],
        },
    ]
    for count in teachers:
        start = time.perf_counter()
        parts = partitions(corpora["private"], count)
        votes = fit_heads(rows["private"], truth["private"].tolist(), parts, 2).vote(rows["public"])
        voted = time.perf_counter() - start
        most = votes.counts.argmax(axis=1)
        right = votes.counts[np.arange(len(votes)), truth["public"]].mean() / count
        lines.append(
            {
                "method": "student of exact votes, no privacy",
                "teachers": count,
                "teacher": round(float(right), 4),
                "plurality": round(float((most == truth["public"]).mean()), 4),
                "seconds": round(voted, 1),
                "accuracy": [tested(fit_student(rows["public"], most, 2))],
            }
        )
        lines += [_at(epsilon, count, seeds, votes, rows, truth, tested) for epsilon in EPSILONS]
    with (out / "results.jsonl").open("w", encoding="utf-8") as file:
        for line in lines:
            print(json.dumps(line), flush=True)
            file.write(json.dumps(line) + "\n")


def _at(
    epsilon: float, count: int, seeds: int, votes: Votes, rows: Any, truth: Any, tested: Any
) -> dict[str, Any]:
    budget = Budget(epsilon, DELTA)
    plan = plan_blindly(budget, count, 2, PUBLIC)
    found, right = [], []
    for seed in range(seeds):
        labelling = Labelling(
            plan.aggregator, budget, questions=plan.questions, answers=plan.answers, source=seeded(seed)
        )
        answers = labelling.ask(votes)
        found.append(tested(fit_student(rows["public"], answers.labels, 2)))
        right.append(float((answers.labels == truth["public"])[answers.answered].mean()))
    return {
        "method": "PATE",
        "teachers": count,
        "epsilon": epsilon,
        "aggregator": str(plan.aggregator),
        "answers": labelling.answered,
        "asked": labelling.asked,
        "labels right": round(statistics.fmean(right), 4),
        "accuracy": [round(x, 4) for x in found],
    }


def figure(out: Path, to: Path) -> None:
    from sourdine.report import style

    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    private = [line for line in lines if line["method"] == "PATE"]
    inks = (style.BLUE, style.ORANGE, style.GREEN)
    with style.house():
        drawing = style.canvas(
            "A student of noisy votes comes close to one with true labels",
            f"{PUBLIC:,} public reviews, frozen MiniLM features, delta {DELTA:g}, data-independent epsilon. Lines: mean of "
            "the seeds; bars: least and most. Dashes: without privacy.",
            margin=2.1,
        )
        plot = style.axes(drawing, x="epsilon, for any votes", y="accuracy of the student")
        for ink, count in zip(inks, sorted({line["teachers"] for line in private}), strict=False):
            own = [line for line in private if line["teachers"] == count]
            at = [line["epsilon"] for line in own]
            mean = [statistics.fmean(line["accuracy"]) for line in own]
            ends = [
                [m - min(x["accuracy"]) for m, x in zip(mean, own, strict=True)],
                [max(x["accuracy"]) - m for m, x in zip(mean, own, strict=True)],
            ]
            plot.errorbar(at, mean, ends, color=ink, lw=style.LINE, marker="o", capsize=3)
            style.label(
                plot, (at[-1], mean[-1]), f"{count} teachers", ink, by=(8, -10 if count == 100 else 2)
            )
        names = {
            "head on all private records, no privacy": "head on the private records",
            "student with true labels, no privacy": "student with true labels",
        }
        for line in lines:
            if line["method"] in names:
                plot.axhline(line["accuracy"][0], color=style.GREY, ls="--", lw=1)
                up = 6 if "private" in names[line["method"]] else -4
                at_end = (8.7, line["accuracy"][0])
                style.label(plot, at_end, names[line["method"]], style.GREY, by=(6, up))
        plot.set_xscale("log", base=2)
        plot.set_xlim(0.45, 8.7)
        plot.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
        drawing.savefig(to)


def speed() -> None:
    """10,000 questions, 250 teachers, 10 classes: all orders, and smooth sensitivity."""
    votes = simulated(10_000, 250, 10, accuracy=0.8, source=seeded(1))
    answered = votes.counts.max(axis=1) > 180
    start = time.perf_counter()
    analysis.realised(votes.counts, answered, 200, 150, 40)
    one = time.perf_counter()
    changes = smooth.changes_realised(votes.counts, answered, 200, 150, 40, 14.0)
    smooth.smooth_sensitivity(changes, 0.2 / 14)
    two = time.perf_counter()
    print(
        f"all {len(analysis.ORDERS)} orders: {one - start:.2f} s; smooth sensitivity: {two - one:.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["split", "features", "learn", "figure", "speed"])
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--teachers", default="100,250")
    given = parser.parse_args()
    if given.what == "learn":
        learn(given.paths[0], given.seeds, [int(x) for x in given.teachers.split(",")])
    else:
        {"split": split, "features": features, "figure": figure, "speed": speed}[given.what](
            *given.paths
        )


if __name__ == "__main__":
    main()
