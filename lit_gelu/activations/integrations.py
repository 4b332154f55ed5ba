"""Names of a registry in other libraries: ``act_layer="gaussian_gelu"`` in timm, ``hidden_act=...`` in transformers.

A library is imported when it is asked for, never before.
"""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import nn

from lit_gelu.activations.naming.names import Names
from lit_gelu.activations.naming.spec import ActivationSpec
from lit_gelu.errors import ArgumentError, SpecError, UnknownActivationError, UnsupportedRunError
from lit_gelu.extras import need

_LITERALS = re.compile(r"(?<==)\s*(true|false|none)\s*(?=[,)])")
_installed: dict[str, "Installation"] = {}


class Installation:
    """A registry's names in another library, until `uninstall` is called or its ``with`` block ends."""

    def __init__(self, library: str, registry: Names, undo: Callable[[], None]) -> None:
        self.library, self.registry, self._undo = library, registry, undo
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
        return f"Installation({self.library!r}, active={self.active})"


def is_path(text: str) -> bool:
    """Return whether a text is a dotted path: what a configuration file names is looked up, never imported."""
    return "." in text.partition("(")[0]


def _install_timm(registry: Names) -> Callable[[], None]:
    # timm looks names up in two dictionaries of ``timm.layers.create_act``, by their name in that module. The second,
    # which is asked for what the first lacks, is replaced by a subclass that asks the registry for what it lacks.
    remark = "Of that extra timm is needed here."
    tables: Any = need("timm.layers.create_act", extra="folders", what="install('timm')", remark=remark)
    before = tables._ACT_LAYER_DEFAULT
    during = tables._ACT_LAYER_DEFAULT = _AskingTable(before, registry)

    def undo() -> None:
        before.update(during)  # with what others have put into it
        tables._ACT_LAYER_DEFAULT = before

    return undo


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


def _install_transformers(registry: Names) -> Callable[[], None]:
    # Its models hold references to two tables of ``transformers.activations``, so they are changed in place: ``ACT2FN``
    # gets a subclass that asks the registry for what it lacks; ``ACT2CLS`` is a plain dictionary and gets registered
    # names. A parameter that a checkpoint lacks (``"swish(learnable=True)"`` on one trained with ``"silu"``) is left by
    # ``from_pretrained`` to the model's own initialisation, which does not know it: here it starts at its initial
    # value.
    what, remark = "install('transformers')", "Of that extra transformers is needed here."
    tables: Any = need("transformers.activations", extra="folders", what=what, remark=remark)
    base: Any = need("transformers.modeling_utils", extra="folders", what=what, remark=remark).PreTrainedModel
    functions, classes = tables.ACT2FN, tables.ACT2CLS
    table_class, initialise = type(functions), base._initialize_weights  # the one place all models pass
    names = sorted({name for entry in registry.entries() for name in (entry.name, *entry.aliases)} - classes.keys())
    ours = {name: functools.partial(registry.create, name) for name in names}
    classes.update(ours)
    functions.__class__ = _asking(table_class, registry)
    base._initialize_weights = _starting(initialise, registry)

    def undo() -> None:
        functions.__class__ = table_class
        base._initialize_weights = initialise
        for name, build in ours.items():
            if classes.get(name) is build:  # others may have put in something else
                del classes[name]

    return undo


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


LIBRARIES: Mapping[str, Callable[[Names], Callable[[], None]]] = {
    "timm": _install_timm,
    "transformers": _install_transformers,
}  # each returns what undoes it


def install(registry: Names, library: str) -> Installation:
    """Make a registry's names usable in another library; see `ActivationRegistry.install`."""
    if library not in LIBRARIES:
        raise ArgumentError(f"There is no integration with {library!r}. Accepted: {', '.join(map(repr, LIBRARIES))}.")
    if (installation := _installed.get(library)) is None:
        return Installation(library, registry, LIBRARIES[library](registry))
    if installation.registry is not registry:
        raise UnsupportedRunError(
            f"{library} has the names of {installation.registry!r} already. Uninstall what install() returned there."
        )
    return installation
