"""How often `choose --until decided` is wrong, how many seeds it takes, and how good its word on seeds to come is.

    python benchmarks/seeds.py

10,000 simulated comparisons of two candidates, a difference at each seed. Looks are after 5, 6, 7, ... seeds, as those
of `choose`; a comparison is decided when the evidence of `lit_gelu.choose.sequential` reaches 20.
Effects are in units of the standard deviation of the differences. Needs a minute of one core, and no data.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy import stats

from lit_gelu.choose.sequential import log_evidence, seeds_needed, seeds_stated

TRIALS, FIRST = 10_000, 5
DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "normal": lambda g, shape: g.standard_normal(shape),
    "Laplace": lambda g, shape: g.laplace(size=shape) / math.sqrt(2),
    "Student's t, 3 degrees of freedom": lambda g, shape: g.standard_t(3, shape) / math.sqrt(3),
    "exponential less exponential of half the spread": lambda g, shape: (
        ((g.exponential(size=shape) - 1) - (g.exponential(size=shape) - 1) / 2) / math.sqrt(1.25)
    ),
}


def decided_at(differences: np.ndarray) -> np.ndarray:
    """Return after how many seeds each series is decided, 0 if never."""
    when = np.zeros(len(differences), dtype=int)
    for n in range(FIRST, differences.shape[1] + 1):
        some = differences[:, :n]
        squared_t = n * some.mean(1) ** 2 / some.var(1, ddof=1)
        when[(when == 0) & (log_evidence(squared_t, n) >= math.log(20))] = n
    return when


def main() -> None:
    """Simulate, and print a line for each statement."""
    generator = np.random.default_rng(0)
    for name, draw in DISTRIBUTIONS.items():
        wrong = (decided_at(draw(generator, (TRIALS, 101))) > 0).mean()
        print(f"no difference, {name}: decided at any look up to 101 seeds: {100 * wrong:.1f} %")
    for effect, most in ((1.0, 30), (1.0, 20), (0.5, 60)):
        when = decided_at(effect + generator.standard_normal((TRIALS, most)))
        power, seeds = (when > 0).mean(), np.where(when > 0, when, most).mean()
        fixed = next(n for n in range(3, 400) if _power(effect, n) >= power)
        print(
            f"effect {effect}, at most {most} seeds: decided in {100 * power:.1f} %, {seeds:.1f} seeds on average; "
            f"Student's test decides as often with {fixed} seeds; with 20 in {100 * _power(effect, 20):.1f} %"
        )
    for effect in (1.0, 0.5):
        median = np.median(decided_at(effect + generator.standard_normal((TRIALS, 201))))
        print(f"effect {effect}: seeds_needed says {seeds_needed(effect)}; half of the comparisons need {median:.0f}")
        for seen in (5, 10, 15, 20, 30):
            spread = generator.standard_normal((TRIALS, seen)).std(1, ddof=1)
            stated = {part: seeds_stated(effect / part, seen) for part in {round(float(s), 2) for s in spread} if part}
            rows = [stated[round(float(s), 2)] for s in spread]
            near = 1.5 if rows[0][0] == rows[0][1] else 1.0
            right = np.mean([(low or np.inf) / near <= median <= (high or np.inf) * near for low, high in rows])
            kind = "one number, within a factor of 1.5" if near > 1 else "a range that holds the number"
            print(f"effect {effect}, with the spread of {seen} seeds: {kind} in {100 * right:.0f} %")


def _power(effect: float, n: int) -> float:
    """Return how often Student's two-sided test of n differences at 5 % finds an effect."""
    limit = stats.t.ppf(0.975, n - 1)
    return float(
        stats.nct.sf(limit, n - 1, effect * math.sqrt(n)) + stats.nct.cdf(-limit, n - 1, effect * math.sqrt(n))
    )


if __name__ == "__main__":
    main()
