"""Names of the registry as ``hidden_act="gaussian_gelu"`` in transformers' configurations.

Its models hold references to two tables of ``transformers.activations``, so they are changed in place: ``ACT2FN`` gets
a subclass that asks the registry for what it lacks; ``ACT2CLS`` is a plain dictionary and gets the registered names.
A parameter that a checkpoint lacks (``"swish(learnable=True)"`` on one trained with ``"silu"``) is left by
``from_pretrained`` to the model's own initialisation, which does not know it: here it starts at its initial value.
"""

import functools
from typing import Any

import torch
from torch import nn

from lit_gelu.activations.errors import ActivationSpecError, UnknownActivationError
from lit_gelu.activations.integrations.installation import (
    Installation,
    added_since,
    import_library,
    is_path,
    names_of,
    present,
)
from lit_gelu.activations.naming.names import Names


def install(registry: Names, override: bool = False) -> Installation:
    """Make every name of a registry usable in transformers' configurations."""
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
            return super().__contains__(key) or (isinstance(key, str) and _resolves(registry, key))

    return RegistryTable


def _resolves(registry: Names, text: str) -> bool:
    """Return whether a text names a registered activation; wrong arguments of one are an error of their own."""
    try:
        return not is_path(text) and bool(registry.resolve(text, trusted=False))
    except (ActivationSpecError, UnknownActivationError):
        return False


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
