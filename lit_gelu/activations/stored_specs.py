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

from lit_gelu.activations import recipes
from lit_gelu.activations.errors import StoredSpecError
from lit_gelu.activations.names import Names
from lit_gelu.activations.recipes import Recipe
from lit_gelu.activations.spec import ActivationSpec, parse_text
from lit_gelu.errors import shown

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
            lit_gelu.activations.errors.StoredSpecError: 'os.system' stands in a file, and is no registered \
activation. Names in files are looked up, never imported: register it and let the file name that, or give the \
class itself in code, or its path on the command line or in YAML.
        """
        return stored_recipe(self._registry, spec, {}).build()

    def resolve(self, spec: object) -> ActivationSpec:
        """Return a spec in canonical form; see `ActivationRegistry.resolve`.

        Args:
            spec: What the file says.

        Returns:
            The canonical spec.

        Raises:
            StoredSpecError: As `create`.
            UnknownActivationError: As `create`.
            ActivationArgumentError: As `create`.
            ActivationSpecError: As `create`.
            OpaqueActivationError: As `create`.

        Example:
            >>> from lit_gelu.activations import registry
            >>> str(registry.stored.resolve({"class_path": "torch.nn.GELU"}))
            'gelu'
        """
        return stored_recipe(self._registry, spec, {}).spec


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
    """Return whether a spec that `ActivationRegistry.create` was given may be out of a file.

    Args:
        spec: A text or a mapping.

    Returns:
        Whether `building_from_file` is active, and its caller did not give this spec.
    """
    given = _given_by_caller.get()
    return given is not None and not any(type(spec) is type(one) and spec == one for one in given)


def stored_recipe(registry: Names, spec: object, kwargs: dict[str, Any]) -> Recipe:
    """Resolve a spec that was read from a file.

    Args:
        registry: Where names are looked up.
        spec: What the file says.
        kwargs: Further arguments.

    Returns:
        The recipe.

    Raises:
        StoredSpecError: If it is neither a text nor a mapping, or a dotted path to what is not registered.
    """
    match spec:
        case ActivationSpec():
            return recipes.of_spec(registry, spec, kwargs)
        case str():
            is_opaque, name, arguments = parse_text(spec)
            if is_opaque or "." not in name:
                named = ActivationSpec(name, tuple(arguments.items()), opaque=is_opaque)
                return recipes.of_spec(registry, named, kwargs)
            return _registered(registry, name, recipes.merged(name, arguments, kwargs))
        case Mapping():
            found, arguments = recipes.split_mapping(spec)
            if isinstance(found, ActivationSpec):
                return recipes.of_spec(registry, found, kwargs)
            return _registered(registry, found, recipes.merged(found, arguments, kwargs))
    raise StoredSpecError(
        f"{shown(spec)} ({type(spec).__name__}) stands in a file where an activation should. Accepted: a text such as "
        "\"gelu(approximate='tanh')\", or a mapping {'name': ...}."
    )


def _registered(registry: Names, path: object, arguments: dict[str, Any]) -> Recipe:
    """Resolve a dotted path to something registered; modules that are imported already are looked at, no more."""
    module_name, _, name = path.rpartition(".") if isinstance(path, str) else ("", "", "")
    module = sys.modules.get(module_name)
    target = None if module is None else vars(module).get(name)  # not getattr: a module's __getattr__ may import
    for entry in registry.entries() if target is not None else ():
        for form in entry.modules:
            if form.type is target:
                checked = ActivationSpec.of(entry.name, **arguments).arguments
                return recipes.of_class(registry, form.type, checked)
        for function, bound in entry.functions:
            if function is target:
                return recipes.named(registry, entry.name, recipes.merged(entry.name, dict(bound), arguments))
    raise StoredSpecError(
        f"{shown(path)} stands in a file, and is no registered activation. Names in files are looked up, never "
        "imported: register it and let the file name that, or give the class itself in code, or its path on the "
        "command line or in YAML."
    )
