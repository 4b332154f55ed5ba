"""`audit`: do two artefacts compute the same activations, and if not, what does it cost?"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.audit.artefacts import Activation, Artefact, open_artefact
from lit_gelu.audit.cost import Cost, Exchange, told_by_outputs
from lit_gelu.audit.identify import Identification, identify
from lit_gelu.audit.report import AuditReport, AuditRow
from lit_gelu.display import count_of
from lit_gelu.errors import AuditError, LitGeluError
from lit_gelu.export.inputs import Call, as_array, named_outputs
from lit_gelu.export.parity.foreign import module_of

Pair = tuple[Activation, Activation]

_GRID = torch.linspace(-12, 12, 2401, dtype=torch.float64)
_SAME = 1e-6  # up to which two activations are one function there
_BY_OUTPUTS = "told by the outputs: the candidate does not show its activations"


def audit(
    reference: Any,
    candidate: Any,
    data: Any = None,
    input_sample: Any = None,
    *,
    strict: bool = True,
    registry: ActivationRegistry | None = None,
) -> AuditReport:
    """Compare the activations of two artefacts by their values, and say what a mismatch costs.

    Each is a module, an ONNX file of any exporter, a folder as transformers, timm or open_clip save it (its weights are
    read from safetensors, none of its code is run), a function, or the name of an activation. Activations are paired by
    the names of the modules that call them, else by the order of the calls. Each distinct one is cut out and told from
    its values by `identify`, whatever its name says; a call such as ``F.gelu(x)`` in a ``forward``, by the function.

    The cost is measured in the reference alone: with the candidate's activation in the place of its own, its outputs
    on the data change by so much, and all else that the two differ in is left out of it.

    Args:
        reference: What is right.
        candidate: What is asked about; where it does not show its activations (a function of the reference's inputs),
            that form is named whose outputs are nearest in the reference.
        data: A tensor, a DataLoader, or a LightningDataModule; with labels, the change of the metric is given.
        input_sample: What the modules are run with; by default ``example_input_array``.
        strict: Whether a difference raises; else read ``report.passed``.
        registry: Names activations; by default `lit_gelu.activations.registry`.

    Returns:
        A row for each site, and the costs.

    Raises:
        AuditError: If the artefacts cannot be run or matched, or if they differ and ``strict`` is true; its ``report``
            is ``None`` in the first case.
        ModelFileError: If a file is missing or damaged.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.GELU(approximate="tanh"), nn.Linear(8, 3))
        >>> port = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
        >>> _ = port.load_state_dict(net.state_dict())
        >>> report = audit(net, port, input_sample=torch.randn(2, 4), strict=False)
        >>> report.passed, report.rows[0].site, report.rows[0].reference, report.rows[0].computed
        (False, '1', "gelu(approximate='tanh')", 'gelu')
    """
    registry = registry_or_default(registry)
    first = open_artefact(reference, input_sample, registry)
    if not first.activations:
        raise AuditError(f"{first.label} calls no activation that is known. Give a reference with activations.")
    of_inputs = callable(candidate) and not isinstance(candidate, nn.Module | type) and first.module is not None
    second = _of_inputs(candidate) if of_inputs else open_artefact(candidate, input_sample, registry)
    exchange = None if first.call is None else Exchange(first, data, registry)
    identities = _Identities(registry)
    if second.activations or second.run is None:
        sites: dict[tuple[str, str, str | None], list[Pair]] = {}
        for mine, other in _paired(first, second):
            sites.setdefault((mine.name or other.name, other.implemented, other.spec), []).append((mine, other))
        rows = [_row(calls, identities, registry) for calls in sites.values()]
    elif exchange is None:
        raise AuditError(
            f"{second.label} does not show its activations, and {first.label} was not run, so that outputs cannot be "
            "compared. Give a module as the reference, and input_sample=."
        )
    else:
        rows = list(_rows_by_outputs(first, second, exchange, identities))
    costs, notes = ([], []) if exchange is None else _costs(rows, exchange, second)
    report = AuditReport(first.label, second.label, tuple(rows), tuple(costs), (*first.notes, *second.notes, *notes))
    if strict and not report.passed:
        raise AuditError(f"{report._summary()}. AuditError.report holds every site.", report)
    return report


def _costs(rows: Sequence[AuditRow], exchange: Exchange, candidate: Artefact) -> tuple[list[Cost], list[str]]:
    """Return what each kind of mismatch costs, or why that was not measured."""
    names: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.agrees is False and row.reference and row.computed and row.reference != row.computed:
            names.setdefault((row.reference, row.computed), []).append(row.site)
    costs, notes = [], []
    for (expected, computed), sites in names.items():
        try:
            costs.append(exchange.cost(sites, expected, computed, candidate))
        except LitGeluError as error:
            notes.append(f"what {computed} for {expected} costs was not measured: {error}")
    return costs, notes


class _Identities:
    """What activations compute, each distinct one identified once."""

    def __init__(self, registry: ActivationRegistry) -> None:
        self._registry = registry
        self._known: dict[object, Identification | str] = {}

    def of(self, activation: Activation) -> Identification | str:
        """Return what an activation computes, or why that is not known."""
        function = activation.function
        if function is None:
            if activation.spec is None:
                return f"{activation.implemented} cannot be run alone"
            # A call of a function that torch has, or a name: there is nothing but this to go by.
            return Identification(activation.spec, ())
        # Two functions of one name may be two; of a module whose class says all, any other is the same.
        by_class = isinstance(function, nn.Module) and "forward" not in vars(function) and not [*function.parameters()]
        of_its_own = () if by_class and activation.spec else (activation.name, id(function))  # artefacts hold functions
        key = (activation.implemented, activation.spec, activation.dtype, of_its_own)
        if key not in self._known:
            try:
                self._known[key] = identify(function, activation.dtype, registry=self._registry)
            except LitGeluError as error:
                self._known[key] = str(error)
        return self._known[key]


def _paired(reference: Artefact, candidate: Artefact) -> list[Pair]:
    """Return the activations of two artefacts in pairs, call by call: by the names of modules, else by order."""
    first, second = reference.activations, candidate.activations
    pairs = _paired_by_name(first, second)
    if pairs is None and len(first) == len(second):
        pairs = list(zip(first, second, strict=True))
    if pairs is None:
        raise AuditError(
            f"The activations of {reference.label} and {candidate.label} cannot be matched: the one calls "
            f"{_listed(first)}, the other {_listed(second)}. Give the parts of both that belong together."
        )
    return pairs


def _paired_by_name(first: Sequence[Activation], second: Sequence[Activation]) -> list[Pair] | None:
    """Pair by the modules' names, of which one artefact's may have more in front; ``None`` if they do not tell."""
    modules = [each.scope for each in first]
    groups: dict[str, list[Activation]] = {}
    for each in second:
        groups.setdefault(module_of(each.scope, modules), []).append(each)
    if any(modules.count(name) != len(group) for name, group in groups.items()) or groups.keys() != {*modules}:
        return None
    waiting = {name: iter(group) for name, group in groups.items()}
    return [(each, next(waiting[name])) for each, name in zip(first, modules, strict=True)]


def _listed(activations: Sequence[Activation]) -> str:
    names = [each.spec or each.implemented for each in activations]
    counted = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
    return f"{count_of(len(names), 'activation')} ({counted})" if names else "none that is known"


def _row(calls: Sequence[Pair], identities: _Identities, registry: ActivationRegistry) -> AuditRow:
    mine, other = calls[0]
    here, there = identities.of(mine), identities.of(other)
    declared = other.declared or mine.declared
    notes: list[str] = []
    agrees: bool | None
    if isinstance(here, str) or isinstance(there, str):
        notes += [f"reference: {here}"] if isinstance(here, str) else []
        notes += [f"candidate: {there}"] if isinstance(there, str) else []
        agrees = None
    else:
        agrees = _agree(here, there, registry)
        notes += [str(there)] if there.spec is None else [f"candidate: {fault}" for fault in there.faults]
        notes += [f"reference: {fault}" for fault in here.faults]
        if set(there.faults) - set(here.faults):
            agrees = False
    for each, identity in ((mine, here), (other, there)):
        if each.declared and isinstance(identity, Identification) and not _declares(each, identity, registry):
            notes.append(f"declared as {each.declared}, which is another activation")
            agrees = False
    return AuditRow(
        site=mine.name or other.name,
        calls=len(calls),
        reference=_name(here, mine),
        declared=declared,
        implemented=other.implemented,
        computed=_name(there, other),
        agrees=agrees,
        notes=tuple(notes),
    )


def _name(identity: Identification | str, activation: Activation) -> str:
    return (activation if isinstance(identity, str) else identity).spec or ""


def _agree(here: Identification, there: Identification, registry: ActivationRegistry) -> bool | None:
    """Return whether two functions are one activation; ``None`` if their values do not tell."""
    if here.spec is None:
        return None
    if there.spec is None:
        return False
    if here.spec in there.specs or there.spec in here.specs:
        tied = here.spec in there.tied or there.spec in here.tied
        return None if tied or not (here.decided and there.decided) else True
    return _are_equal(here.spec, there.spec, registry)  # a call gives its arguments, and values show them in float32


def _are_equal(first: object, second: object, registry: ActivationRegistry) -> bool:
    """Return whether two specs are one function to float32's rounding."""
    try:
        one, other = (registry.create(spec, trusted=False).double() for spec in (first, second))
        with torch.no_grad():
            return bool(torch.allclose(one(_GRID), other(_GRID), rtol=0, atol=_SAME))
    except (LitGeluError, RuntimeError):  # of several channels, or no function of one number
        return False


def _declares(activation: Activation, identity: Identification, registry: ActivationRegistry) -> bool:
    """Return whether a declaration is what the values show; one in words that no registry has is not judged."""
    for text in (activation.declared, activation.declared.partition("=")[2]):  # gelu(approximate='tanh'), act=gelu
        with suppress(LitGeluError):
            spec = registry.resolve(text, trusted=False)
            if identity.spec is None or str(spec) in identity.specs:
                return identity.spec is not None
            return _are_equal(spec, identity.spec, registry)
    return True


def _of_inputs(function: Callable[..., Any]) -> Artefact:
    """Return a function of a model's inputs as an artefact that does not show its activations."""

    def run(call: Call) -> list[np.ndarray]:
        output = function(*(tensor.clone() for tensor in call.tensors))
        if isinstance(output, np.ndarray):
            return [output]
        return [as_array(tensor) for _, tensor in named_outputs(output)]

    return Artefact(getattr(function, "__qualname__", type(function).__name__), (), run=run)


def _rows_by_outputs(
    first: Artefact, second: Artefact, exchange: Exchange, identities: _Identities
) -> Iterator[AuditRow]:
    """Give a row for each activation of the reference, as far as outputs show what takes its place."""
    groups: dict[str, list[Activation]] = {}
    for activation in first.activations:
        groups.setdefault(_name(identities.of(activation), activation), []).append(activation)
    for spec, activations in groups.items():
        names = [activation.name for activation in activations]
        nearest, certain = told_by_outputs(exchange, names, spec, second) if spec else ("", False)
        for name in dict.fromkeys(names):
            yield AuditRow(
                site=name,
                calls=names.count(name),
                reference=spec,
                declared=activations[0].declared,
                implemented=second.label,
                computed=nearest if certain else "",
                agrees=nearest == spec if certain else None,
                notes=(_BY_OUTPUTS,),
            )
