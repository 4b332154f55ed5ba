"""The parameters of a model as one flat vector, moving along such a vector, and a loss and its gradient in it.

Nothing here touches ``.grad``.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch.autograd.graph import Node

from lit_gelu.errors import ArgumentError

Closure = Callable[[], Tensor]
"""Computes the scalar loss, averaged over the samples of one batch, from the live parameters."""

Reduce = Callable[[Tensor], Tensor]
"""Sums a flat tensor over ranks."""

Kinds = frozenset[type[Node]]
"""The classes of a graph's nodes: few, where the nodes are thousands."""


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
        if not self.tensors:
            raise ArgumentError(
                f"None of the {len(parameters)} parameters requires a gradient, so the loss has no curvature along "
                "them. Give the parameters that are trained, e.g. dict(module.named_parameters())."
            )
        for name, tensor in self.tensors.items():
            if not tensor.is_floating_point() or hasattr(tensor, "device_mesh"):
                raise ArgumentError(
                    f"Parameter {name!r} is {tensor.dtype}, {type(tensor).__name__}. Accepted are real floating-point "
                    "parameters that are whole on one device: leave it out, or gather it first."
                )
        self.slices: dict[str, slice] = {}
        self.size = 0
        for name, tensor in self.tensors.items():
            self.slices[name] = slice(self.size, self.size + tensor.numel())
            self.size += tensor.numel()
        self.device = next(iter(self.tensors.values())).device
        self.dtype = torch.float64 if any(t.dtype == torch.float64 for t in self.tensors.values()) else torch.float32

    def flatten(self, tensors: Sequence[Tensor | None]) -> Tensor:
        """Join one tensor a parameter, in the order of the layout, into a new vector; ``None`` counts as zeros."""
        return torch.cat([
            torch.zeros(parameter.numel(), dtype=self.dtype, device=self.device)
            if tensor is None
            else (tensor.to_dense() if tensor.is_sparse else tensor).reshape(-1).to(self.device, self.dtype)
            for parameter, tensor in zip(self.tensors.values(), tensors, strict=True)
        ])

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
def displaced(layout: ParameterLayout) -> Iterator[Callable[..., None]]:
    """Yield ``move(offset, scale=1.0)``, which moves the live parameters; on leaving, every bit of them is put back."""
    # The parameters' version counters stay as they are, so that graphs recorded before remain usable.
    lives = list(layout.tensors.values())
    originals = [tensor.detach().clone() for tensor in lives]

    def move(offset: Tensor, scale: float = 1.0) -> None:
        pieces = offset.detach().split_with_sizes([tensor.numel() for tensor in originals])
        for live, original, piece in zip(lives, originals, pieces, strict=True):
            # The sum is rounded once, to the type of the parameter, and no other tensor is made for it.
            torch.add(original, piece.view(original.shape).to(original.device), alpha=scale, out=live.data)
        torch.clear_autocast_cache()  # its 16-bit copies are of values that are no longer there

    try:
        yield move
    finally:
        for live, original in zip(lives, originals, strict=True):
            live.data.copy_(original)  # by .data, as above: a version counter that moves spoils graphs recorded before
        torch.clear_autocast_cache()


def module_layout(slices: Mapping[str, slice]) -> dict[str, tuple[slice, ...]]:
    """Return the stretches of each module's parameters, by the parameters' names up to the last dot.

    Example:
        >>> module_layout({"0.weight": slice(0, 6), "0.bias": slice(6, 8), "scale": slice(8, 9)})
        {'0': (slice(0, 6, None), slice(6, 8, None)), '': (slice(8, 9, None),)}
    """
    modules: dict[str, tuple[slice, ...]] = {}
    for name, stretch in slices.items():
        module = name.rpartition(".")[0]
        modules[module] = (*modules.get(module, ()), stretch)
    return modules


def evaluate_loss(closure: Closure) -> Tensor:
    """Call a closure with gradients enabled, whatever mode the caller is in."""
    with torch.inference_mode(False), torch.enable_grad():
        loss = closure()
        if isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point():
            return loss.reshape(())
    kind = f"shape {tuple(loss.shape)} and {loss.dtype}" if isinstance(loss, Tensor) else repr(type(loss).__name__)
    raise ArgumentError(
        f"The closure returned {kind}. Accepted is a scalar loss: one real number in a tensor. Reduce it, e.g. by "
        "loss.mean()."
    )


def differentiate(loss: Tensor, layout: ParameterLayout, *, create_graph: bool = False) -> list[Tensor | None]:
    """Differentiate a loss by the parameters of a layout; ``None`` for those that it does not depend on."""
    tensors = list(layout.tensors.values())
    gradients: tuple[Tensor | None, ...] = (None,)
    if loss.requires_grad:
        with without_autocast(layout.device):
            gradients = torch.autograd.grad(loss, tensors, create_graph=create_graph, allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise ArgumentError(
            f"The loss does not depend on any of the {len(tensors)} parameters given, so it has no curvature along "
            "them. The closure must call the model that they belong to, without detach() or no_grad()."
        )
    return list(gradients)


def batches_of(closure: Closure | Sequence[Closure], samples: int | Sequence[int]) -> tuple[list[Closure], list[int]]:
    """Return the closures of batches as a list, and the number of samples of each batch."""
    closures = list(closure) if isinstance(closure, Sequence) else [closure]
    counts = [samples] * len(closures) if isinstance(samples, int) else list(samples)
    if not closures or len(closures) != len(counts) or min(counts) < 1:
        raise ArgumentError(
            f"{len(closures)} batches came with samples={samples!r}. Accepted is a positive number of samples for each "
            "of at least one batch: by these the batches are weighted."
        )
    return closures, counts


def weighted_mean(rows: Iterable[Tensor], counts: Sequence[int], reduce: Reduce | None) -> Tensor:
    """Average vectors over batches and ranks, each weighted by its number of samples."""
    # A rank sends [n_r mean_r, n_r] in one flat tensor, so one all-reduce is enough.
    total = sum(counts)
    rows = iter(rows)
    mean = next(rows) if len(counts) == 1 else next(rows) * (counts[0] / total)
    for row, count in zip(rows, counts[1:], strict=True):
        mean.add_(row, alpha=count / total)
    if reduce is None:
        return mean
    summed = reduce(torch.cat([mean * total, mean.new_tensor([total])]))
    return summed[:-1] / summed[-1]


def is_finite(vector: Tensor) -> bool:
    """Return whether all elements are finite; the host waits for it."""
    # A sum with NaN or infinity in it is not finite, and takes a twentieth of the time of a test of each element; only
    # finite elements whose sum overflows need that test.
    return math.isfinite(vector.sum().item()) or bool(vector.isfinite().all())


def without_autocast(*devices: torch.device) -> ExitStack:
    """Switch autocast off for devices: passes back run in the types that the pass forward chose."""
    stack = ExitStack()
    for kind in {device.type for device in devices if device.type != "meta"}:
        stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


def kinds_of(*tensors: Tensor | None) -> Kinds:
    """Return the classes of the nodes in the graph that computed some tensors."""
    seen: set[Node] = set()
    level = {tensor.grad_fn for tensor in tensors if tensor is not None and tensor.grad_fn is not None}
    while level:  # breadth first, so that sets do the work: half the time of one node after the other
        seen |= level
        level = {node for current in level for node, _ in current.next_functions if node is not None} - seen
    return frozenset(map(type, seen))


def check_checkpoints(kinds: Iterable[type[Node]]) -> None:
    """Refuse a graph with reentrant activation checkpoints."""
    # Parameters inside a checkpoint are not in the graph. torch.autograd.grad raises only if it must pass through the
    # checkpoint to reach parameters before it; if there are none, the share of those inside would silently be zero.
    if any(kind.__name__ == "CheckpointFunctionBackward" for kind in kinds):
        raise ArgumentError(
            "The model uses activation checkpointing with use_reentrant=True, through which no gradient can be asked "
            "for but by backward(). Use torch.utils.checkpoint.checkpoint(..., use_reentrant=False), in models of "
            'Hugging Face gradient_checkpointing_enable({"use_reentrant": False}), or define curvature_loss(batch) '
            "without checkpointing."
        )
