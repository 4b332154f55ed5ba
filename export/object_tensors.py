"""Tensors in objects that torch does not look into, such as key-value caches: inputs and outputs of a file by name."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lit_gelu.errors import ExportError
from lit_gelu.sandbox import holds_tensors

_DEPTH = 8
# As the files of optimum call what transformers' caches hold, where theirs and the package's attributes differ.
_OF_CACHES = {"keys": "key", "values": "value", "self_attention_cache": "decoder", "cross_attention_cache": "encoder"}
_WITHOUT_NAME = "layers"


@dataclass(frozen=True, eq=False)
class ObjectTensors:
    """An object in a tree of arguments or outputs, opened: a node of which its tensors are the leaves.

    Args:
        template: The object; it is never called, and forward never sees it.
        places: What is in the object at the places of the tensors.
        names: Of the tensors, in a file behind the name of the argument.
        tensors: The leaves.
    """

    template: Any
    places: Sequence[Tensor]
    names: tuple[str, ...]
    tensors: Sequence[Any]

    def closed(self) -> Any:
        """Return a copy of the object with the leaves in it; all else that forward may write to is a copy too."""
        memo: dict[int, Any] = {id(tensor): tensor for _, tensor in _tensors(self.template, private=True)}
        memo.update({id(place): tensor for place, tensor in zip(self.places, self.tensors, strict=True)})
        return copy.deepcopy(self.template, memo)


@dataclass(frozen=True)
class TensorName:
    """The key of a tensor in an object, in the path of a leaf."""

    key: str
    in_cache: bool


pytree.register_pytree_node(
    ObjectTensors,
    lambda node: (list(node.tensors), (node.template, node.places, node.names)),
    lambda leaves, context: ObjectTensors(context[0], context[1], context[2], list(leaves)),
    flatten_with_keys_fn=lambda node: (
        [(TensorName(n, _is_cache(node.template)), t) for n, t in zip(node.names, node.tensors, strict=True)],  # type: ignore[misc]
        (node.template, node.places, node.names),
    ),
)


def opened(tree: Any) -> Any:
    """Return a tree whose leaves are tensors and what holds none; objects with tensors are nodes of it."""
    return pytree.tree_map(_opened, tree)


def closed(tree: Any) -> Any:
    """Return a tree with objects in the places of their nodes."""
    return pytree.tree_map(
        lambda node: node.closed() if isinstance(node, ObjectTensors) else node,
        tree,
        is_leaf=lambda node: isinstance(node, ObjectTensors),
    )


class ObjectsOfCall:
    """The objects with tensors among the arguments of a call, as they are before it."""

    def __init__(self, arguments: Any) -> None:
        leaves = pytree.tree_leaves(arguments) if not torch.compiler.is_exporting() else []
        self._objects = [leaf for leaf in leaves if not isinstance(leaf, Tensor) and holds_tensors(leaf)]
        self._tensors = [[(t, t._version) for _, t in _tensors(each)] for each in self._objects]
        self._numbers = [dict(_parts_of(each, int)) for each in self._objects]

    def require_kept(self, forward: str, output: Any) -> None:
        """Refuse a call that changed tensors of an object and does not return them, or counts in Python numbers.

        Raises:
            ExportError: If a file cannot do what the call does.
        """
        returned = {id(leaf) for leaf in pytree.tree_leaves(opened(output))}
        for each, tensors, numbers in zip(self._objects, self._tensors, self._numbers, strict=True):
            unchanged = {id(tensor) for tensor, version in tensors if tensor._version == version}
            if any(id(tensor) not in unchanged | returned for _, tensor in _tensors(each)):
                raise ExportError(
                    f"{forward} changes the tensors of a {type(each).__name__} and does not return it; a file has no "
                    "other memory. Return it (use_cache=True in transformers), or leave it out of the sample."
                )
            counts = [".".join(map(str, path)) for path, n in _parts_of(each, int) if numbers.get(path, n) != n]
            if counts:
                raise ExportError(
                    f"{forward} counts in {counts[0]} of a {type(each).__name__}, a Python number, which a file would "
                    "hold as it is in the sample. Give an object without: of transformers' caches, DynamicCache() as "
                    "it is without a configuration; a sliding window is then in the masks alone."
                )


def _opened(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) or not holds_tensors(leaf):
        return leaf
    distinct = {id(tensor): (path, tensor) for path, tensor in _tensors(leaf)}
    if not distinct:
        return leaf
    paths, tensors = zip(*distinct.values(), strict=True)
    names = [_name(path) for path in paths] if _is_cache(leaf) else []
    if len({*names}) < len(paths):
        names = [".".join(map(str, path)) for path in paths]
    return ObjectTensors(leaf, tensors, tuple(names), tensors)


def _is_cache(value: object) -> bool:
    return hasattr(value, "get_seq_length")


def _tensors(value: Any, *, private: bool = False) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    return _parts_of(value, Tensor, private=private)


def _parts_of(
    value: Any, kind: type, path: tuple[Any, ...] = (), *, private: bool = False
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield what is of a kind in an object, and where: attributes, keys of dicts, indices of lists."""
    if isinstance(value, kind) and not isinstance(value, bool):
        yield path, value
        return
    if isinstance(value, Mapping):
        parts = {**value}
    elif isinstance(value, (list, tuple)):
        parts = dict(enumerate(value))
    else:
        attributes = {} if isinstance(value, (nn.Module, type, Tensor)) else getattr(value, "__dict__", {})
        parts = {name: part for name, part in attributes.items() if private or not name.startswith("_")}
    if len(path) < _DEPTH:
        for key, part in parts.items():
            yield from _parts_of(part, kind, (*path, key), private=private)


def _name(path: Sequence[Any]) -> str:
    """Return ``0.key`` of the cache of a decoder, ``0.encoder.key`` of that between it and an encoder."""
    parts = [_OF_CACHES.get(part, str(part)) for part in path if part != _WITHOUT_NAME]
    if parts[0] in _OF_CACHES.values():
        parts[:2] = parts[1::-1]
    return ".".join(parts)
