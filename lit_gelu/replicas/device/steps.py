"""Steps of all members that run on a device without a look from the host: one by one, or as CUDA graphs."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lit_gelu.replicas.device.adam import DeviceAdam
from lit_gelu.replicas.device.beside_steps import BesideSteps
from lit_gelu.replicas.device.captured_steps import captured
from lit_gelu.replicas.device.fused_forward import FusedForward
from lit_gelu.replicas.device.kernel_steps import KernelStep, fits
from lit_gelu.replicas.device.repeated_steps import RepeatedStep
from lit_gelu.replicas.errors import ReplicaArgumentError
from lit_gelu.replicas.forward.stacked_forward import StackedForward, leaves_of
from lit_gelu.replicas.membership.alike import registry_of
from lit_gelu.tasks.keyed_dropout import KeyedDropout
from lit_gelu.tasks.noise import adds_noise


class DeviceSteps:
    """Makes steps by one `RepeatedStep`, which is captured where that is asked for.

    Args:
        forward: The members' forward pass.
        adam: Their optimizer.
        logs_noise_free: Whether each one's loss is to be logged with noise off.
        capture: Whether steps are to be CUDA graphs.
    """

    def __init__(
        self, forward: StackedForward, adam: DeviceAdam, logs_noise_free: Sequence[bool], capture: bool
    ) -> None:
        self.forward, self.adam, self.logs_noise_free, self.capture = forward, adam, logs_noise_free, capture
        self.fused = FusedForward.of(forward, torch.tensor(list(logs_noise_free), device=adam.device))
        self.beside = None if self.fused is None else BesideSteps(self.fused)
        self._step: RepeatedStep | None = None
        self._run: Callable[[int], None] | None = None
        self._places: list[int] = []
        self._samples: tuple[Tensor, Tensor] | None = None

    def make_of(self, inputs: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """Make the steps for samples, of which ``rows``, ``[steps, replicas, batch]``, says whose they are.

        Returns:
            The losses that the runs alone log, ``[steps, replicas]``, on the device: nothing waits for it.
        """
        step = self._step_for(inputs, labels, rows)
        step.start(rows)
        places = [tensor.data_ptr() for tensor in step.state_tensors]
        if self._run is None or places != self._places:  # a graph writes to where tensors were when it was captured
            self._run, self._places = captured(step) if self.capture else step.several, places
        try:
            self._run(len(rows))
        finally:
            step.put_back()
        step.end(len(rows))
        return step.losses[: len(rows)].clone()

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
