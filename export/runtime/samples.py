"""Inputs made up for a file."""

from collections.abc import Mapping

import torch
from torch import Tensor

from lit_gelu.export.errors import ModelInputError
from lit_gelu.export.runtime.ports import Port


def made_inputs(ports: Mapping[str, Port], batch_size: int, seed: int = 0) -> dict[str, Tensor]:
    """Return inputs in a file's shapes: normal numbers, and pixels for ``uint8``.

    Args:
        ports: The file's inputs.
        batch_size: For every size that is not fixed.
        seed: Of the numbers.

    Returns:
        Tensors by name, on the CPU.

    Raises:
        ModelInputError: If an input is of another type: indices, for example, have bounds that the file does not tell.

    Example:
        >>> made_inputs({"x": Port("x", "tensor(float)", ("batch", 2))}, 3)["x"].shape
        torch.Size([3, 2])
    """
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, port in ports.items():
        shape = [size if isinstance(size, int) else batch_size for size in port.shape]
        if port.dtype == torch.uint8:
            made[name] = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        elif port.dtype is not None and port.dtype.is_floating_point:
            made[name] = torch.randn(shape, generator=generator).to(port.dtype)
        else:
            raise ModelInputError(f"Input {name!r} is {port.type_name}: values cannot be made up for it, give inputs.")
    return made
