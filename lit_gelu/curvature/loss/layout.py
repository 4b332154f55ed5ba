"""The parameters of a model as one flat vector, and moving a model along such a vector."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from lit_gelu.errors import ArgumentError


class ParameterLayout:
    """Where each parameter lies in a flat vector.

    Frozen parameters have no place in it, and a tensor under two names (tied weights) has one, under its first name.

    Args:
        parameters: The live parameters by name, as ``dict(module.named_parameters())`` gives them.

    Attributes:
        tensors: The live parameters by name, those in the vector only.
        slices: The stretch of the vector that each name has.
        size: Elements of a vector.
        dtype: Of a vector: that of the parameters (the widest, if they differ); float32 if they are 16-bit.
        device: Of a vector: that of the first parameter.

    Raises:
        ArgumentError: If no parameter requires a gradient, or one is complex.

    Example:
        >>> layout = ParameterLayout(dict(torch.nn.Linear(3, 2).named_parameters()))
        >>> layout.size, layout.slices
        (8, {'weight': slice(0, 6, None), 'bias': slice(6, 8, None)})
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.tensors: dict[str, Tensor] = {}
        seen: set[int] = set()
        for name, tensor in parameters.items():
            if tensor.requires_grad and id(tensor) not in seen:
                seen.add(id(tensor))
                self.tensors[name] = tensor
        _check_parameters(parameters, self.tensors)
        self.slices: dict[str, slice] = {}
        self.size = 0
        for name, tensor in self.tensors.items():
            self.slices[name] = slice(self.size, self.size + tensor.numel())
            self.size += tensor.numel()
        self.device = next(iter(self.tensors.values())).device
        self.dtype = torch.float64 if any(t.dtype == torch.float64 for t in self.tensors.values()) else torch.float32

    def flatten(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """Join one tensor a parameter into a vector.

        Args:
            tensors: In the order of the layout, each of its parameter's shape; ``None`` counts as zeros.

        Returns:
            A new vector, shape ``[size]``.
        """
        return torch.cat(self.pieces(tensors))

    def pieces(self, tensors: Sequence[Tensor | None]) -> list[Tensor]:
        """Flatten one tensor a parameter, in the layout's type and on its device; views where these agree."""
        return [
            torch.zeros(parameter.numel(), dtype=self.dtype, device=self.device)
            if tensor is None
            else tensor.reshape(-1)
            if tensor.dtype == self.dtype and tensor.device == self.device and not tensor.is_sparse
            else (tensor.to_dense() if tensor.is_sparse else tensor).reshape(-1).to(self.device, self.dtype)
            for parameter, tensor in zip(self.tensors.values(), tensors, strict=True)
        ]

    def split(self, vector: Tensor) -> list[Tensor]:
        """Cut a vector into tensors with shape, type and device of the parameters; views where these agree."""
        return [
            piece.view(parameter.shape).to(parameter.device, parameter.dtype)
            for parameter, piece in zip(
                self.tensors.values(), vector.split_with_sizes([t.numel() for t in self.tensors.values()]), strict=True
            )
        ]

    def values(self) -> Tensor:
        """Return a copy of the parameters as they are now: a vector, shape ``[size]``."""
        return self.flatten([tensor.detach() for tensor in self.tensors.values()])

    def check(self, vector: Tensor, name: str) -> Tensor:
        """Return a vector in the layout's type, on its device; one of another shape is refused under the name given."""
        if vector.shape != (self.size,):
            raise ArgumentError(
                f"{name} has the shape {tuple(vector.shape)}. Accepted is one flat vector of the {self.size} "
                "parameters that require a gradient; ParameterLayout.flatten makes one."
            )
        return vector.detach().to(self.device, self.dtype)


@contextmanager
def displaced(layout: ParameterLayout) -> Iterator["Displacement"]:
    """Let the live parameters be moved, and put back every bit of them on leaving, also after an exception.

    The parameters' version counters stay as they are, so that graphs recorded before remain usable.

    Args:
        layout: Says which parameters move.

    Yields:
        What moves them.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        >>> with displaced(ParameterLayout({"weight": weight})) as displacement:
        ...     displacement.move(torch.tensor([0.5, 0.0]))
        ...     weight.tolist()
        [1.5, 2.0]
        >>> weight.tolist()
        [1.0, 2.0]
    """
    displacement = Displacement(layout)
    try:
        yield displacement
    finally:
        displacement.restore()


class Displacement:
    """Moves live parameters away from where they were when it was made."""

    def __init__(self, layout: ParameterLayout) -> None:
        self._layout = layout
        self._originals = [tensor.detach().clone() for tensor in layout.tensors.values()]

    def move(self, offset: Tensor, scale: float = 1.0) -> None:
        """Set the parameters to their original values plus ``scale`` times an offset."""
        pieces = offset.detach().split_with_sizes([tensor.numel() for tensor in self._originals])
        for live, original, piece in zip(self._layout.tensors.values(), self._originals, pieces, strict=True):
            # The sum is rounded once, to the type of the parameter, and no other tensor is made for it.
            torch.add(original, piece.view(original.shape).to(original.device), alpha=scale, out=live.data)
        _forget_casts()

    def restore(self) -> None:
        """Put the original values back, bit by bit."""
        for live, original in zip(self._layout.tensors.values(), self._originals, strict=True):
            live.data.copy_(original)  # by .data, as above: a version counter that moves spoils graphs recorded before
        _forget_casts()


def module_layout(slices: Mapping[str, slice]) -> dict[str, tuple[slice, ...]]:
    """Join the parameters of each module, so that a trace is reported by layer.

    Args:
        slices: By parameter name, as `ParameterLayout.slices` and ``operator.layout`` are.

    Returns:
        By module name (the parameter name up to its last dot): the stretches of its parameters.

    Example:
        >>> module_layout({"0.weight": slice(0, 6), "0.bias": slice(6, 8), "scale": slice(8, 9)})
        {'0': (slice(0, 6, None), slice(6, 8, None)), '': (slice(8, 9, None),)}
    """
    modules: dict[str, tuple[slice, ...]] = {}
    for name, stretch in slices.items():
        module = name.rpartition(".")[0]
        modules[module] = (*modules.get(module, ()), stretch)
    return modules


def _check_parameters(parameters: Mapping[str, Tensor], used: Mapping[str, Tensor]) -> None:
    """Refuse parameters that cannot form one flat vector of real numbers."""
    if not used:
        raise ArgumentError(
            f"None of the {len(parameters)} parameters requires a gradient, so the loss has no curvature along them. "
            "Give the parameters that are trained, e.g. dict(module.named_parameters())."
        )
    for name, tensor in used.items():
        if not tensor.is_floating_point():
            raise ArgumentError(
                f"Parameter {name!r} is {tensor.dtype}. Accepted are real floating-point parameters; leave it out."
            )
        if hasattr(tensor, "device_mesh"):
            raise ArgumentError(
                f"Parameter {name!r} is sharded over devices (DTensor), so no rank has the whole vector. Gather the "
                "parameters first, or measure on one device."
            )


def _forget_casts() -> None:
    """Drop the 16-bit copies of the parameters that autocast keeps: they are of values that are no longer there."""
    torch.clear_autocast_cache()
