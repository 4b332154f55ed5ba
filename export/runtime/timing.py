"""Timing several ways to compute the same, side by side."""

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

IN_A_ROW = 20  # calls without a wait between them: what a device takes for one, where Python takes longer to start it


@dataclass(frozen=True)
class Latency:
    """The times of one call, in seconds."""

    calls: int  # how many were measured
    mean: float
    p50: float  # the median
    p90: float  # nine of ten are at most this
    p99: float  # with fewer than a hundred calls it lies between the two longest


def latency(samples: Sequence[float]) -> Latency:
    """Return percentiles of seconds, linear between neighbours."""
    p50, p90, p99 = (float(value) for value in np.percentile(samples, [50, 90, 99]))
    return Latency(len(samples), statistics.fmean(samples), p50, p90, p99)


def ratio(samples: Mapping[str, Sequence[float]], of: str, to: str) -> float:
    """Return how long one way takes beside another: the median of the rounds' ratios."""
    # A slow spell of the machine, which meets both in the same rounds, shifts it less than a ratio of medians.
    return statistics.median(a / b for a, b in zip(samples[of], samples[to], strict=True))


def interleaved(
    calls: Mapping[str, Callable[[], Any]],
    device: torch.device,
    *,
    seconds: float,
    rounds: tuple[int, int] = (5, 1000),
    warm_up: int = 3,
    in_a_row: int = 1,
) -> dict[str, list[float]]:
    """Time calls in rounds, each of which runs all of them, in shuffled order; return seconds, one a round."""
    # On CUDA, times are between two events on the current stream; else of the wall clock. After `seconds` no round
    # begins; there are at least and at most as many as `rounds` says. Calls `in_a_row` do not wait for each other.
    for call in calls.values():
        for _ in range(warm_up):
            call()
    timed = _timed_cuda if device.type == "cuda" else _timed
    order, names = random.Random(0), list(calls)  # noqa: S311 - the order of measurements is no secret
    samples: dict[str, list[float]] = {name: [] for name in names}
    end = time.perf_counter() + seconds
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        for done in range(rounds[1]):
            if done >= rounds[0] and time.perf_counter() > end:
                break
            order.shuffle(names)
            for name in names:
                samples[name].append(timed(calls[name], in_a_row) / in_a_row)
    return samples


def _timed(call: Callable[[], Any], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - start


def _timed_cuda(call: Callable[[], Any], count: int) -> float:
    """Return seconds between two events, the device being idle before."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000
