"""What every adapter gives: a file with inputs and activations that can be run on NumPy arrays."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lit_gelu.errors import AuditError, ModelInputError, message_of

Array = NDArray[Any]

# Operators that are activations, or that an activation written out is made of, as runtimes spell them.
_ACTIVATION = re.compile(
    r"(fast|quick|bias)?gelu|swish|silu|mish|softplus|[esc]?elu|h(ard)?swish|(leaky|p)?relu6?|(h|hard)?sigmoid|logistic|"
    r"tanh|erf|xnnpackbackend"
)
_OPEN = 4096  # what an open size becomes where a function of one array is asked for


def is_activation(operator: str) -> bool:
    """Tell whether a runtime's operator is an activation, or a part of one: `HSwish`, `HARD_SWISH`, `aten::gelu`."""
    return bool(_ACTIVATION.fullmatch(re.sub(r"[^a-z0-9]", "", operator.rpartition("::")[2].lower())))


@dataclass(frozen=True)
class InputPort:
    """An input of a file."""

    name: str
    shape: tuple[int | None, ...] | None  # None for a size that is open, or as a whole if the format does not say
    dtype: str  # as NumPy names it


@dataclass(frozen=True)
class RuntimeFile:
    """A model file, opened in its runtime. `open_runtime_file` makes it."""

    path: Path
    runtime: str  # with its version, such as "openvino 2026.4.1"
    inputs: tuple[InputPort, ...]
    execute: Callable[[Sequence[Array]], list[Array]]  # as the runtime runs it
    list_activations: Callable[[], list[tuple[str, str]]]

    @cached_property
    def activations(self) -> list[tuple[str, str]]:
        """The activations that the file names: a node's name, and its operator with what the file says of it."""
        return self.list_activations()

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """Run the file.

        Args:
            arrays: One for each of ``inputs``, in order.

        Returns:
            Its outputs, in order.

        Raises:
            ModelInputError: If there are more or fewer arrays than inputs, or the runtime does not take them.
        """
        reason = f"it has {len(self.inputs)} inputs"
        try:
            if len(arrays) == len(self.inputs):
                return self.execute(arrays)
        except Exception as error:  # noqa: BLE001 - each runtime has errors of its own, told below
            reason = message_of(error)
        shapes = ", ".join(f"{array.dtype} {array.shape}" for array in arrays)
        accepted = ", ".join(f"{port.name} {port.dtype} {port.shape}" for port in self.inputs)
        raise ModelInputError(f"{self.runtime} does not run {self.path.name} on {shapes}: {reason}. Give {accepted}.")

    def function(self) -> Callable[[Array], Array]:
        """Return a file of one input and one activation as `identify` takes it: a function of arrays of any size.

        Raises:
            AuditError: If it has several inputs.
        """
        if len(self.inputs) != 1:
            raise AuditError(f"{self.path.name} has {len(self.inputs)} inputs. Give a file of one activation.")
        shape = self.inputs[0].shape or (None,)
        sizes = [size or 1 for size in shape]
        if None in shape:
            sizes[shape.index(None)] = _OPEN
        count = math.prod(sizes)

        def elementwise(x: Array) -> Array:
            padded = np.resize(x, -(-max(x.size, 1) // count) * count).reshape(-1, *sizes)
            return np.concatenate([self.run([part])[0].reshape(-1) for part in padded])[: x.size].reshape(x.shape)

        return elementwise

    def __str__(self) -> str:
        """Return the file, its runtime and its activations, one a line."""
        lines = [f"{name or '-'}: {operator}" for name, operator in self.activations] or ["no activation is named"]
        return "\n".join([f"{self.path.name}, {self.runtime}", *lines])
