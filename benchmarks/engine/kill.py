"""A training run killed with signal 9 a hundred times, against the same run left in peace.

    OMP_NUM_THREADS=1 python benchmarks/engine/kill.py [--kills 100] [--steps 1600]

Both have the same key, copied once the plan was charged (tests/sgd/stopping.py). Kills come after random
times: while a run starts, trains, saves or writes to the ledger. 2 to 5 minutes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "tests" / "sgd" / "stopping.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--steps", type=int, default=1600)
    asked = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, str(SCRIPT), place, str(asked.kills), str(asked.steps)]
        found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    killed, whole = found["killed"], found["whole"]
    same = "yes" if killed["weights"] == whole["weights"] else "NO"
    print("| run | kills | resumes | final epsilon | ledger entries | keys left | identical weights |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, run, kills, resumes in (
        ("killed", killed, found["kills"], found["resumes"]),
        ("in peace", whole, 0, 1),  # begun, copied, and brought to its end
    ):
        entries = ", ".join(entry[0] for entry in run["entries"])
        line = (name, kills, resumes, f"{run['epsilon']:.12g}", entries, len(run["keys"]), same)
        print("| " + " | ".join(map(str, line)) + " |")
    seconds = time.perf_counter() - start
    print(
        f"\n{asked.steps} steps, a checkpoint every 7; {seconds:.0f} s, of which in peace {found['seconds']:.0f} s."
    )
    if killed != whole:
        raise SystemExit("the killed run is not the run left in peace")


if __name__ == "__main__":
    main()
