"""What is added up of classifiers under noise: wrong classes and cross-entropies, of each or of all at once."""

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_gelu.tasks.errors import TaskInputError

Shape = tuple[int, int, int]  # modules, levels, draws


class SumsOfEach:
    """The sums of modules that are called one by one; they are on their devices, which are not waited for.

    Args:
        modules: They.
        shape: How many there are of what.
    """

    def __init__(self, modules: Sequence[nn.Module], shape: Shape) -> None:
        self.modules = modules
        self.places = [device_of(module) for module in modules]
        self.devices = set(self.places)
        self.sums = [torch.zeros(*shape[1:], 2, dtype=torch.float64, device=device) for device in self.places]
        self.generators = [_states(device) for device in self.places]

    def add(self, place: tuple[int, ...], inputs: Tensor, labels: Tensor) -> None:
        """Add what a batch gives; a module that draws has the numbers that it would have if it were the only one."""
        reach = int(labels.min()), int(labels.max())
        moved = {device: (inputs.to(device), labels.to(device)) for device in self.devices}
        for number, (module, device) in enumerate(zip(self.modules, self.places, strict=True)):
            before = _states(device)
            _set_states(device, self.generators[number])
            logits = module(_as_floats_of(module, moved[device][0]))
            self.generators[number] = _states(device)
            _set_states(device, before)
            _check(logits, type(module).__name__, labels, reach)
            wrong = (logits.argmax(dim=1) != moved[device][1]).sum().double()
            loss = functional.cross_entropy(logits.double(), moved[device][1], reduction="sum")
            self.sums[number][place] += torch.stack([wrong, loss])

    def found(self) -> np.ndarray:
        """Return the sums, ``[modules, levels, draws, 2]``."""
        return np.stack([sums.cpu().numpy() for sums in self.sums])


class SumsTogether:
    """The sums of modules whose outputs come at once.

    Args:
        outputs_of: Gives logits ``[modules, batch, classes]`` of inputs.
        device: Where it computes.
        shape: How many there are of what.
    """

    def __init__(self, outputs_of: Callable[[Tensor], Tensor], device: torch.device, shape: Shape) -> None:
        self.outputs_of, self.devices = outputs_of, {device}
        self.device = device
        modules, levels, draws = shape
        self.sums = torch.zeros(levels, draws, modules, 2, dtype=torch.float64, device=device)

    def add(self, place: tuple[int, ...], inputs: Tensor, labels: Tensor) -> None:
        """Add what a batch gives."""
        reach = int(labels.min()), int(labels.max())
        logits, labels = self.outputs_of(inputs.to(self.device)), labels.to(self.device)
        _check(logits[0], "A group's net", labels, reach)
        shared = labels.expand(len(logits), -1)
        losses = functional.cross_entropy(logits.flatten(0, 1).double(), shared.flatten(), reduction="none")
        wrong = (logits.argmax(dim=2) != shared).sum(1).double()
        self.sums[place] += torch.stack([wrong, losses.view(shared.shape).sum(1)], dim=1)

    def found(self) -> np.ndarray:
        """Return the sums, ``[modules, levels, draws, 2]``."""
        return np.moveaxis(self.sums.cpu().numpy(), 2, 0)


def _as_floats_of(module: nn.Module, inputs: Tensor) -> Tensor:
    """Return inputs in the dtype of a module's parameters, which is bfloat16 after bf16-true."""
    dtypes = (parameter.dtype for parameter in module.parameters() if parameter.is_floating_point())
    return inputs.to(next(dtypes, inputs.dtype)) if inputs.is_floating_point() else inputs


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's first parameter or buffer; without any, the CPU."""
    return next((tensor.device for tensor in chain(module.parameters(), module.buffers())), torch.device("cpu"))


def _check(logits: object, name: str, labels: Tensor, reach: tuple[int, int]) -> None:
    """Refuse what are no logits for labels from ``reach[0]`` to ``reach[1]``."""
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(labels):
        given = f"shape {list(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise TaskInputError(
            f"{name} gives {given} for {len(labels)} samples; accepted: logits, [batch, classes]. Give a classifier."
        )
    if reach[0] < 0 or reach[1] >= logits.shape[1]:
        raise TaskInputError(
            f"Labels from {reach[0]} to {reach[1]} given for {logits.shape[1]} logits; accepted: 0 "
            f"to {logits.shape[1] - 1}. Give data of the classes that the module was trained on."
        )


def _states(device: torch.device) -> list[Tensor]:
    """Return the states of the global generators that a module on a device draws from."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _set_states(device: torch.device, states: Sequence[Tensor]) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.cuda.set_rng_state(state, device)
