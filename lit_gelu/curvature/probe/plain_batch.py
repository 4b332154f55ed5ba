"""A batch in a checkpoint: plain containers, which load without trust in the file, and back."""

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from lit_gelu.curvature.probe.batch import PLAIN, field_names, refilled

_LOADABLE = (*PLAIN, bool)


def to_plain(batch: Any) -> Any:
    """Return a batch in dicts, lists and tensors on the host.

    Args:
        batch: Tensors and plain values, in any nesting of tuples, lists, named tuples, mappings and dataclasses.

    Returns:
        Tensors and plain values as they are; of each container, ``{"kind": ..., "parts": ...}``.

    Raises:
        TypeError: If it holds something else; the message is the name of its type.

    Example:
        >>> to_plain(({"a": 1}, "b"))
        {'kind': 'tuple', 'parts': [{'kind': 'mapping', 'parts': {'a': 1}}, 'b']}
    """
    if isinstance(batch, Tensor):
        return batch.detach().cpu().as_subclass(Tensor)
    if type(batch) in _LOADABLE:
        return batch
    if isinstance(batch, Mapping) and all(type(key) in _LOADABLE for key in batch):
        return {"kind": "mapping", "parts": {key: to_plain(value) for key, value in batch.items()}}
    names = field_names(batch)
    if names:
        return {"kind": "fields", "parts": {name: to_plain(getattr(batch, name)) for name in names}}
    if isinstance(batch, (tuple, list)):
        kind = "tuple" if isinstance(batch, tuple) else "list"
        return {"kind": kind, "parts": [to_plain(child) for child in batch]}
    raise TypeError(type(batch).__name__)


def from_plain(plain: Any, like: Any) -> Any:
    """Return the batch that `to_plain` took apart.

    Args:
        plain: What it returned.
        like: A batch of the same structure, whose types are taken where the entries have the same names; elsewhere
            a mapping becomes a dict, and a dataclass a named tuple.

    Returns:
        A batch; its tensors are on the host.

    Example:
        >>> from collections import UserDict
        >>> from_plain(to_plain({"a": (1, 2)}), UserDict(a=(3, 4)))
        {'a': (1, 2)}
        >>> type(_).__name__
        'UserDict'
    """
    if not isinstance(plain, dict):
        return plain
    parts = plain["parts"]
    if plain["kind"] == "mapping":
        same = isinstance(like, Mapping) and set(like) == set(parts)
        values = {key: from_plain(value, like[key] if same else None) for key, value in parts.items()}
        return refilled(like, values) if same else values
    if plain["kind"] == "fields":
        same = field_names(like) == tuple(parts)
        values = {name: from_plain(value, getattr(like, name) if same else None) for name, value in parts.items()}
        return refilled(like, values) if same else namedtuple("Batch", values)(**values)  # noqa: PYI024
    samples = like if isinstance(like, Sequence) and len(like) > 0 else [None]
    children = [from_plain(part, samples[min(number, len(samples) - 1)]) for number, part in enumerate(parts)]
    return tuple(children) if plain["kind"] == "tuple" else children
