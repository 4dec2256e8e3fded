"""The benchmark's records as JSON lines: python benchmarks/text/prepare.py SOURCES OUT

SOURCES holds sst2 (text, label), cola (source, label, mark, sentence), snli (label, premise, hypothesis) and
consumer_complaints (CSV) as their publishers write them; IMDb comes from `sourdine fetch reviews`, without
copies, a fifth of it for the test by a hash of each review. Long texts are cut after 900 characters: models
read 128 tokens of them.
"""

from __future__ import annotations

import csv
import hashlib
import json
import sys
from pathlib import Path

from sourdine.data.fetch import fetch

LONGEST = 900


def main() -> None:
    sources, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    for part in ("train", "dev", "test"):
        sst2 = [line.split("\t") for line in lines(sources / "sst2" / f"{part}.tsv")]
        write(out, f"sst2.{part}", [{"text": text, "label": label} for text, label in sst2])
    cola = {"train": ("train", "val"), "test": ("dev",)}
    for part, files in cola.items():
        rows = [line.split("\t") for name in files for line in lines(sources / "cola" / f"{name}.tsv")]
        write(out, f"cola.{part}", [{"text": row[3], "label": row[1]} for row in rows])
    for part in ("train", "test"):
        rows = [line.split("\t") for line in lines(sources / "snli" / f"{part}.tsv")[1:]]
        write(out, f"snli.{part}", [{"text": a, "text2": b, "label": label} for label, a, b in rows])
        with (sources / "consumer_complaints" / f"{part}.csv").open(
            encoding="utf-8", newline=""
        ) as file:
            found = [
                (row["Consumer complaint narrative"], row["Product"]) for row in csv.DictReader(file)
            ]
        write(out, f"complaints.{part}", [{"text": a[:LONGEST], "label": b} for a, b in found])
    with fetch("reviews").open(encoding="utf-8", newline="") as file:
        imdb = {row["text"]: row["label"] for row in csv.DictReader(file) if row["source"] == "imdb"}
    parts: dict[str, list[dict[str, str]]] = {"train": [], "test": []}
    for text, label in imdb.items():
        tested = hashlib.sha256(text.encode()).digest()[0] < 51
        parts["test" if tested else "train"].append({"text": text[:LONGEST], "label": label})
    for part, records in parts.items():
        write(out, f"imdb.{part}", records)


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").rstrip("\n").split("\n")


def write(out: Path, name: str, records: list[dict[str, str]]) -> None:
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (out / f"{name}.jsonl").write_text(text, encoding="utf-8")
    print(name, len(records))


if __name__ == "__main__":
    main()
