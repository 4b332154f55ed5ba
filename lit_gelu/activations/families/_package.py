"""What the rows of this package share."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import nn

from lit_gelu.activations.naming.forms import ReadAttributes

HENDRYCKS_2016 = "Hendrycks and Gimpel 2016, Gaussian Error Linear Units (arXiv 1606.08415)"

NO_ARGUMENTS = ReadAttributes(())
INPLACE = ReadAttributes(("inplace",))


class Composed(NamedTuple):
    """What takes the place of functions of torch whose double backward is wrong."""

    node: str  # how the names of their nodes in autograd's graph begin
    # By each function of torch one of the same arguments, composed of others.
    functions: Mapping[Callable[..., Any], Callable[..., Any]]
    note: str  # what to tell a user of it


def channel_arguments(module: Any) -> dict[str, Any]:
    """Return the arguments that build a `ChannelModule` again."""
    arguments: dict[str, Any] = module.arguments
    return arguments


def live_channels(module: nn.Module) -> dict[str, Any]:
    """Return the functions' argument that says where the channels are, if there are any."""
    return {} if module.channels is None else {"channel_dim": module.channel_dim}
