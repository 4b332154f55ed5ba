"""A module's inputs and outputs as flat, named lists of tensors."""

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lit_gelu.export.errors import ModelInputError

BATCH = "batch"  # its name in a file, where the caller gives none


@dataclass(frozen=True)
class Call:
    """One call of a module's ``forward``, taken apart.

    Args:
        names: Names of the tensors: the argument's name, and for nested ones the path joined with underscores.
        tensors: The tensors, detached, on the CPU, floating-point ones in float32, the file's dtype.
        leaves: All leaves of the arguments, the tensors as ``None``.
        structure: How the leaves make ``(args, kwargs)``.
        positions: Where the tensors stand among the leaves.
        named: Which axes of each tensor are called as the batch is; ``None`` where nothing is named.
    """

    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    leaves: tuple[Any, ...]
    structure: pytree.TreeSpec
    positions: tuple[int, ...]
    named: tuple[tuple[int, ...], ...] | None = None

    def arguments(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return ``(args, kwargs)`` with other tensors in the places of these."""
        leaves = list(self.leaves)
        for position, tensor in zip(self.positions, tensors, strict=True):
            leaves[position] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.structure)
        return args, kwargs

    @property
    def batch_size(self) -> int:
        """The size of the first tensor's first dimension."""
        return self.tensors[0].shape[0]

    @property
    def batched(self) -> tuple[bool, ...]:
        """Which tensors have the batch as their first dimension."""
        return tuple(0 in axes for axes in self.batch_axes)

    @property
    def batch_axes(self) -> tuple[tuple[int, ...], ...]:
        """Which axes of each tensor are the batch: the named ones, else a first axis of the first tensor's length."""
        if self.named is not None:
            return self.named
        return tuple((0,) if tensor.shape[:1] == (self.batch_size,) else () for tensor in self.tensors)

    def resized(self, batch_size: int) -> tuple[Tensor, ...]:
        """Return the tensors with another batch size; rows are repeated or left out."""
        return self.selected(self.tensors, torch.arange(batch_size) % self.batch_size)

    def selected(self, tensors: Sequence[Tensor], rows: Tensor) -> tuple[Tensor, ...]:
        """Return rows of a batch: tensors like these, cut along every axis that is the batch."""
        found = []
        for tensor, axes in zip(tensors, self.batch_axes, strict=True):
            for axis in axes:
                tensor = tensor.index_select(axis, rows)
            found.append(tensor)
        return tuple(found)

    def with_batch_of(self, shapes: Sequence[Sequence[object]]) -> "Call":
        """Return the call whose batch are all sizes that have the name of the first one; shapes as a file has them."""
        name = shapes[0][0]
        if not isinstance(name, str):
            return self
        return replace(self, named=tuple(tuple(i for i, size in enumerate(s) if size == name) for s in shapes))


@dataclass(frozen=True)
class OpenSize:
    """One size of one input that a file leaves open."""

    place: int  # of the input
    axis: int
    name: str  # in the file
    dim: Any  # what torch.export takes for it
    named: bool = True  # whether the caller gave the name, and not one of torch's hints
    required: bool = True  # whether a module that fixes it is refused; not for Dim.AUTO, which leaves that to torch
    given: Any = None  # of the batch, which is traced without bounds: what the caller gave for it

    @property
    def bounds(self) -> tuple[int | None, int | None]:
        """The least and the largest that the caller's `Dim` allows."""
        said = self.given or self.dim
        return getattr(said, "min", None), getattr(said, "max", None)


def batch_sizes(call: Call, name: str = BATCH, given: Any = None) -> tuple[OpenSize, ...]:
    """Return the open sizes of a call of which nothing else is said: the batch, in every input that has it."""
    rows = torch.export.Dim(name)
    places = [place for place, is_batched in enumerate(call.batched) if is_batched]
    return tuple(OpenSize(place, 0, name, rows, given=given) for place in places)


def require_order(model: object, path: object) -> None:
    """Refuse a module and a path that were given in each other's place."""
    if isinstance(model, str | os.PathLike) or isinstance(path, nn.Module):
        raise ModelInputError(
            f"The module comes first, and the path of the file second; given are {type(model).__name__} and "
            f"{type(path).__name__}."
        )


def sample_of(model: nn.Module, input_sample: Any) -> Any:
    """Return the sample to trace with: the given one, or the module's ``example_input_array``."""
    sample = getattr(model, "example_input_array", None) if input_sample is None else input_sample
    if sample is None:
        raise ModelInputError(
            f"{type(model).__name__} has no example_input_array. Set it in the module, or give input_sample=: a "
            "tensor, a tuple of forward's arguments or a dict of them by name. The first dimension is the batch."
        )
    return sample


def take_apart(model: nn.Module, sample: Any) -> Call:
    """Bind a sample to ``forward``'s arguments and take it apart into named tensors."""
    args, kwargs = _arguments(sample)
    signature = inspect.signature(model.forward)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ModelInputError(
            f"The input sample does not fit {type(model).__name__}.forward{signature}: {error}. Give a tensor, a tuple "
            "of its positional arguments, or a dict of its arguments by name."
        ) from error
    paths, structure = _leaves_with_paths((bound.args, bound.kwargs)), pytree.tree_structure((bound.args, bound.kwargs))
    positions = tuple(i for i, (_, leaf) in enumerate(paths) if isinstance(leaf, Tensor))
    tensors = tuple(plain_tensor(paths[i][1]) for i in positions)
    if not tensors or tensors[0].ndim == 0 or tensors[0].shape[0] == 0:
        raise ModelInputError(
            "The input sample needs a tensor whose first dimension is the batch, with at least one row."
        )
    names = _names([paths[i][0] for i in positions], signature)
    complex_ones = [name for name, tensor in zip(names, tensors, strict=True) if tensor.is_complex()]
    if complex_ones:
        raise ModelInputError(
            f"The input sample has complex tensors ({', '.join(complex_ones)}), and no file takes complex numbers. Let "
            "forward take real ones and begin with torch.view_as_complex(x), and give torch.view_as_real(x)."
        )
    leaves = tuple(None if i in positions else leaf for i, (_, leaf) in enumerate(paths))
    return Call(tuple(names), tensors, leaves, structure, positions)


def tensors_by_name(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of one call of ``forward`` by the names that `take_apart` gives them, however it is called."""
    bound = signature.bind(*args, **kwargs)
    found = [pair for pair in _leaves_with_paths((bound.args, bound.kwargs)) if isinstance(pair[1], Tensor)]
    return dict(zip(_names([path for path, _ in found], signature), (tensor for _, tensor in found), strict=True))


def plain_tensor(tensor: Tensor) -> Tensor:
    """Return an input as the file takes it: detached, on the CPU, floating-point values in float32."""
    tensor = tensor.detach().cpu()
    return tensor.float() if tensor.is_floating_point() else tensor


def _arguments(sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and named arguments, as Lightning reads ``example_input_array``."""
    if isinstance(sample, Mapping):
        return (), dict(sample)
    if isinstance(sample, (tuple, list)):
        return tuple(sample), {}
    return (sample,), {}


def _names(paths: Sequence[tuple[Any, ...]], signature: inspect.Signature) -> list[str]:
    """Return names such as ``mask``, ``batch_mask`` or ``args_0`` for leaves of ``(args, kwargs)``."""
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature.parameters.values()
    positional = [parameter.name for parameter in parameters if parameter.kind in by_place]
    rest = next((p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL), "")
    names = []
    for path in paths:
        of_kind, argument, *inner = [_key(entry) for entry in path]
        if of_kind == 0:  # positional: an index into the parameters; those beyond belong to *args
            beyond = argument - len(positional)
            argument = positional[argument] if beyond < 0 else f"{rest}_{beyond}"
        names.append("_".join(str(key) for key in (argument, *inner)))
    return unique_names(names)


def _leaves_with_paths(tree: Any) -> list[tuple[pytree.KeyPath, Any]]:
    """Return what ``tree_flatten_with_path`` does, also where a class has no function for its keys."""
    # Such are the outputs of transformers 5.0: mappings, whose own keys are taken.
    if pytree.tree_is_leaf(tree):
        return [((), tree)]
    try:
        children = pytree.tree_flatten_with_path(tree, lambda part: part is not tree)[0]
    except ValueError:
        parts = pytree.tree_leaves(tree, lambda part: part is not tree)
        keys = list(tree) if isinstance(tree, Mapping) else range(len(parts))
        children = [((pytree.MappingKey(key),), part) for key, part in zip(keys, parts, strict=True)]
    return [((*path, *inner), leaf) for path, part in children for inner, leaf in _leaves_with_paths(part)]


def _key(entry: Any) -> Any:
    """Return the key, index or attribute name that one step of a path stands for."""
    return getattr(entry, "key", getattr(entry, "idx", getattr(entry, "name", "")))


def unique_names(names: list[str]) -> list[str]:
    """Number names that occur twice: x, y, x_2."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return result


SCOPE = "model"  # under which FlatModule keeps the module, and so what its names begin with in the graph


class FlatModule(nn.Module):
    """A module as a function from a flat list of tensors to a flat tuple of tensors.

    The exporter names and shapes what it sees; nested and constant arguments, dicts and dataclasses never reach it.

    Args:
        model: The module.
        call: How its arguments are put together.
        preprocessing: What the first tensor goes through before it is the module's; ``None`` for nothing.
        softmax: Whether the first output goes through a softmax.
    """

    def __init__(
        self, model: nn.Module, call: Call, preprocessing: nn.Module | None = None, *, softmax: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self.call = call
        self.preprocessing = preprocessing
        self.softmax = softmax

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Call the module."""
        return tuple(tensor for _, tensor in named_outputs(self.run(tensors)))

    def run(self, tensors: Sequence[Tensor]) -> Any:
        """Call the module."""
        return self.called(self.model, self.fed(tensors))

    def fed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return what the module gets: the tensors, the first one behind the preprocessing."""
        first, *others = tensors
        return [first if self.preprocessing is None else self.preprocessing(first), *others]

    def called(self, model: nn.Module, fed: Sequence[Tensor]) -> Any:
        """Call a module as this one is called."""
        args, kwargs = self.call.arguments(fed)
        output = model(*args, **kwargs)
        return probabilities_first(output) if self.softmax else output


def as_in_a_file(tensor: Tensor) -> Tensor:
    """Return an output as a file gives it: complex numbers as real and imaginary part, on a last axis of two."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def probabilities_first(output: Any) -> Any:
    """Return an output whose first tensor went through a softmax over its last dimension."""
    leaves, structure = pytree.tree_flatten(output)
    place = next((i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)), None)
    if place is not None:
        leaves[place] = torch.softmax(leaves[place], dim=-1)
    return pytree.tree_unflatten(leaves, structure)


def named_outputs(output: Any) -> list[tuple[str, Tensor]]:
    """Return an output's tensors as ``output``; ``output_0``, ``output_1`` ... of sequences; by the keys of dicts."""
    if isinstance(output, Tensor):
        return [("output", output)]
    pairs = []
    for path, leaf in _leaves_with_paths(output):
        if isinstance(leaf, Tensor):
            name = "_".join(str(_key(entry)) for entry in path)
            pairs.append((f"output_{name}" if name[:1].isdigit() else name, leaf))
    return pairs
