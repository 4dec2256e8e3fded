"""Ten questions to a CSV file of a million rows, from the file on the disk to the last answer.

    python benchmarks/query/run.py [--rows 1000000]

Prints the seconds of reading, of each question and of all. A second run asks for words in the text column,
which is the slowest kind of question, beside the ten.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path

import numpy as np


def write(path: Path, rows: int) -> None:
    """Made-up reviews; written before the clock starts."""
    chance = np.random.default_rng(7)
    stars = chance.integers(1, 6, rows)
    minutes = chance.gamma(2.0, 15.0, rows).round(2)
    cities = chance.choice(["Paris", "Rome", "Oslo", "Bonn"], rows)
    authors = chance.integers(0, rows // 5, rows)
    words = chance.choice(["good", "bad", "slow", "kind", "cold", "room", "food", "staff"], (rows, 6))
    with path.open("w", encoding="utf-8") as file:
        file.write("author,stars,minutes,city,text\n")
        for row in range(rows):
            text = " ".join(words[row])
            file.write(f"u{authors[row]},{stars[row]},{minutes[row]},{cities[row]},{text}\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "reviews.csv"
        write(path, rows)
        print(
            f"Python {platform.python_version()}, {os.cpu_count()} cores, {path.stat().st_size / 1e6:.0f} MB"
        )
        start = time.perf_counter()
        from sourdine.budget import Budget
        from sourdine.ledger import Ledger
        from sourdine.query import Session

        ledger = Ledger(Path(name) / "reviews.sqlite", Budget(2.0, 1e-9, unit="user"))
        session = Session(path, ledger, user="author", rows_per_user=5)
        times = {"import and read": time.perf_counter() - start}
        bounds = {"low": 0, "high": 120}
        questions = {
            "count": lambda: session.count(epsilon=0.1),
            "count where": lambda: session.count(epsilon=0.1, where=["stars >= 4", "city == Paris"]),
            "count by city": lambda: session.count(
                epsilon=0.1, by="city", keys=["Paris", "Rome", "Oslo"]
            ),
            "sum": lambda: session.sum("minutes", **bounds, epsilon=0.1),
            "mean": lambda: session.mean("minutes", **bounds, epsilon=0.1),
            "mean where": lambda: session.mean(
                "stars", low=1, high=5, epsilon=0.1, where="city != Rome"
            ),
            "mean by city": lambda: session.mean(
                "stars", low=1, high=5, epsilon=0.1, by="city", keys=["Paris", "Rome", "Oslo"]
            ),
            "variance": lambda: session.variance("minutes", **bounds, epsilon=0.1),
            "quantile": lambda: session.quantile("minutes", 0.5, **bounds, epsilon=0.1),
            "histogram": lambda: session.histogram("stars", keys=[1, 2, 3, 4, 5], epsilon=0.1),
        }
        for label, ask in questions.items():
            before = time.perf_counter()
            ask()
            times[label] = time.perf_counter() - before
        times["all ten, with reading"] = time.perf_counter() - start
        before = time.perf_counter()
        session.word_counts(["good", "bad", "slow"], epsilon=0.1, column="text")
        times["words, beside the ten"] = time.perf_counter() - before
        print(json.dumps({label: round(seconds, 3) for label, seconds in times.items()}, indent=1))


if __name__ == "__main__":
    main()
