"""Specs that were read from a file: they resolve registered names, and can neither import nor call anything else.

A file (a checkpoint, a record of swaps, an ONNX file, another library's configuration) may come from anybody. What
reads one is given `StoredActivations` or makes `ActivationSpec` objects of its texts, which name registered activations
alone. It never hands a file's text to `ActivationRegistry.create`, which follows dotted paths.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import nn

from lit_gelu.activations.errors import ActivationArgumentError, ActivationSpecError, StoredSpecError
from lit_gelu.activations.naming.entry import Resolved, without_memory
from lit_gelu.activations.naming.name_table import Names
from lit_gelu.activations.naming.spec import (
    ACCEPTED,
    ActivationSpec,
    DottedPath,
    dotted_path,
    merged,
    opaque,
    read_spec,
)
from lit_gelu.errors import message_of, shown

_given_by_caller: ContextVar[tuple[object, ...] | None] = ContextVar("_given_by_caller", default=None)


class StoredActivations:
    """A registry as a reader of files sees it; `ActivationRegistry.stored` makes it.

    A spec from a file is a text (``"gelu"``, ``"leaky_relu(negative_slope=0.2)"``), a mapping (``{"name": "gelu",
    "approximate": "tanh"}``) or an `ActivationSpec`. A dotted path is accepted if it leads to a registered class or
    function that is imported already, such as ``"torch.nn.GELU"``, and then stands for its name.

    Args:
        registry: Where names are looked up.

    Example:
        >>> from lit_gelu.activations import registry
        >>> StoredActivations(registry).create("torch.nn.ELU(alpha=0.5)")
        ELU(alpha=0.5)
    """

    def __init__(self, registry: Names) -> None:
        self._registry = registry

    def create(self, spec: object) -> nn.Module:
        """Build a new module.

        Args:
            spec: What the file says.

        Returns:
            A module of its own.

        Raises:
            StoredSpecError: If it names something else than a registered activation by a dotted path.
            UnknownActivationError: If nobody registered the name.
            ActivationArgumentError: If a keyword or a value is not accepted.
            ActivationSpecError: If it is no spec.
            OpaqueActivationError: If it is the spec of something never registered.

        Example:
            >>> from lit_gelu.activations import registry
            >>> registry.stored.create("os.system(command='date')")
            Traceback (most recent call last):
            lit_gelu.errors.SpecError: 'os.system' stands in a file, and is no registered \
activation. Names in files are looked up, never imported: register it and let the file name that, or give the \
class itself in code, or its path on the command line or in YAML.
        """
        return stored_activation(self._registry, spec).build()

    def resolve(self, spec: object) -> ActivationSpec:
        """Return a spec in canonical form, as `ActivationRegistry.resolve`; it raises what `create` raises."""
        return stored_activation(self._registry, spec).spec


@contextmanager
def building_from_file(given: Iterable[object] = ()) -> Iterator[None]:
    """Take every spec that `ActivationRegistry.create` is given within as one out of a file.

    For the construction of a module with arguments that a file holds, where the constructor cannot tell whence they
    come. `lit_gelu.callbacks.load_from_checkpoint` and the tasks of `lit_gelu.tasks` do so; a `LightningModule` that
    is loaded by Lightning's own method can use `ActivationRegistry.stored` instead. It holds for the present thread.

    Args:
        given: Specs that the caller gives beside the file; these may be dotted paths.

    Yields:
        Nothing.

    Example:
        >>> from lit_gelu.activations import create
        >>> with building_from_file(given=["torch.nn.Softsign"]):
        ...     create("torch.nn.Softsign")
        Softsign()
    """
    token = _given_by_caller.set(tuple(given))
    try:
        yield
    finally:
        _given_by_caller.reset(token)


def comes_from_file(spec: object) -> bool:
    """Return whether a text or mapping may come from a file: within `building_from_file`, unless its caller gave it."""
    caller_specs = _given_by_caller.get()
    return caller_specs is not None and not any(type(spec) is type(one) and spec == one for one in caller_specs)


def stored_activation(registry: Names, spec: object, kwargs: Mapping[str, Any] | None = None) -> Resolved:
    """Resolve a spec that was read from a file, with further arguments of the caller's."""
    parsed = read_spec(spec) if isinstance(spec, (str, Mapping)) else spec
    if isinstance(parsed, ActivationSpec):
        return registry.named(parsed, kwargs or {})
    if not isinstance(parsed, DottedPath):
        raise StoredSpecError(
            f"{shown(spec)} ({type(spec).__name__}) stands in a file where an activation should. Accepted: a text such "
            "as \"gelu(approximate='tanh')\", or a mapping {'name': ...}."
        )
    return _registered(registry, parsed.path, merged(parsed.path, dict(parsed.arguments), kwargs or {}))


def _registered(registry: Names, path: object, arguments: dict[str, Any]) -> Resolved:
    """Resolve a dotted path to something registered; only modules that are already imported are looked at."""
    module_name, _, name = path.rpartition(".") if isinstance(path, str) else ("", "", "")
    module = sys.modules.get(module_name)
    target = None if module is None else vars(module).get(name)  # not getattr: a module's __getattr__ may import
    if isinstance(target, type) and (entry := registry.entry_of_class(target)) is not None:
        return of_class(registry, target, ActivationSpec.of(entry.name, **arguments).arguments)
    if target is not None and (resolved := registry.named_function(target, arguments)) is not None:
        return resolved
    raise StoredSpecError(
        f"{shown(path)} stands in a file, and is no registered activation. Names in files are looked up, never "
        "imported: register it and let the file name that, or give the class itself in code, or its path on the "
        "command line or in YAML."
    )


def of_class(registry: Names, cls: type, kwargs: dict[str, Any]) -> Resolved:
    """Resolve a class with arguments of its constructor; the spec is opaque if the class was never registered."""
    if not issubclass(cls, nn.Module):
        raise ActivationSpecError(f"{dotted_path(cls)!r} is no torch.nn.Module class. Accepted: {ACCEPTED}.")
    row = registry.entry_of_class(cls)

    def build() -> nn.Module:
        try:
            module = cls(**kwargs)
        except TypeError as error:
            raise ActivationArgumentError(
                f"{dotted_path(cls)}({shown(kwargs)}) cannot be built: {message_of(error)}."
            ) from error
        return module if row is None else row.remember(module, kwargs)

    if row is not None and row.tried:
        built = registry.spec_of(without_memory(dotted_path(cls), cls, kwargs))
        return Resolved(registry.named(built, {}).spec, build)
    spec = registry.spec_of(build())
    return Resolved(opaque(spec.name, kwargs) if spec.opaque else spec, build)
