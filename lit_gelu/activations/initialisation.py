"""The GELU paper's initialisation: the incoming weights of every neuron have Euclidean norm 1.

Source: Hendrycks and Gimpel 2016 (arXiv 1606.08415), section 3.1, "unit norm rows". The authors' code normalises the
columns of an ``[in, out]`` matrix, which are torch's rows.
"""

import torch
from torch import Tensor, nn

from lit_gelu.activations.errors import ActivationArgumentError


def unit_norm_rows_(weight: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Fill a weight with standard normal values and divide each row by its Euclidean norm, in place.

    The rows are those of ``weight.flatten(1)``: all that one neuron, or one filter, multiplies. They are then uniform
    on the unit sphere, and each entry has variance ``1 / fan_in``.

    Args:
        weight: Shape ``(out, in, ...)``, at least two dimensions; floating. 16-bit weights are drawn in float32.
        generator: Where the random numbers come from, on the weight's device; ``None`` is torch's default.

    Returns:
        The weight itself.

    Raises:
        ActivationArgumentError: If the weight has fewer than two dimensions or is not floating.

    Example:
        >>> weight = unit_norm_rows_(torch.empty(128, 784), generator=torch.Generator().manual_seed(0))
        >>> torch.allclose(weight.norm(dim=1), torch.ones(128))
        True
    """
    if weight.dim() < 2 or not weight.is_floating_point():
        raise ActivationArgumentError(
            f"unit_norm_rows_: the weight has shape {tuple(weight.shape)} and dtype {weight.dtype}. It must be "
            "floating, with at least two dimensions, (out, in, ...): leave biases and scales out."
        )
    dtype = torch.promote_types(weight.dtype, torch.float32)
    with torch.no_grad():
        drawn = torch.randn(weight.shape, dtype=dtype, device=weight.device, generator=generator).flatten(1)
        return weight.copy_((drawn / drawn.norm(dim=1, keepdim=True)).view_as(weight))


def init_unit_norm_rows_(module: nn.Module, generator: torch.Generator | None = None) -> nn.Module:
    """Initialise every ``nn.Linear`` of a module as the paper's fully connected nets: unit-norm rows, bias 0.

    The output layer is initialised like the others, as in the authors' code. Other layers are left as they are.

    Args:
        module: Any module; itself counts if it is a linear layer.
        generator: As for `unit_norm_rows_`.

    Returns:
        The module itself.

    Raises:
        ActivationArgumentError: If there is no linear layer in it.

    Example:
        >>> net = init_unit_norm_rows_(nn.Sequential(nn.Linear(784, 128), nn.GELU(), nn.Linear(128, 10)))
        >>> bool((net[2].bias == 0).all())
        True
    """
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    if not layers:
        raise ActivationArgumentError(
            f"init_unit_norm_rows_: {type(module).__name__} has no torch.nn.Linear. Call unit_norm_rows_ on "
            "the weights of other layers."
        )
    for layer in layers:
        unit_norm_rows_(layer.weight, generator)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return module
