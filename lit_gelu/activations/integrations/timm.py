"""Names of the registry as ``timm.create_model(..., act_layer="gaussian_gelu")``.

timm looks names up in four dictionaries of ``timm.layers.create_act``, by their name in that module: they are replaced
by subclasses that ask the registry for what they lack. timm puts names into lower case first, so ``learnable=True``
arrives as ``learnable=true``; it is read as it was meant.
"""

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from lit_gelu.activations.integrations.installation import (
    Installation,
    added_since,
    from_lower_case,
    function_module,
    import_library,
    is_path,
    names_of,
    present,
)
from lit_gelu.activations.naming.names import Names
from lit_gelu.activations.naming.spec import ActivationSpec

_LAYERS = ("_ACT_LAYER_ME", "_ACT_LAYER_DEFAULT")  # timm asks the first for what it has, then the second for all
_FUNCTIONS = ("_ACT_FN_ME", "_ACT_FN_DEFAULT")


def install(registry: Names, override: bool = False) -> Installation:
    """Make every name of a registry usable as an ``act_layer`` of timm's models."""
    installation = present("timm", registry, override)
    if installation is not None:
        return installation
    tables = import_library("timm.layers.create_act", "timm")
    before = {name: getattr(tables, name) for name in (*_LAYERS, *_FUNCTIONS)}
    taken = set(names_of(registry)) if override else set()
    for (first, second), make in ((_LAYERS, _layer), (_FUNCTIONS, _function)):
        setattr(tables, first, {key: value for key, value in before[first].items() if key not in taken})
        functions = {key: value for key, value in before[second].items() if key not in taken}
        setattr(tables, second, _AskingTable(functions, registry, make))

    shown = {name: dict(getattr(tables, name)) for name in before}

    def undo() -> None:
        for name, table in before.items():
            table.update(added_since(getattr(tables, name), shown[name]))
            setattr(tables, name, table)

    return Installation("timm", registry, override, undo)


class _AskingTable(dict[str, Any]):
    """timm's table, which asks the registry for the keys it lacks."""

    def __init__(
        self,
        content: dict[str, Any],
        registry: Names,
        make: Callable[[Names, ActivationSpec], Any],
    ) -> None:
        super().__init__(content)
        self._registry = registry
        self._make = make

    def __missing__(self, key: str) -> Any:
        text = from_lower_case(key)
        if is_path(text):
            raise KeyError(key)
        # Raises now, with the known names, and not when the model is half built; a spec names what is registered.
        return self._make(self._registry, self._registry.resolve(text, trusted=False))


def _layer(registry: Names, spec: ActivationSpec) -> Callable[..., nn.Module]:
    """Return what timm calls for a new module, with ``inplace`` or without."""
    return functools.partial(_build, registry, spec)


def _build(registry: Names, spec: ActivationSpec, **kwargs: Any) -> nn.Module:
    """Build a module; what a spec says of memory is the user's wish, and timm's ``inplace`` the model's default."""
    if not spec.arguments.keys().isdisjoint({"inplace", "memory"}):
        kwargs.pop("inplace", None)
    return registry.create(spec, **kwargs)


def _function(registry: Names, spec: ActivationSpec) -> Callable[..., Tensor]:
    """Return a function of a tensor; what has parameters of its own is no function."""
    module = function_module(registry, spec, "timm.layers.create_act_layer")

    def apply(x: Tensor, inplace: bool = False) -> Tensor:
        result: Tensor = module(x)
        return x.copy_(result) if inplace else result

    return apply
