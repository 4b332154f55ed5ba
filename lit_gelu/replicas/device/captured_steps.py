"""Steps of a group as CUDA graphs."""

from collections.abc import Callable
from typing import Protocol

import torch

from lit_gelu.replicas.device.repeated_steps import WARM_UP, RepeatedStep


class Capturing(Protocol):
    """What captures CUDA graphs: `torch.cuda`, or what stands for it in tests."""

    def Stream(self) -> torch.cuda.Stream: ...  # noqa: D102, N802 - torch's names
    def stream(self, stream: torch.cuda.Stream | None) -> torch.cuda.StreamContext: ...  # noqa: D102
    def current_stream(self) -> torch.cuda.Stream: ...  # noqa: D102
    def CUDAGraph(self) -> torch.cuda.CUDAGraph: ...  # noqa: D102, N802
    def graph(self, cuda_graph: torch.cuda.CUDAGraph) -> torch.cuda.graph: ...  # noqa: D102


class CapturedSteps:
    """A `RepeatedStep` as CUDA graphs: one of several steps, where it says so, and one of a single step.

    Args:
        step: It, with `RepeatedStep.start` called.
        cuda: What captures.
    """

    def __init__(self, step: RepeatedStep, cuda: Capturing) -> None:
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


def captured(step: RepeatedStep, cuda: Capturing | None = None) -> Callable[[int], None]:
    """Return what makes so many steps by CUDA graphs; all tensors are as before afterwards.

    Args:
        step: It, with `RepeatedStep.start` called.
        cuda: What captures; ``None`` means `torch.cuda`.
    """
    tensors = step.state_tensors
    before = [tensor.clone() for tensor in tensors]
    made = CapturedSteps(step, torch.cuda if cuda is None else cuda)
    for tensor, value in zip(tensors, before, strict=True):
        tensor.copy_(value)
    return made


def _graph(step: RepeatedStep, count: int, cuda: Capturing) -> torch.cuda.CUDAGraph:
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        step.several(count)
    return graph
