"""The activations that a module calls: registered ones, and elementwise modules of classes that nobody registered."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.audit.black_box import BlackBox
from lit_gelu.audit.number_format import FloatFormat
from lit_gelu.errors import AuditError, LitGeluError, SwapError
from lit_gelu.export.inputs import Call
from lit_gelu.export.parity.foreign import called_sites, scope_of

_FLOAT32 = FloatFormat(torch.float32)
_PROPORTIONAL = 1e-5  # of the largest value: up to which a module is a multiple of the activation that it calls


def called_specs(module: nn.Module, call: Call, registry: ActivationRegistry) -> list[tuple[str, str | None]]:
    """Return name and spec of each activation that a module calls on a sample, call by call; gates are left out.

    A module of a class that nobody registered, which is elementwise and has no parameters, is an activation too: its
    spec is ``None``, and what it calls on its way is a part of it.

    Raises:
        AuditError: If the module cannot be run.
    """
    try:
        rows, calls = called_sites(module, call, registry)
    except SwapError as error:
        raise AuditError(f"{type(module).__name__} cannot be run: {error}") from error
    specs = {name: None if row.spec is None or row.spec.opaque else str(row.spec) for name, row in rows.items()}
    sequence = [name for name in calls if rows[name].role != "gate"]
    modules = dict(module.named_modules())
    order = _order(module, call)
    for name in _elementwise(modules, order, rows):
        inner = [other for other in dict.fromkeys(sequence) if scope_of(other, modules) == name]
        if len(inner) == 1 and _is_multiple(modules[name], specs[inner[0]], registry):
            continue  # such as GammaAct of timm: an activation times a constant
        specs[name] = None
        sequence = [other for other in sequence if other not in inner]
        sequence += [name] * sum(1 for other, *_ in order if other == name)
    if {*sequence} <= modules.keys():  # else nobody knows when the calls are made
        numbers = {name: i for i, (name, *_) in reversed([*enumerate(order)])}
        sequence.sort(key=lambda name: numbers.get(name, 0))
    return [(name, specs[name]) for name in sequence]


def function_of(name: str, modules: Mapping[str, nn.Module]) -> Callable[[Any], Any] | None:
    """Return the module or the held function of a name; ``None`` for a call that is written in a ``forward``."""
    if name in modules:
        return modules[name]
    held = getattr(modules[scope_of(name, modules)], name.rpartition(".")[2], None)
    return held if callable(held) else None


def _order(module: nn.Module, call: Call) -> list[tuple[str, bool]]:
    """Return the name of each module that runs, in order, and whether its output is of the shape of its only input."""
    order: list[tuple[str, bool]] = []

    def note(name: str, args: tuple[Any, ...], output: Any) -> None:
        match (*args, output):
            case (Tensor() as x, Tensor() as y) if x.shape == y.shape and x.is_floating_point():
                order.append((name, not torch.equal(x, y)))
            case _:
                order.append((name, False))

    handles = [
        part.register_forward_hook(lambda _, args, output, name=name: note(name, args, output))
        for name, part in module.named_modules()
    ]
    try:
        args, kwargs = call.arguments([tensor.clone() for tensor in call.tensors])
        with torch.no_grad():
            module(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return order


def _elementwise(
    modules: Mapping[str, nn.Module], order: list[tuple[str, bool]], sites: Mapping[str, Any]
) -> Iterator[str]:
    """Give the names of modules without parameters or parts, and no sites, that are elementwise functions."""
    for name in dict.fromkeys(name for name, alike in order if alike and name not in sites):
        part = modules[name]
        if next(part.children(), None) is None and next(part.parameters(), None) is None:
            try:
                BlackBox(part, _FLOAT32)
            except LitGeluError:
                continue
            yield name


def _is_multiple(part: nn.Module, spec: str | None, registry: ActivationRegistry) -> bool:
    """Return whether a module is a constant times the activation that it calls, but for rounding."""
    if spec is None:
        return False
    x = _FLOAT32.core_inputs()
    values, y = registry.create(spec, trusted=False).double()(x).detach(), BlackBox(part, _FLOAT32)(x)
    factor = (values * y).sum() / values.square().sum()
    return bool((y - factor * values).abs().max() <= _PROPORTIONAL * y.abs().max())
