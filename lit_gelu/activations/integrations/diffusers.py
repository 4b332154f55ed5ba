"""Names of the registry as ``UNet2DModel(act_fn="gaussian_gelu")`` in diffusers.

Its models call ``get_activation`` of ``diffusers.models.activations``, which asks the table ``ACT2CLS`` beside it.
The table is replaced by a subclass that asks the registry for what it lacks. Names are put into lower case first, as in
timm. The ``activation_fn`` of its ``FeedForward`` is a list of cases and no look-up: names of others cannot get there.
"""

import functools
from typing import Any

from lit_gelu.activations.integrations.installation import (
    Installation,
    added_since,
    from_lower_case,
    import_library,
    is_path,
    names_of,
    present,
)
from lit_gelu.activations.naming.names import Names


def install(registry: Names, override: bool = False) -> Installation:
    """Make every name of a registry usable where diffusers looks an activation up."""
    found = present("diffusers", registry, override)
    if found is not None:
        return found
    module: Any = import_library("diffusers.models.activations", "diffusers")
    before = module.ACT2CLS
    taken = set(names_of(registry)) if override else set()
    own = {key: value for key, value in before.items() if key not in taken}
    module.ACT2CLS = _DiffusersTable(own, registry)

    def undo() -> None:
        before.update(added_since(module.ACT2CLS, own))
        module.ACT2CLS = before

    return Installation("diffusers", registry, override, undo)


class _DiffusersTable(dict[str, Any]):
    """diffusers' table, which asks the registry for the keys it lacks; ``get_activation`` asks ``in`` first."""

    def __init__(self, content: dict[str, Any], registry: Names) -> None:
        super().__init__(content)
        self._registry = registry

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (isinstance(key, str) and not is_path(key))

    def __missing__(self, key: str) -> Any:
        spec = self._registry.stored.resolve(from_lower_case(key))  # raises now, with the known names
        return functools.partial(self._registry.create, spec)
