"""A test of paired differences that may be looked at after every seed, and what it says of the seeds to come.

Of ``n`` differences with mean ``m`` and standard deviation ``s``, ``t = sqrt(n) m / s``. The evidence against a mean of
0 is a ratio of likelihoods. Against it stand effects ``d``, in units of the standard deviation, with the density
``d^2 / v`` times that of ``N(0, v)``, ``v = 1/4``, most of all those near .7 and -.7 (a moment prior: Johnson and
Rossell 2010, On the use of non-local prior densities in Bayesian hypothesis tests); the standard deviation has the
right Haar measure on both sides::

    E = r^(-3/2) ((1 + x) / (1 + x / r))^(n / 2) (1 + (r - 1) n x / (r + x)),    x = t^2 / (n - 1),  r = 1 + n v

If the differences are normal with mean 0, E is 1 on average at whatever seed one stops, and by Ville's inequality it
ever reaches 20 in at most one of twenty series (Perez-Ortiz, Lardy, de Heide and Grunwald 2024, E-statistics, group
invariance and anytime-valid testing, arXiv 2208.07610). So ``p = 1 / E`` may be looked at after every seed.
"""

import math

import numpy as np

from lit_gelu.choose.statistics import ALPHA, FEWEST_SEEDS, is_constant

_VARIANCE = 0.25  # v
_FUTURES = 2000  # enough to tell a chance of 5 % from one of 7 %
_MOST_SEEDS = 10_000
_BY_CHANCE = 3.0
_PRECISE = 30  # differences, whose spread tells the number of seeds to within a factor of 1.5


def log_evidence(squared_t: np.ndarray | float, n: int) -> np.ndarray:
    """Return ``log E`` of n differences.

    Example:
        >>> round(float(np.exp(log_evidence(3.0**2, 10))), 2)
        9.12
    """
    x, r = np.asarray(squared_t) / (n - 1), 1 + n * _VARIANCE
    ratio = np.log1p(x) - np.log1p(x / r)
    return -1.5 * math.log(r) + n / 2 * ratio + np.log1p((r - 1) * n * x / (r + x))


def sequential_test(differences: np.ndarray, rounding: float = 0.0) -> tuple[float, float, float]:
    """Return ``p``, and the ends of the interval of those means that have a ``p`` above 5 %: at few seeds, all."""
    n, mean = len(differences), float(differences.mean())
    if (constant := is_constant(differences, rounding)) is not None:
        return constant
    scale = float(differences.std(ddof=1)) / math.sqrt(n)
    p = math.exp(-max(0.0, float(log_evidence((mean / scale) ** 2, n))))
    critical = _critical_t(n, ALPHA) * scale
    return p, mean - critical, mean + critical


def _critical_t(n: int, alpha: float) -> float:
    """Return the t from which on the evidence of n differences is enough, infinity if none is."""
    from scipy.optimize import brentq  # half a second

    def lacking(log_t: float) -> float:
        return float(log_evidence(math.exp(2 * log_t), n)) + math.log(alpha)

    return math.exp(brentq(lacking, -20.0, 40.0)) if lacking(40.0) > 0 else math.inf


def seeds_needed(effect: float, alpha: float = ALPHA) -> int | None:
    """Return by how many seeds an effect, in units of the standard deviation, is decided in half of the cases.

    A series is decided at the first look that suffices, mostly one at which chance is on its side: ``t^2`` is taken as
    ``n effect^2 + 3``, by which half of simulated series are decided to within a tenth (``benchmarks/seeds.py``).
    ``None`` if 10,000 are too few.

    Example:
        >>> seeds_needed(1.0), seeds_needed(0.5)
        (11, 29)
    """
    low, high = FEWEST_SEEDS - 1, _MOST_SEEDS

    def is_enough(n: int) -> bool:
        return float(log_evidence(n * effect**2 + _BY_CHANCE, n)) >= -math.log(alpha)

    if not is_enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def seeds_stated(effect: float, n: int, alpha: float = ALPHA) -> tuple[int | None, int | None]:
    """Return the ends of `seeds_needed` in four of five cases, by the spread of n differences; of 30 on, itself."""
    from scipy import stats  # half a second

    parts = np.sqrt(stats.chi2.ppf([0.9, 0.1], n - 1) / (n - 1)) if n < _PRECISE else (1.0, 1.0)  # of the true spread
    fewest, most = (seeds_needed(effect * part, alpha) for part in parts)
    return fewest, most


def chance_of_decision(differences: np.ndarray, most: int, alpha: float = ALPHA) -> float:
    """Return how often seeds up to ``most`` decide, by what is known of mean and spread now.

    Mean and spread are drawn from their posterior without a prior opinion, and series of further differences from each.
    """
    n = len(differences)
    if np.ptp(differences) == 0:  # the signs of a few more decide
        return float(differences[0] != 0)
    generator = np.random.default_rng(0)
    spread = differences.std(ddof=1) * np.sqrt((n - 1) / generator.chisquare(n - 1, _FUTURES))
    mean = differences.mean() + spread / math.sqrt(n) * generator.standard_normal(_FUTURES)
    total = np.full(_FUTURES, differences.sum())
    squares = np.full(_FUTURES, (differences**2).sum())
    decided = np.zeros(_FUTURES, dtype=bool)
    for count in range(n + 1, most + 1):
        further = mean + spread * generator.standard_normal(_FUTURES)
        total += further
        squares += further**2
        variance = (squares - total**2 / count) / (count - 1)
        decided |= log_evidence(total**2 / count / variance, count) >= -math.log(alpha)
    return float(decided.mean())
