"""Calling functions with a ``vmap`` of their own from under `torch.vmap`, and giving a module's code other tensors.

`torch.autograd.Function.apply` and `torch.func.functional_call` do the same for any nesting of transforms. Each takes a
tenth of a millisecond, several times what a small layer of all replicas does.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, autograd, nn

# torch has no public names for these; `tests/replicas/forward/test_under_vmap.py` fails where they have moved.
from torch._C import _functorch

from lit_gelu.replicas.errors import NotReplicableError


class Mapped(NamedTuple):
    """What a function's ``vmap`` is told."""

    batch_size: int


def mapped_call(function: type[autograd.Function], *arguments: Any) -> Any:
    """Return what ``function.apply`` returns, at once where one `torch.vmap` and nothing else is around the call.

    Args:
        function: With a ``vmap`` that returns one tensor and the dimension of its replicas.
        arguments: Tensors and others, in no containers.
    """
    is_alone = _functorch.maybe_current_level() == 1
    if not is_alone or _functorch.peek_interpreter_stack().key() != _functorch.TransformType.Vmap:
        return function.apply(*arguments)
    values, dims = zip(
        *(_functorch._unwrap_batched(value, 1) if isinstance(value, Tensor) else (value, None) for value in arguments),
        strict=True,
    )
    sizes = [value.shape[dim] for value, dim in zip(values, dims, strict=True) if dim is not None]
    if not sizes:
        return function.apply(*arguments)
    mapped: Any = function
    layer = _functorch.pop_dynamic_layer_stack()
    try:
        output, dim = mapped.vmap(Mapped(sizes[0]), dims, *values)
    finally:
        _functorch.push_dynamic_layer_stack(layer)
    return _functorch._add_batch_dim(output, dim, 1)


def part_of(tensor: Tensor, replica: int) -> Tensor:
    """Return a replica's part of what a mapped function has left somewhere, or a copy of what is the same for all."""
    value, dim = _functorch._unwrap_batched(tensor, 1)
    part: Tensor = value.detach().clone() if dim is None else value.detach().select(dim, replica)
    return part


class TensorPlaces:
    """Where a module's code finds its parameters and buffers.

    `torch.func.functional_call` leaves the other tensors where they are in a module that is there under several names.

    Args:
        module: Whose tensors are to be others for some calls.
        remedy: What somebody is to do whose code puts a tensor in the place of one of these.
        names: Those of the tensors; ``None`` means all.

    `names` are those of the tensors; one that is there under several names is meant wherever it is.
    """

    def __init__(self, module: nn.Module, remedy: str, names: Collection[str] | None = None) -> None:
        tensors = {
            name: tensor
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]
            if names is None or name in names
        }
        self.names, self.remedy = list(tensors), remedy
        numbers = {id(tensor): number for number, tensor in enumerate(tensors.values())}
        self._places: list[tuple[dict[str, Any], str, int]] = [
            (held, key, numbers[id(tensor)])
            for part in module.modules()
            for held in (part._parameters, part._buffers)
            for key, tensor in held.items()
            if id(tensor) in numbers
        ]

    @contextmanager
    def holding(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Let the module hold tensors, in the order of the names.

        Raises:
            NotReplicableError: If its code puts another tensor in the place of one of these.
        """
        before = [held[key] for held, key, _ in self._places]
        for held, key, number in self._places:
            held[key] = tensors[number]
        try:
            yield
            for held, key, number in self._places:
                if held.get(key) is not tensors[number]:
                    raise NotReplicableError(_assigned(self.names[number], self.remedy))
        finally:
            for (held, key, _), tensor in zip(self._places, before, strict=True):
                held[key] = tensor

    def check_addresses(self, tensors: Sequence[Tensor], before: Sequence[int]) -> None:
        """Refuse tensors whose ``data`` became another's, which nothing else tells.

        Raises:
            NotReplicableError: If one is elsewhere in memory than before.
        """
        for name, tensor, address in zip(self.names, tensors, before, strict=True):
            if tensor.data_ptr() != address:
                raise NotReplicableError(_assigned(name, self.remedy))


def _assigned(name: str, remedy: str) -> str:
    return (
        f"The training step assigns a new tensor to {name!r}, which a group would lose: change it in place, as "
        f"{name}.copy_(...){remedy}."
    )
