"""Timing several ways to compute the same, side by side, and what their outputs differ by."""

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lit_gelu.export.inputs import named_outputs


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
) -> dict[str, list[float]]:
    """Time calls in rounds, each of which runs all of them, in shuffled order; return seconds, one a round."""
    # On CUDA, times are between two events on the current stream; else of the wall clock. After `seconds` no round
    # begins; there are at least and at most as many as `rounds` says.
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
                samples[name].append(timed(calls[name]))
    return samples


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _timed_cuda(call: Callable[[], Any]) -> float:
    """Return seconds between two events, the device being idle before."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


def relative_error(outputs: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> float:
    """Return the largest error, each output's as a share of its largest reference value; infinite for a lost value."""
    if len(outputs) != len(reference):
        return float("inf")
    largest = 0.0
    for y, exact in zip(outputs, reference, strict=True):
        finite = np.isfinite(exact)
        if y.shape != exact.shape or not np.array_equal(y[~finite], exact[~finite], equal_nan=True):
            return float("inf")
        if not np.isfinite(y[finite]).all():
            return float("inf")
        if finite.any():
            scale = float(np.abs(exact[finite]).max()) or 1.0
            largest = max(largest, float(np.abs(y[finite] - exact[finite]).max()) / scale)
    return largest


def arrays_of(outputs: Any) -> list[np.ndarray]:
    """Return a tensor, or several in a sequence or mapping, as arrays in float64."""
    return [output.detach().double().cpu().numpy() for _, output in named_outputs(outputs)]
