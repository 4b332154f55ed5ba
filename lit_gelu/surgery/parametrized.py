"""The class that ``torch.nn.utils.parametrize`` makes for one module: its properties stand over the module's own class.

Torch removes a parametrization from ``type(module)`` itself, and puts back the class that is right below. So a module's
class is changed below the one with the properties, never above it.
"""

import types
from typing import Any, cast

from torch import nn
from torch.nn.utils import parametrize


def is_parametrized_class(cls: type) -> bool:
    """Return whether torch made a class to hold the properties of a parametrized module."""
    return cls.__module__ == parametrize.__name__ and cls.__name__.startswith("Parametrized")


def without_parametrizations(cls: type[nn.Module]) -> type[nn.Module]:
    """Return the class below the one with the properties; of a module that is not parametrized, its class."""
    return cast("type[nn.Module]", cls.__bases__[0]) if is_parametrized_class(cls) else cls


def parametrized_over(base: type[nn.Module], parametrized: type[nn.Module]) -> type[nn.Module]:
    """Return a new class with the properties of a parametrized one over another class; over none, that class."""
    # A new one each time: torch deletes a property from it, and no other module must lose its own by that.
    if not is_parametrized_class(parametrized):
        return base
    namespace: dict[str, Any] = {
        name: value for name, value in vars(parametrized).items() if name not in {"__dict__", "__weakref__"}
    }
    made = types.new_class(parametrized.__name__, (base,), exec_body=lambda body: body.update(namespace))
    return cast("type[nn.Module]", made)


def has_same_properties(first: type, second: type) -> bool:
    """Return whether two classes parametrize the same tensors."""
    return is_parametrized_class(first) == is_parametrized_class(second) and (
        not is_parametrized_class(first) or vars(first).keys() == vars(second).keys()
    )
