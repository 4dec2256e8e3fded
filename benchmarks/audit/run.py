"""How often lower bounds on epsilon are false, and how much of epsilon they find.

    OMP_NUM_THREADS=1 python benchmarks/audit/run.py [--trials 1000] [--audits 40]

Each canary is released by itself: its coin, 0 or 1, plus noise. First the share of trials whose bound
exceeds the true epsilon at a nominal 5%, with 1,000 canaries; then the median of bound over epsilon, with
1,000 and 10,000; then the same for a fixed test over many runs; then seconds. Prints Markdown.
"""

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np
from scipy import stats

from sourdine.audit.bound import Counts
from sourdine.audit.one_run import GaussianOneRun, OneRun
from sourdine.audit.rates import Rates, credible_epsilon, gaussian_rates_epsilon, rates_epsilon
from sourdine.audit.rules import Bonferroni, Fixed, Rule, Split, lower_bound

DELTA = 1e-5
# Noise of the Gaussian mechanism at delta 1e-5, for distance 1 (Balle and Wang 2018).
SIGMA = {1: 3.730631634815935, 2: 1.9938124456435362, 4: 1.0811618495202395, 8: 0.6002290721989518}
METHODS = {"one run": (OneRun(),), "Gaussian (conditional)": (GaussianOneRun(),)}
Draw = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def laplace(epsilon: float) -> Draw:
    return lambda coins, noise: coins + noise.laplace(0, 1 / epsilon, len(coins))


def gaussian(sigma: float) -> Draw:
    return lambda coins, noise: coins + sigma * noise.standard_normal(len(coins))


def nothing(coins: np.ndarray, noise: np.random.Generator) -> np.ndarray:
    return noise.standard_normal(len(coins))


MECHANISMS: dict[str, tuple[float, Draw]] = {
    "nothing": (0.0, nothing),
    "Laplace 1": (1.0, laplace(1)),
    "Laplace 4": (4.0, laplace(4)),
    **{f"Gaussian {e}": (float(e), gaussian(sigma)) for e, sigma in SIGMA.items()},
}


def rules(canaries: int) -> dict[str, Rule]:
    many = [
        (max(1, int(s * canaries)), int(s * canaries * low))
        for s in np.geomspace(0.005, 0.5, 10)
        for low in (0, 1)
    ]
    return {
        "Fixed, 3% each": Fixed(3 * canaries // 100, 3 * canaries // 100),
        "Fixed, 40% each": Fixed(4 * canaries // 10, 4 * canaries // 10),
        "Bonferroni, usual": Bonferroni(),
        "Bonferroni, 20 pairs": Bonferroni(tuple(many)),
        "Split": Split(),
    }


def audits(draw: Draw, canaries: int, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    noise = np.random.default_rng(6)
    for _ in range(count):
        coins = noise.random(canaries) < 0.5
        yield draw(coins, noise), coins


def proven(draw: Draw, canaries: int, count: int, rule: Rule, bounds: tuple) -> np.ndarray:
    found = (
        lower_bound(scores, coins, delta=DELTA, rule=rule, bounds=bounds).epsilon
        for scores, coins in audits(draw, canaries, count)
    )
    return np.fromiter(found, float)


def uncorrected(draw: Draw, epsilon: float, canaries: int, count: int) -> float:
    """Share of audits in which the best of all (k_in, k_out), at delta 0, is above epsilon."""
    ks = np.arange(canaries // 2 + 1)
    needed = stats.binom.isf(0.05, ks[:, None] + ks, 1 / (1 + np.exp(-epsilon))) + 1
    false = 0
    for scores, coins in audits(draw, canaries, count):
        ranked = coins[np.argsort(-scores)]
        right_in = np.append(0, np.cumsum(ranked))[ks]
        right_out = np.append(0, np.cumsum(~ranked[::-1]))[ks]
        false += bool((right_in[:, None] + right_out >= needed).any())
    return false / count


def table(title: str, rows: dict[str, list[str]]) -> None:
    print(f"\n{title}\n\n| rule | bound | {' | '.join(rows.pop('head'))} |")
    print("| --- | --- |" + " --- |" * len(next(iter(rows.values()))))
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def false_alarms(trials: int) -> None:
    canaries = 1000
    rows = {"head": list(MECHANISMS)}
    for name, rule in rules(canaries).items():
        for method, bounds in METHODS.items():
            rows[f"{name} | {method}"] = [
                # The condition does not hold for Laplace noise.
                "–"
                if "Gaussian" in method and "Laplace" in mechanism
                else f"{100 * np.mean(proven(draw, canaries, trials, rule, bounds) > epsilon):.1f}%"
                for mechanism, (epsilon, draw) in MECHANISMS.items()
            ]
    rows["best of all, uncorrected (a mistake) | one run, delta 0"] = [
        f"{100 * uncorrected(draw, epsilon, canaries, trials // 5):.0f}%" if epsilon <= 1 else "–"
        for epsilon, draw in MECHANISMS.values()
    ]
    table(f"False bounds at a nominal 5%, {trials} trials with {canaries} canaries", rows)


def power(audits_each: int) -> None:
    kept = {name: pair for name, pair in MECHANISMS.items() if pair[0] > 0}
    for canaries in (1000, 10_000):
        rows = {"head": list(kept)}
        for name, rule in rules(canaries).items():
            for method, bounds in METHODS.items():
                rows[f"{name} | {method}"] = [
                    "–"
                    if "Gaussian" in method and "Laplace" in mechanism
                    else f"{np.median(proven(draw, canaries, audits_each, rule, bounds)) / epsilon:.2f}"
                    for mechanism, (epsilon, draw) in kept.items()
                ]
        table(f"Bound over epsilon, median of {audits_each} audits, {canaries} canaries", rows)


def many_runs(trials: int) -> None:
    noise = np.random.default_rng(8)
    methods = {
        "many runs": rates_epsilon,
        "many runs, Gaussian (conditional)": gaussian_rates_epsilon,
        "many runs, credible (Bayesian)": credible_epsilon,
    }
    runs = 1000
    laws: dict[str, tuple[float, Callable[[float], tuple[float, float]]]] = {
        "nothing": (0.0, lambda t: (stats.norm.sf(t), stats.norm.sf(t))),
        "Laplace 1": (1.0, lambda t: (stats.laplace.sf(t), stats.laplace.sf(t - 1))),
    }
    for e, sigma in SIGMA.items():
        laws[f"Gaussian {e}"] = (
            float(e),
            lambda t, s=sigma: (stats.norm.sf(t), stats.norm.sf(t - 1 / s)),
        )
    print(
        f"\nA test with threshold 1 over {runs} runs of each kind: false bounds; median over epsilon\n"
    )
    print(f"| bound | {' | '.join(laws)} |\n| --- |" + " --- |" * len(laws))
    for name, method in methods.items():
        cells = []
        count = trials if method is not credible_epsilon else 20
        for law, (epsilon, rates) in laws.items():
            if "Gaussian" in name and "Laplace" in law:
                cells.append("–")
                continue
            fpr, tpr = rates(1.0)
            pairs = zip(noise.binomial(runs, tpr, count), noise.binomial(runs, fpr, count), strict=True)
            found = np.array(
                [method(Rates(int(k), runs, int(f), runs), DELTA).epsilon for k, f in pairs]
            )
            share = f"; {np.median(found) / epsilon:.2f}" if epsilon else ""
            cells.append(f"{100 * np.mean(found > epsilon):.1f}%{share}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def seconds() -> None:
    print("\n| canaries, guesses, correct | one run, ms | Gaussian, ms |\n| --- | --- | --- |")
    for counts in (
        (1000, 200, 180),
        (10_000, 1000, 700),
        (10_000, 10_000, 6000),
        (100_000, 100_000, 60_000),
    ):
        took = []
        for method in (OneRun(), GaussianOneRun()):
            start = time.perf_counter()
            method.epsilon(Counts(*counts), 1e-6, 0.05)
            took.append(f"{1000 * (time.perf_counter() - start):.1f}")
        print(f"| {', '.join(f'{n:,}' for n in counts)} | {' | '.join(took)} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--audits", type=int, default=40)
    given = parser.parse_args()
    false_alarms(given.trials)
    power(given.audits)
    many_runs(given.trials)
    seconds()
