"""Steps of a group as CUDA graphs."""

from collections.abc import Callable
from typing import Protocol

import torch

from lit_gelu.replicas.device.repeated_steps import WARM_UP, RepeatedStep

_ROUNDS, _GRAPHS = 3, 4  # in which a way to divide members is timed, the least of which counts, and graphs in each
_LONG = 2.0  # milliseconds of a step whose kernels fill the device by themselves


class Capturing(Protocol):
    """What captures CUDA graphs: `torch.cuda`, or what stands for it in tests."""

    def Stream(self) -> torch.cuda.Stream: ...  # noqa: D102, N802 - torch's names
    def stream(self, stream: torch.cuda.Stream | None) -> torch.cuda.StreamContext: ...  # noqa: D102
    def current_stream(self) -> torch.cuda.Stream: ...  # noqa: D102
    def CUDAGraph(self) -> torch.cuda.CUDAGraph: ...  # noqa: D102, N802
    def graph(self, cuda_graph: torch.cuda.CUDAGraph) -> torch.cuda.graph: ...  # noqa: D102
    def Event(self, enable_timing: bool) -> torch.cuda.Event: ...  # noqa: D102, N802


class CapturedSteps:
    """A `RepeatedStep` as CUDA graphs: one of several steps, where it says so, and one of a single step.

    Args:
        step: It, with `RepeatedStep.start` called.
        way: How its members are divided.
        cuda: What captures.
    """

    def __init__(self, step: RepeatedStep, way: int, cuda: Capturing) -> None:
        self.step, self.way = step, way
        step.divide(way)
        step.place.zero_()  # tables have no more steps than there may be
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(WARM_UP):
                step()
        cuda.current_stream().wait_stream(side)
        self.graphs = {count: _graph(step, count, cuda) for count in sorted({step.together, 1}, reverse=True)}

    def __call__(self, steps: int) -> None:
        """Make so many steps."""
        for count, graph in self.graphs.items():
            for _ in range(steps // count):
                graph.replay()
            steps %= count

    def milliseconds(self, cuda: Capturing) -> float:
        """Return the time of the larger graph behind another, while the host starts the next one."""
        spans: list[float] = []
        for _ in range(1 + _ROUNDS):  # the first one brings the graph to the device
            begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(_GRAPHS):
                self.step.place.zero_()
                self(self.step.together)
            end.record()
            end.synchronize()
            spans.append(begin.elapsed_time(end) / _GRAPHS)
        return min(spans[1:])


def captured(step: RepeatedStep, cuda: Capturing | None = None) -> Callable[[int], None]:
    """Return what makes so many steps by CUDA graphs; all tensors are as before afterwards.

    Where members can be divided in several ways, each is captured and timed, and the fastest is taken: a step has the
    same bits by any. Where the first one's steps are long, no other is tried.

    Args:
        step: It, with `RepeatedStep.start` called.
        cuda: What captures; ``None`` means `torch.cuda`.
    """
    cuda = torch.cuda if cuda is None else cuda
    tensors = step.state_tensors
    before = [tensor.clone() for tensor in tensors]
    best = _fastest(step, cuda)
    step.divide(best.way)
    for tensor, value in zip(tensors, before, strict=True):
        tensor.copy_(value)
    return best


def _fastest(step: RepeatedStep, cuda: Capturing) -> CapturedSteps:
    """Capture a step divided in one way after the other, and return the graphs that take the least time."""
    best = CapturedSteps(step, step.ways[0], cuda)
    others = step.ways[1:]
    least = best.milliseconds(cuda) if others else 0.0
    for way in others if least < _LONG * step.together else ():
        tried = CapturedSteps(step, way, cuda)
        if (taken := tried.milliseconds(cuda)) < least:
            best, least = tried, taken
    return best


def _graph(step: RepeatedStep, count: int, cuda: Capturing) -> torch.cuda.CUDAGraph:
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        step.several(count)
    return graph
