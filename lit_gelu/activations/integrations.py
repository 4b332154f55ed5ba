"""Names of a registry in other libraries: ``act_layer="gaussian_gelu"`` in timm, ``hidden_act=...`` in transformers.

A library is imported when it is asked for, never before.
"""

import functools
import importlib
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, Self

import torch
from torch import nn

from lit_gelu.activations.naming.names import Names
from lit_gelu.activations.naming.spec import ActivationSpec
from lit_gelu.errors import ArgumentError, MissingExtraError, SpecError, UnknownActivationError, UnsupportedRunError

_LITERALS = re.compile(r"(?<==)\s*(true|false|none)\s*(?=[,)])")
_installed: dict[str, "Installation"] = {}


class Installation:
    """A registry's names in another library, until `uninstall` is called or its ``with`` block ends."""

    def __init__(self, library: str, registry: Names, override: bool, undo: Callable[[], None]) -> None:
        self.library = library
        self.registry = registry
        self.override = override
        self._undo = undo
        _installed[library] = self

    @property
    def active(self) -> bool:
        """Whether the names are there."""
        return _installed.get(self.library) is self

    def uninstall(self) -> None:
        """Bring the library back to what it was; models that are built already keep their activations."""
        if self.active:
            self._undo()
            del _installed[self.library]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def __repr__(self) -> str:
        return f"Installation({self.library!r}, override={self.override}, active={self.active})"


def present(library: str, registry: Names, override: bool) -> Installation | None:
    """Return the installation that is there already, so that installing twice is installing once."""
    installation = _installed.get(library)
    if installation is not None and (installation.registry is not registry or installation.override != override):
        raise UnsupportedRunError(
            f"{library} has the names of {installation.registry!r} with override={installation.override} already. Call "
            "uninstall() of what install() returned there first."
        )
    return installation


def names_of(registry: Names) -> list[str]:
    """Return every name and alias of a registry."""
    return sorted({name for entry in registry.entries() for name in (entry.name, *entry.aliases)})


def added_since(table: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what others have put into a table that had this content when it was installed."""
    return {key: value for key, value in table.items() if key not in content or content[key] is not value}


def is_path(text: str) -> bool:
    """Return whether a text is a dotted path: what a configuration file names is looked up, never imported."""
    return "." in text.partition("(")[0]


def import_library(name: str, library: str) -> ModuleType:
    """Import a module of another library."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(f"Cannot import {name}: {error}. Install it: pip install {library}.") from error


def _install_timm(registry: Names, override: bool = False) -> Installation:
    # timm looks names up in two dictionaries of ``timm.layers.create_act``, by their name in that module: it asks the
    # first for what it has, then the second, which is replaced by a subclass that asks the registry for what it lacks.
    installation = present("timm", registry, override)
    if installation is not None:
        return installation
    tables = import_library("timm.layers.create_act", "timm")
    names = ("_ACT_LAYER_ME", "_ACT_LAYER_DEFAULT")
    before = [getattr(tables, name) for name in names]
    taken = set(names_of(registry)) if override else set()
    first, second = ({key: value for key, value in table.items() if key not in taken} for table in before)
    during = first, _AskingTable(second, registry)
    for name, table in zip(names, during, strict=True):
        setattr(tables, name, table)
    content = dict(first), dict(second)

    def undo() -> None:
        for name, table, replaced, at_start in zip(names, before, during, content, strict=True):
            table.update(added_since(replaced, at_start))
            setattr(tables, name, table)

    return Installation("timm", registry, override, undo)


class _AskingTable(dict[str, Any]):
    """timm's table, which asks the registry for the keys it lacks."""

    def __init__(self, content: dict[str, Any], registry: Names) -> None:
        super().__init__(content)
        self._registry = registry

    def __missing__(self, key: str) -> Callable[..., nn.Module]:
        # timm puts names into lower case, so ``learnable=True`` arrives as ``learnable=true``.
        text = _LITERALS.sub(lambda match: match[1].capitalize(), key)
        if is_path(text):
            raise KeyError(key)
        # Raises now, with the known names, and not when the model is half built; a spec names what is registered.
        return functools.partial(_build, self._registry, self._registry.resolve(text, trusted=False))


def _build(registry: Names, spec: ActivationSpec, **kwargs: Any) -> nn.Module:
    """Build a module; what a spec says of memory is the user's wish, and timm's ``inplace`` the model's default."""
    if not spec.arguments.keys().isdisjoint({"inplace", "memory"}):
        kwargs.pop("inplace", None)
    return registry.create(spec, **kwargs)


def _install_transformers(registry: Names, override: bool = False) -> Installation:
    # Its models hold references to two tables of ``transformers.activations``, so they are changed in place: ``ACT2FN``
    # gets a subclass that asks the registry for what it lacks; ``ACT2CLS`` is a plain dictionary and gets registered
    # names. A parameter that a checkpoint lacks (``"swish(learnable=True)"`` on one trained with ``"silu"``) is left by
    # ``from_pretrained`` to the model's own initialisation, which does not know it: here it starts at its initial
    # value.
    installation = present("transformers", registry, override)
    if installation is not None:
        return installation
    tables = import_library("transformers.activations", "transformers")
    models = import_library("transformers.modeling_utils", "transformers")
    functions, classes, base = tables.ACT2FN, tables.ACT2CLS, models.PreTrainedModel
    table_class, initialise = type(functions), base._initialize_weights  # the one place all models pass
    before = dict(functions.items()), dict(classes)  # items() gives what is stored, a look-up a new module
    ours = {
        name: functools.partial(registry.create, name) for name in names_of(registry) if override or name not in classes
    }
    functions.update(ours)
    classes.update(ours)
    functions.__class__ = _asking(table_class, registry)
    base._initialize_weights = _starting(initialise, registry)

    def undo() -> None:
        functions.__class__ = table_class
        base._initialize_weights = initialise
        for table, content in zip((functions, classes), before, strict=True):
            later = added_since(dict(table.items()), ours)
            table.clear()
            table.update({**content, **later})

    return Installation("transformers", registry, override, undo)


def _asking(table_class: type, registry: Names) -> type:
    """Return a subclass of the table's class that asks the registry for the keys it lacks."""

    class RegistryTable(table_class):  # type: ignore[misc]  # known only when transformers is imported
        def __missing__(self, key: str) -> Any:
            if is_path(key):
                raise KeyError(key)
            spec = registry.resolve(key, trusted=False)  # raises now, with the known names
            return functools.partial(registry.create, spec)

        def __contains__(self, key: object) -> bool:
            if super().__contains__(key):
                return True
            try:
                return isinstance(key, str) and not is_path(key) and bool(registry.resolve(key, trusted=False))
            except (SpecError, UnknownActivationError):  # wrong arguments are an error of their own
                return False

    return RegistryTable


def _starting(initialise: Any, registry: Names) -> Any:
    """Return transformers' initialisation of one module, preceded by ours of the learned activations."""

    @functools.wraps(initialise)
    def start(model: nn.Module, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        missing = {
            name: parameter
            for name, parameter in module.named_parameters(recurse=False)
            if not getattr(parameter, "_is_hf_initialized", False) and not parameter.is_meta
        }
        if missing and not getattr(module, "_is_hf_initialized", False):
            spec = registry.spec_of(module)
            if not spec.opaque:
                initial = dict(registry.create(spec).named_parameters())
                with torch.no_grad():
                    for name, parameter in missing.items():
                        parameter.copy_(initial[name])
        initialise(model, module, *args, **kwargs)

    return start


LIBRARIES: Mapping[str, Callable[[Names, bool], Installation]] = {
    "timm": _install_timm,
    "transformers": _install_transformers,
}


def install(registry: Names, library: str, *, override: bool = False) -> Installation:
    """Make a registry's names usable in another library; see `ActivationRegistry.install`."""
    if library not in LIBRARIES:
        accepted = ", ".join(map(repr, LIBRARIES))
        raise ArgumentError(f"There is no integration with {library!r}. Accepted: {accepted}.")
    return LIBRARIES[library](registry, override)
