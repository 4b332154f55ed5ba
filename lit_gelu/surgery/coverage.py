"""Which activations of a model really run: seen at torch's operators, so that fused paths cannot hide them."""

import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name that torch's own documentation gives it
from torch.utils._python_dispatch import TorchDispatchMode

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.display import Displayed, HtmlTable, count_of
from lit_gelu.errors import LitGeluError, SwapError
from lit_gelu.surgery.observation import FunctionTable, Key, before_every_module, key_of, locate, on_the_side, run
from lit_gelu.surgery.sites import ActivationSite, Role, Survey, is_gate, without_wrappers
from lit_gelu.surgery.source import Origin
from lit_gelu.surgery.swap import ActivationSelector


@dataclass(frozen=True, repr=False)
class CoveredSite(Displayed):
    """What ran at one site, or outside of all.

    Args:
        name: The site's name; outside of all, that of the module whose method ran.
        spec: What is computed; ``None`` for the gates within a recurrent kernel.
        role: ``"activation"`` or ``"gate"``.
        kind: ``"module"``, ``"attribute"`` or ``"call"``; ``"outside"`` where there is no site.
        calls: How often it was called.
        where: File and line of the calls.
        kernels: The activations among torch's operators that ran in it, with how often.
        training_only: Whether it did not run, but does in training mode.
    """

    name: str
    spec: ActivationSpec | None
    role: Role
    kind: str
    calls: int
    where: tuple[str, ...]
    kernels: tuple[tuple[str, int], ...]
    training_only: bool = False

    def __str__(self) -> str:
        idle = "runs in training alone" if self.training_only else "never ran"
        ran = f"{self.calls} call{'s' * (self.calls != 1)}" if self.calls else idle
        place, what = self.name or "(the model itself)", self.spec or "its own gates"
        if self.kind == "outside":
            place = f"{place}, {self.where[0]}"
            ((kernel, _),) = self.kernels
            if self.spec is None or self.spec.name != kernel:
                what = f"{what} in the kernel aten::{kernel}"
        return f"{place}: {what}, {ran}{' (gate)' * (self.role == 'gate')}"

    _summary = __str__


@dataclass(frozen=True, repr=False)
class CoverageReport(Displayed):
    """Which activations of a model ran in one pass.

    Args:
        sites: Every site, those that never ran among them.
        outside: What ran outside any site: in fused kernels, in TorchScript, in functions that hide it.
        registry: Where activations are looked up.
        notes: What could not be found out, in sentences.
        sequence: The names of the sites that ran, call by call.
    """

    sites: tuple[CoveredSite, ...]
    outside: tuple[CoveredSite, ...]
    registry: ActivationRegistry
    notes: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()

    def remaining(self, activation: Any) -> int:
        """Return the number of calls of an activation, wherever they ran.

        Args:
            activation: Any spec; ``"gelu"`` counts all its forms, ``"gelu(approximate='none')"`` the exact one alone.
        """
        selector = ActivationSelector(activation)
        rows = [(row.spec, row.calls) for row in (*self.sites, *self.outside) if row.spec is not None]
        return sum(calls for spec, calls in rows if selector.matches_spec(spec, self.registry))

    @property
    def never_ran(self) -> tuple[CoveredSite, ...]:
        """The sites that were not called, nor are in training: replacing what stands there changes nothing."""
        return tuple(row for row in self.sites if not row.calls and not row.training_only)

    def counts(self) -> dict[str, int]:
        """Return the number of calls of every activation, by the text of its spec; gates are left out."""
        totals: Counter[str] = Counter()
        for row in (*self.sites, *self.outside):
            if row.role == "activation" and row.calls:
                totals[str(row.spec)] += row.calls
        return dict(totals)

    def __str__(self) -> str:
        lines = [*map(str, self.sites)]
        if self.outside:
            lines += ["Ran outside any known site:", *(f"  {row}" for row in self.outside)]
        totals = ", ".join(f"{spec} {calls}" for spec, calls in self.counts().items())
        return "\n".join([*lines, *self.notes, f"Calls of activations: {totals or 'none'}."])

    def _summary(self) -> str:
        totals = ", ".join(f"{spec} {calls}" for spec, calls in self.counts().items()) or "no activation ran"
        never = f", {count_of(len(self.never_ran), 'site')} never ran" if self.never_ran else ""
        return f"{count_of(len(self.sites), 'site')}: {totals}{never}, {len(self.outside)} outside"

    def _html_table(self) -> HtmlTable:
        cells = [
            (
                f"{row.name or '(the model itself)'}{', outside any site' * (row.kind == 'outside')}",
                row.spec or row.kernels[0][0],
                row.role,
                row.calls,
                row.where,
            )
            for row in (*self.sites, *self.outside)
        ]
        return HtmlTable(("site", "activation", "role", "calls", "where"), cells, "coverage", self.notes)


def coverage(model: nn.Module, input_sample: Any, *, registry: ActivationRegistry | None = None) -> CoverageReport:
    """Return which activations of a model really ran, counted in a pass of a sample.

    What counts as run is what reaches torch's operators, so a module that a fused kernel passes by is seen not to run,
    and what the kernel computes instead is seen to. The pass that is counted is made in evaluation mode without
    gradients, where such kernels are used; modes, buffers and random number generators are as before afterwards. A
    kernel of another library, Triton's among them, is no operator of torch: all that is seen is that the module it
    stands for never ran.

    Args:
        model: Any module; one that is compiled or set up by Lightning's Fabric is looked into.
        input_sample: A tensor, a tuple of ``forward``'s arguments, or a dict of them by name.
        registry: Says what an activation is; by default `lit_gelu.activations.registry`.

    Raises:
        SwapError: If ``model`` is no module, there is no sample, or ``forward`` fails on it.

    Example:
        >>> import torch
        >>> layer = nn.TransformerEncoderLayer(4, 2, 8, activation=nn.ReLU(), batch_first=True)
        >>> layer.activation = nn.Tanh()  # evaluation goes on with ReLU
        >>> report = coverage(layer, torch.zeros(1, 3, 4))
        >>> report.remaining("relu"), report.remaining("tanh")
        (1, 0)
    """
    if not isinstance(model, nn.Module) or input_sample is None:
        raise SwapError("coverage takes a torch.nn.Module and an input_sample to run through it.")
    registry = registry or activations.registry
    survey = Survey(without_wrappers(model), input_sample, registry)
    counter = _KernelCounter(survey)
    with before_every_module(counter.note_module), on_the_side(survey.model), counter:
        run(survey.model, input_sample)
    sites = tuple(counter.covered(site) for site in survey.sites)
    return CoverageReport(sites, counter.outside(), registry, survey.notes, tuple(counter.sequence))


class _KernelCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's __init_subclass__
    """Counts the operators that are activations, by the site in which they run."""

    def __init__(self, survey: Survey) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._survey = survey
        self._own_modules = {id(module): module for module in survey.model.modules()}
        self._modules = dict(self._own_modules)  # and those that activation calls were seen to be of
        self._sites_of_modules = {id(site.module): site for site in survey.sites if site.kind == "module"}
        seen = {} if survey.seen is None else {id(call): key for key, call in survey.seen.functions.items()}
        called = [site for site in survey.sites if site.kind != "module"]
        self._sites_of_keys = [(seen[id(call)], site) for site in called for call in site.calls or ()]
        self._calls: Counter[str] = Counter()
        self.sequence: list[str] = []
        self._kernels: dict[str, Counter[str]] = {}
        self._outside: dict[tuple[Key, str], tuple[Origin, str, ActivationSpec | None]] = {}
        self._calls_outside: Counter[tuple[Key, str]] = Counter()

    def note_module(self, module: nn.Module, args: tuple[Any, ...]) -> None:  # noqa: ARG002 - a hook's signature
        """Count a call of an activation module; a hook that, unlike a module's own, leaves fused paths on."""
        if id(module) not in self._own_modules:
            # A module that is no part of the model: which site its call is may be another at another time.
            origin = locate(sys._getframe(1), self._own_modules)
            foreign = next(iter(self._called_at(origin)), None) if origin is not None else None
            if foreign is not None:
                self._modules[id(module)] = module
                self._sites_of_modules[id(module)] = foreign
        if (site := self._sites_of_modules.get(id(module))) is not None:
            self._calls[site.name] += 1
            self.sequence.append(site.name)

    def _called_at(self, origin: Origin) -> list[ActivationSite]:
        return [site for key, site in self._sites_of_keys if key[:3] == key_of(origin, "")[:3]]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = _kernel_name(func)
        spec = _kernel_spec(func, args, kwargs, self._survey.table)
        origin = locate(sys._getframe(1), self._modules) if spec is not None or name in _RECURRENT else None
        if origin is None:
            return func(*args, **kwargs)
        inside = next((s for m in origin.chain if (s := self._sites_of_modules.get(id(m))) is not None), None)
        if inside is None:
            called = self._called_at(origin)
            same = [site for site in called if spec is not None and site.spec.name == spec.name]
            inside = next(iter([*same, *called]), None)
            if inside is not None:
                self._calls[inside.name] += 1
                self.sequence.append(inside.name)
        if inside is not None:
            self._kernels.setdefault(inside.name, Counter())[name] += 1
        else:
            key = key_of(origin, name), str(spec)
            self._outside.setdefault(key, (origin, name, spec))
            self._calls_outside[key] += 1
        return func(*args, **kwargs)

    def outside(self) -> tuple[CoveredSite, ...]:
        rows = []
        for key, (origin, kernel, spec) in self._outside.items():
            owner, calls = self._survey.names_of(origin.owner)[0], self._calls_outside[key]
            role: Role = "gate" if spec is None or is_gate(spec, self._survey.registry) else "activation"
            rows.append(CoveredSite(owner, spec, role, "outside", calls, (origin.where,), ((kernel, calls),)))
        return tuple(rows)

    def covered(self, site: ActivationSite) -> CoveredSite:
        where = tuple(dict.fromkeys(call.where for call in site.calls or ()))
        kernels = tuple(self._kernels.get(site.name, {}).items())
        calls = self._calls[site.name]
        training_only = calls == 0 and bool(site.calls)
        return CoveredSite(site.name, site.spec, site.role, site.kind, calls, where, kernels, training_only)


_Arguments = Mapping[str, Any]
_SELU_SCALE = 1.0507009873554805


def _elu(arguments: _Arguments) -> ActivationSpec | None:
    if math.isclose(arguments["scale"], _SELU_SCALE, rel_tol=1e-6):
        return ActivationSpec("selu")
    return ActivationSpec.of("elu", alpha=float(arguments["alpha"])) if arguments["scale"] == 1 else None


def _fused(arguments: _Arguments) -> ActivationSpec | None:
    return ActivationSpec("gelu" if arguments["use_gelu"] else "relu")


# Operators that are no function of torch's by their name, or have other arguments than a spec.
_SPECS: Mapping[str, Callable[[_Arguments], ActivationSpec | None]] = {
    "_addmm_activation": _fused,
    "_prelu_kernel": lambda _: ActivationSpec("prelu"),
    "_transformer_encoder_layer_fwd": _fused,
    "elu": _elu,
    "hardtanh": lambda arguments: (
        ActivationSpec("relu6") if (arguments["min_val"], arguments["max_val"]) == (0, 6) else None
    ),
    "log_sigmoid": lambda _: ActivationSpec("log_sigmoid"),
    "log_sigmoid_forward": lambda _: ActivationSpec("log_sigmoid"),
    "prelu": lambda arguments: ActivationSpec.of("prelu", num_parameters=arguments["weight"].numel()),
}

# These hide sigmoids and tanhs, or ReLUs, that are never called by themselves.
_RECURRENT = frozenset({
    "_cudnn_rnn",
    "_thnn_fused_gru_cell",
    "_thnn_fused_lstm_cell",
    "miopen_rnn",
    "mkldnn_rnn_layer",
})


def _kernel_name(overload: Any) -> str:
    """Return the name of an ``OpOverload`` of ``aten``, without overload and underscore; empty for other libraries'."""
    namespace, _, name = str(overload.name()).partition("::")
    return name.partition(".")[0].rstrip("_") if namespace == "aten" else ""


def _kernel_spec(
    overload: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], table: FunctionTable
) -> ActivationSpec | None:
    """Return the canonical spec of what an ``OpOverload`` computes, ``None`` if it is no registered activation."""
    schema, name = overload._schema.arguments, _kernel_name(overload)
    arguments = {row.name: row.default_value for row in schema if row.has_default_value()}
    arguments |= {row.name: value for row, value in zip(schema, args, strict=False)} | dict(kwargs)
    function = table.find(getattr(F, name, None))
    if function is not None and name not in _SPECS:
        return table.spec(function, (), arguments)
    spec = _SPECS[name](arguments) if name in _SPECS else None
    try:
        return None if spec is None else table.registry.resolve(spec)
    except LitGeluError:  # the registry lacks it
        return None
