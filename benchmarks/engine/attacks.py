"""The tests' attacks on the engine, on any device and by any path: eager, traced, cut or compiled.

    python benchmarks/engine/attacks.py [--device cuda] [--graphs compiled] [--match promise]
        [--part 3/8] [--seconds 500] [--jsonl FILE]

Runs tests/sgd/test_attacks.py and test_attacks_mistakes.py as they are: the engine keeps its promise,
and twins of it with a mistake are caught. Only the engine's constructor is changed, for all of them:
the model is moved to the device, and graphs are what is asked for here. So the two tests by graphs,
which cut them into pieces, would be the same as those without, and are left out.

Prints for each test how many batches were made by graphs and how many eagerly, and how many lots a
graph gave back to the eager code. It needs pytest itself, and nothing of the tests' settings.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "sgd"))

import pytest
import torch
from cutting import cut

from sourdine import sgd
from sourdine.sgd.graphs import Graphs

TESTS = Path(__file__).parents[2] / "tests" / "sgd"
PATHS = {"eager": None, "traced": sgd.traced, "cut": cut, "compiled": sgd.compiled}
TWICE = ("test_graphs_keep_the_promise", "test_a_tenth_less_noise_is_caught_by_graphs")
NEVER = ("ClipsTheMean",)  # makes its sums in .grad by itself, where an engine by graphs does not look


class Attacks:
    """Chooses the tests and the engine's path, and writes down what came of them."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked, self.began = asked, time.time()
        self.chosen, self.found = 0, []
        self.made: Counter[str] = Counter()
        self.reasons: set[str] = set()

    def pytest_collection_modifyitems(self, items: list) -> None:
        first, step = map(int, self.asked.part.split("/"))
        kept = [x for x in items if x.originalname not in TWICE and self.asked.match in x.name]
        items[:] = kept[first::step]
        self.chosen = len(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            print(report.longreprtext, flush=True)

    @pytest.fixture(autouse=True)
    def path(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every engine on the device and by the path that are asked for; every batch counted."""
        begin, sound, numpy = sgd.Engine.__init__, Graphs.sound, torch.Tensor.numpy
        device, compiler = self.asked.device, PATHS[self.asked.graphs]
        self.made, self.reasons = Counter(), set()

        def begin_there(engine: sgd.Engine, model: torch.nn.Module, *given, loss, **settings) -> None:
            def loss_there(model: torch.nn.Module, batch: object) -> torch.Tensor:
                with torch.device(device):  # for tensors that a model of the tests makes by itself
                    return loss(model, batch)

            settings["graphs"] = None if type(engine).__name__ in NEVER else compiler
            begin(engine, model.to(device), *given, loss=loss_there, **settings)

        def sound_and_counted(graphs: Graphs) -> bool:
            found = sound(graphs)
            if found:
                self.made.update("graph" if x else "eager" for x in graphs.made)
            else:
                self.made["given back"] += 1
            self.reasons.update(graphs.reasons.values())
            return found

        monkeypatch.setattr(sgd.Engine, "__init__", begin_there)
        monkeypatch.setattr(Graphs, "sound", sound_and_counted)
        if device != "cpu":  # the attacks look at how weights moved
            monkeypatch.setattr(torch.Tensor, "numpy", lambda x, **more: numpy(x.cpu(), **more))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        report = yield
        if report.when == "call" or report.failed:
            result = {
                "name": item.name,
                "passed": report.passed,
                "seconds": round(report.duration, 1),
                "made": dict(self.made),
                "reasons": sorted(self.reasons),
            }
            self.found.append(result)
            print(line(result), flush=True)
            if report.failed:
                print(report.longreprtext, flush=True)
            if self.asked.jsonl:
                with self.asked.jsonl.open("a") as file:
                    file.write(json.dumps(result) + "\n")
        if time.time() - self.began > self.asked.seconds:
            item.session.shouldstop = "the time is up"
        return report


def line(result: dict) -> str:
    made = ", ".join(f"{count} {how}" for how, count in result["made"].items())
    said = "passed" if result["passed"] else "FAILED"
    why = "".join(f"; {reason[:90]}" for reason in result["reasons"])
    return f"{said} {result['name']}: {result['seconds']} s; {made or 'no batches'}{why}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--graphs", choices=list(PATHS), default="compiled")
    parser.add_argument("--match", default="", help="only tests with this in their names")
    parser.add_argument("--part", default="0/1", help="3/8: the fourth of every eight tests")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no new test after that")
    parser.add_argument("--jsonl", type=Path, help="a line for each test is appended here")
    attacks = Attacks(parser.parse_args())
    files = [str(TESTS / f"test_attacks{x}.py") for x in ("", "_mistakes")]
    settings = ["-s", "-W", "ignore", "--noconftest", "-p", "no:terminal", "-p", "no:cacheprovider"]
    with tempfile.TemporaryDirectory() as home:
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        os.environ["SOURDINE_HOME"] = os.environ["SOURDINE_CACHE"] = home
        pytest.main([*settings, *files], plugins=[attacks])
    found = attacks.found
    failed, left = sum(not x["passed"] for x in found), attacks.chosen - len(found)
    total = sum((Counter(x["made"]) for x in found), Counter())
    print(
        f"torch {torch.__version__}, {attacks.asked.device}, {attacks.asked.graphs}: "
        f"{len(found) - failed} passed, {failed} failed, {left} not reached; batches by graphs "
        f"{total['graph']}, eagerly {total['eager']}, lots given back {total['given back']}; "
        f"{time.time() - attacks.began:.0f} s"
    )
    sys.exit(int(failed > 0 or left > 0 or not found))


if __name__ == "__main__":
    main()
