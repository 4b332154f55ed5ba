"""Steps of all members that run on a device without a look from the host: one by one, or as a CUDA graph."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from lit_gelu.replicas.alike import registry_of
from lit_gelu.replicas.device_adam import DeviceAdam
from lit_gelu.replicas.errors import ReplicaArgumentError
from lit_gelu.replicas.fused_forward import FusedForward
from lit_gelu.replicas.kernel_steps import KernelStep, fits
from lit_gelu.replicas.repeated_steps import WARM_UP, RepeatedStep
from lit_gelu.replicas.stacked_forward import StackedForward, leaves_of
from lit_gelu.tasks.keyed_dropout import KeyedDropout
from lit_gelu.tasks.noise import adds_noise


class Capturing(Protocol):
    """What captures CUDA graphs: `torch.cuda`, or what stands for it in tests."""

    def Stream(self) -> torch.cuda.Stream: ...  # noqa: D102, N802 - torch's names
    def stream(self, stream: torch.cuda.Stream | None) -> torch.cuda.StreamContext: ...  # noqa: D102
    def current_stream(self) -> torch.cuda.Stream: ...  # noqa: D102
    def CUDAGraph(self) -> torch.cuda.CUDAGraph: ...  # noqa: D102, N802
    def graph(self, cuda_graph: torch.cuda.CUDAGraph) -> torch.cuda.graph: ...  # noqa: D102


def captured(step: RepeatedStep, cuda: Capturing | None = None) -> Callable[[], None]:
    """Return a CUDA graph's replay in the place of a step; all tensors are as before afterwards.

    Args:
        step: It, with `RepeatedStep.start` called.
        cuda: What captures it; ``None`` means `torch.cuda`.
    """
    cuda = torch.cuda if cuda is None else cuda
    tensors = step.state_tensors
    before = [tensor.clone() for tensor in tensors]
    side = cuda.Stream()
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    cuda.current_stream().wait_stream(side)
    for tensor, value in zip(tensors, before, strict=True):
        tensor.copy_(value)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        step()
    return graph.replay


class DeviceSteps:
    """Makes steps by one `RepeatedStep`, which is captured where that is asked for.

    Args:
        forward: The members' forward pass.
        adam: Their optimizer.
        logs_noise_free: Whether each one's loss is to be logged with noise off.
        capture: Whether the step is to be a CUDA graph.
    """

    def __init__(
        self, forward: StackedForward, adam: DeviceAdam, logs_noise_free: Sequence[bool], capture: bool
    ) -> None:
        self.forward, self.adam, self.logs_noise_free, self.capture = forward, adam, logs_noise_free, capture
        self.fused = FusedForward.of(forward, torch.tensor(list(logs_noise_free), device=adam.device))
        self._step: RepeatedStep | None = None
        self._run: Callable[[], None] | None = None
        self._places: list[int] = []
        self._samples: tuple[Tensor, Tensor] | None = None

    def make_of(self, inputs: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """Make the steps for samples, of which ``rows``, ``[steps, replicas, batch]``, says whose they are.

        Returns:
            The losses that the runs alone log, ``[steps, replicas]``, on the CPU: it waits for the device once.
        """
        step = self._step_for(inputs, labels, rows)
        step.start(rows)
        places = [tensor.data_ptr() for tensor in step.state_tensors]
        if self._run is None or places != self._places:  # a graph writes to where tensors were when it was captured
            self._run, self._places = captured(step) if self.capture else step, places
        for _ in range(len(rows)):
            self._run()
        step.end(len(rows))
        return step.losses[: len(rows)].to("cpu", copy=True)

    def _step_for(self, inputs: Tensor, labels: Tensor, rows: Tensor) -> RepeatedStep:
        """Return the step for these samples: the present one if it is for them, and for so many steps."""
        known = self._samples is not None and self._samples[0] is inputs and self._samples[1] is labels
        step = self._step
        if step is None or not known or len(rows) > len(step.rows) or rows.shape[1:] != step.rows.shape[1:]:
            given = self.forward, self.adam, self.logs_noise_free, inputs, labels, (len(rows), *rows.shape[1:])
            fused = self.fused
            if fused is not None and fits(fused, inputs):
                step = KernelStep(*given, fused)
            else:
                step = RepeatedStep(*given, fused)
            self._step = step
            self._samples, self._run = (inputs, labels), None
        return step


def check_for_devices(modules: Sequence[nn.Module], asked: str) -> None:
    """Refuse members whose steps a device cannot make as each alone.

    Raises:
        ReplicaArgumentError: If their nets are not known, or draw random numbers that have no keys.
    """
    for module in modules:
        leaves = leaves_of(module)
        if leaves is None:
            raise ReplicaArgumentError(
                f"executor={asked!r} does not know the forward pass of {type(module).__name__}. Give the group "
                '"auto", on a CPU.'
            )
        for path, leaf in leaves:
            if type(leaf) is not KeyedDropout and adds_noise(leaf, registry_of(module)):
                raise ReplicaArgumentError(
                    f"executor={asked!r}: {path} ({type(leaf).__name__}) draws from torch's generator, whose numbers "
                    'on a GPU no group can have. Give the members noise="keys", and no stochastic activation.'
                )
