"""The ways to compute a model's outputs that `bench` compares."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from lit_gelu.export.runtime.ports import Port, bind_names
from lit_gelu.export.runtime.predictor import OnnxPredictor
from lit_gelu.surgery.recognition import faithful_copy

EAGER = "torch eager"

Call = Callable[[Mapping[str, Tensor]], Any]


@dataclass(frozen=True)
class Variant:
    """One way to compute the outputs.

    Args:
        name: How to call it.
        call: From inputs by name to the outputs.
    """

    name: str
    call: Call


def torch_variants(
    model: nn.Module, predictor: OnnxPredictor, *, compiled: bool, channels_last: bool, backend: str
) -> list[Variant]:
    """Return the ways in which PyTorch runs a module, in evaluation mode, on the predictor's device.

    Args:
        model: The module; it is copied.
        predictor: Of the file: its device, and the dtype of its inputs.
        compiled: Whether torch.compile is one.
        channels_last: Whether that memory format is one.
        backend: Of torch.compile.

    Returns:
        Eager PyTorch first.
    """
    dtypes = [
        port.dtype for port in predictor.ports.values() if port.dtype is not None and port.dtype.is_floating_point
    ]
    twin = faithful_copy(getattr(model, "_orig_mod", model)).eval().to(predictor.device, dtypes[0] if dtypes else None)
    variants = [Variant(EAGER, lambda values: twin(*values.values()))]
    if channels_last:
        other: nn.Module = faithful_copy(twin).to(memory_format=torch.channels_last)
        variants.append(Variant("torch channels_last", lambda values: other(*map(_channels_last, values.values()))))
    if compiled:
        fast: Any = torch.compile(faithful_copy(twin), backend=backend, dynamic=False)
        variants.append(Variant("torch.compile", lambda values: fast(*values.values())))
    return variants


def float64_outputs(model: nn.Module, values: Mapping[str, Tensor]) -> list[np.ndarray]:
    """Return a module's outputs in float64, where its inputs lie.

    Args:
        model: The module; it is copied.
        values: Its inputs, in order.

    Returns:
        The outputs.
    """
    device = next(iter(values.values())).device
    twin = faithful_copy(getattr(model, "_orig_mod", model)).eval().to(device).double()
    return arrays_of(twin(*(value.double() if value.is_floating_point() else value for value in values.values())))


def resized(inputs: Mapping[str, Tensor], ports: Mapping[str, Port], size: int) -> dict[str, Tensor]:
    """Return inputs of a batch size, their rows cut or repeated.

    Args:
        inputs: Tensors by name.
        ports: The file's inputs; those without a batch stay.
        size: The batch size.

    Returns:
        Tensors by name.

    Example:
        >>> ports = {"x": Port("x", "tensor(float)", ("batch",))}
        >>> resized({"x": torch.tensor([1.0, 2.0])}, ports, 3)["x"]
        tensor([1., 2., 1.])
    """
    given = cast("dict[str, Tensor]", bind_names(list(ports), (), inputs))
    batched = {name: bool(port.shape) and not isinstance(port.shape[0], int) for name, port in ports.items()}
    return {
        name: value[torch.arange(size, device=value.device) % value.shape[0]] if batched[name] else value
        for name, value in given.items()
    }


def _channels_last(value: Tensor) -> Tensor:
    return value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value


def arrays_of(outputs: Any) -> list[np.ndarray]:
    """Return outputs in float64.

    Args:
        outputs: A tensor, a tuple or list of them, or a mapping of them.

    Returns:
        Arrays.
    """
    several = outputs.values() if isinstance(outputs, Mapping) else outputs
    listed = list(several) if isinstance(outputs, (Mapping, tuple, list)) else [outputs]
    return [output.double().cpu().numpy() for output in listed]
