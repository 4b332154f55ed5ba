"""Names of the registry as ``keras.layers.Dense(8, activation="gaussian_gelu")``, where Keras computes with PyTorch.

``keras.activations.get`` looks a name up in a dictionary of its module, by its method ``get``. It is replaced by a
subclass that asks the registry for what it lacks. A saved model holds the spec, and finds it again where the names are
installed: in Keras an activation is an instance of a class that is registered as ``lit_gelu>RegistryActivation``.
Keras' own ``leaky_relu`` has the slope 0.2, this registry's has torch's 0.01; ``override=True`` takes ours.
"""

from collections.abc import Callable
from typing import Any, Self

from torch import Tensor

from lit_gelu.activations.errors import ActivationSpecError, MissingLibraryError
from lit_gelu.activations.integrations.installation import (
    Installation,
    added_since,
    function_module,
    import_library,
    is_path,
    names_of,
    present,
)
from lit_gelu.activations.naming.names import Names

_PACKAGE = "lit_gelu"


def install(registry: Names, override: bool = False) -> Installation:
    """Make every name of a registry usable as an ``activation`` of Keras' layers."""
    found = present("keras", registry, override)
    if found is not None:
        return found
    _require_torch()
    module: Any = import_library("keras.src.activations", "keras")
    naming = import_library("keras.src.saving.object_registration", "keras")
    kind = _activation_class(registry)
    name = f"{_PACKAGE}>{kind.__name__}"
    before = module.ALL_OBJECTS_DICT
    taken = set(names_of(registry)) if override else set()
    own = {key: value for key, value in before.items() if key not in taken}
    module.ALL_OBJECTS_DICT = _KerasTable(own, kind)
    naming.GLOBAL_CUSTOM_OBJECTS[name], naming.GLOBAL_CUSTOM_NAMES[kind] = kind, name

    def undo() -> None:
        before.update(added_since(module.ALL_OBJECTS_DICT, own))
        module.ALL_OBJECTS_DICT = before
        del naming.GLOBAL_CUSTOM_OBJECTS[name], naming.GLOBAL_CUSTOM_NAMES[kind]

    return Installation("keras", registry, override, undo)


def _require_torch() -> None:
    """Refuse a Keras whose tensors are not PyTorch's."""
    remedy = "lit-gelu's activations compute with PyTorch: set the environment variable KERAS_BACKEND=torch."
    try:
        backend = import_library("keras", "keras").backend.backend()
    except MissingLibraryError as error:
        raise MissingLibraryError(f"{error} {remedy}") from error
    if backend != "torch":
        raise MissingLibraryError(f"keras computes with {backend}. {remedy}")


class _KerasTable(dict[str, Any]):
    """Keras' table, which asks the registry for the keys it lacks."""

    def __init__(self, content: dict[str, Any], kind: Callable[[str], Any]) -> None:
        super().__init__(content)
        self._kind = kind

    def get(self, key: str, default: Any = None) -> Any:
        if key in self:
            return self[key]
        return default if is_path(key) else self._kind(key)  # raises now, with the known names


def _activation_class(registry: Names) -> type:
    """Return the class of what stands in Keras for an activation of a registry; Keras asks a class for its config."""

    class RegistryActivation:
        """An activation of a registry, as Keras calls, saves and loads it."""

        def __init__(self, spec: str) -> None:
            if not isinstance(spec, str) or is_path(spec):
                raise ActivationSpecError(f"{spec!r} is not accepted. Give the name of a registered activation.")
            resolved = registry.stored.resolve(spec)
            self._module = function_module(
                registry, resolved, "keras.layers.TorchModuleWrapper(lit_gelu.activations.create(...))"
            )
            self.spec = str(resolved)
            self.__name__ = self.spec

        def __call__(self, x: Tensor) -> Tensor:
            result: Tensor = self._module(x)
            return result

        def get_config(self) -> dict[str, str]:
            return {"spec": self.spec}

        @classmethod
        def from_config(cls, config: dict[str, str]) -> Self:
            return cls(**config)

        def __repr__(self) -> str:
            return f"RegistryActivation({self.spec!r})"

    return RegistryActivation
