"""A preset without its base: what `gelu_tanh` stands for where somebody has registered another `gelu`."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from lit_gelu.activations.errors import UnknownArgumentsError
from lit_gelu.activations.naming.entry import ActivationEntry
from lit_gelu.activations.naming.forms import ModuleForm, ReadArguments


def standalone(preset: ActivationEntry) -> ActivationEntry:
    """Return the row of a preset that computes what its base does, under the preset's own name."""
    if preset.preset is None or preset.base is None:
        raise ValueError(f"{preset.name!r} is a row of its own. Give one with preset and base.")
    base = preset.base if preset.base.base is None else standalone(preset.base)
    arguments = preset.preset.arguments
    return replace(
        base,
        name=preset.name,
        aliases=preset.aliases,
        registered_by=preset.registered_by,
        build=preset.build,
        function=_bound(base.function, arguments),
        derivative=_bound(base.derivative, arguments),
        joint=_bound(base.joint, arguments),
        # A closed form may hold for the usual arguments alone; quadrature holds for all.
        moments=None if arguments else base.moments,
        facts=functools.partial(base.facts, **arguments) if callable(base.facts) else base.facts,
        modules=tuple(_form(form, arguments) for form in base.modules),
        functions=_functions(base, arguments),
        calls=() if arguments else base.calls,
        # The exporter knows modules of this package whatever their name is. Recipes may ask for the arguments.
        onnx=None,
        preset=None,
        base=None,
    )


@dataclass(frozen=True)
class PresetArguments:
    """Reads the arguments of a module's spec beside those that a preset gives."""

    read: ReadArguments
    given: tuple[tuple[str, Any], ...]

    def __call__(self, module: nn.Module) -> dict[str, Any]:
        """Read them; a module with other arguments than the preset's raises `UnknownArgumentsError`."""
        found = self.read(module)
        for key, value in self.given:
            if found.pop(key, None) != value:
                raise UnknownArgumentsError(f"{type(module).__qualname__} was not built with {key}={value!r}.")
        return found


def _bound(function: Callable[..., Any] | None, arguments: dict[str, Any]) -> Callable[..., Any] | None:
    return function if function is None or not arguments else functools.partial(function, **arguments)


def _form(form: ModuleForm, arguments: dict[str, Any]) -> ModuleForm:
    # What is computed now is read with all arguments, which take the place of those that are bound.
    return replace(form, read=PresetArguments(form.read, tuple(arguments.items())), live=form.live or form.read)


def _functions(
    base: ActivationEntry, arguments: dict[str, Any]
) -> tuple[tuple[Callable[..., Any], tuple[tuple[str, Any], ...]], ...]:
    """Return the functions that stand for the preset, with the arguments that they stand for beside it."""
    return tuple(
        (function, tuple((key, value) for key, value in stands_for if key not in arguments))
        for function, stands_for in base.functions
        if arguments.items() <= dict(stands_for).items()
    )
