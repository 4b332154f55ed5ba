"""What is in the graph that autograd recorded."""

from collections.abc import Iterator

from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node


def nodes_of(*tensors: Tensor | None) -> Iterator[Node]:
    """Walk the graph that computed some tensors.

    Args:
        *tensors: With their graphs; ``None`` has none.

    Yields:
        Every node, once.
    """
    pending = [None if tensor is None else tensor.grad_fn for tensor in tensors]
    seen: set[Node] = set()
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            pending.extend(following for following, _ in node.next_functions)
            yield node


def has_custom_function(*tensors: Tensor | None) -> bool:
    """Return whether a function whose pass back is written in Python computed some tensors.

    Such a pass back may compute its result out of sight of autograd; then a second derivative lacks its share, and
    nothing says so.

    Args:
        *tensors: With their graphs; ``None`` has none.

    Returns:
        Whether there is one.
    """
    return any(isinstance(node, BackwardCFunction) for node in nodes_of(*tensors))


def check_differentiable(*tensors: Tensor | None) -> None:
    """Refuse a graph that ends in a pass back marked as differentiable once.

    ``torch.autograd.grad`` raises only if the inputs lie behind such a node; it never does, so their share would be
    zero.

    Args:
        *tensors: With their graphs; ``None`` has none.

    Raises:
        RuntimeError: If the graph has such a node.
    """
    if any(node.name().endswith("Error") for node in nodes_of(*tensors)):
        raise RuntimeError("a custom function's pass back is marked with @once_differentiable")
