"""Which activations of a model really run: seen at torch's operators, so that fused paths cannot hide them."""

import contextlib
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.surgery.activation_site import ActivationSite, Role
from lit_gelu.surgery.coverage_report import CoverageReport, CoveredSite, OutsideActivation
from lit_gelu.surgery.errors import SwapError
from lit_gelu.surgery.kernels import RECURRENT, kernel_name, kernel_spec
from lit_gelu.surgery.locations import Location, locate
from lit_gelu.surgery.observation import Key, key_of
from lit_gelu.surgery.passes import on_the_side, run, training_branches
from lit_gelu.surgery.sites import Survey, without_wrappers


def coverage(
    model: nn.Module, input_sample: Any, *, training: bool = False, registry: ActivationRegistry | None = None
) -> CoverageReport:
    """Run a sample through a model, and count which activations really ran.

    What counts as run is what reaches torch's operators, so a module that a fused kernel passes by is seen not to run,
    and what the kernel computes instead is seen to. The pass that is counted is made in evaluation mode without
    gradients, where such kernels are used; modes, buffers and random number generators are as before afterwards. A
    kernel of another library, Triton's among them, is no operator of torch: all that is seen is that the module it
    stands for never ran.

    Args:
        model: Any module; one that is compiled or set up by Lightning's Fabric is looked into.
        input_sample: A tensor, a tuple of ``forward``'s arguments, or a dict of them by name.
        training: Whether to count in training mode instead; dropout and batch normalisation stay in evaluation mode.
        registry: Says what an activation is; by default `lit_gelu.activations.registry`.

    Returns:
        The report.

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
    counter = _KernelCounter(survey, training=training)
    hook = register_module_forward_pre_hook(counter.note_module)
    try:
        mode = training_branches(survey.model) if training else contextlib.nullcontext()
        with on_the_side(survey.model), mode, counter:
            run(survey.model, input_sample)
    finally:
        hook.remove()
    sites = tuple(counter.covered(site) for site in survey.sites)
    return CoverageReport(sites, tuple(counter.outside.values()), registry, survey.notes)


class _KernelCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's __init_subclass__
    """Counts the operators that are activations, by the site in which they run."""

    def __init__(self, survey: Survey, *, training: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._survey = survey
        self._training = training
        self._own_modules = {id(module): module for module in survey.model.modules()}
        self._modules = dict(self._own_modules)  # and those that activation calls were seen to be of
        self._sites_of_modules = {id(site.module): site for site in survey.sites if site.kind == "module"}
        self._sites_of_keys = _by_key(survey)
        self._calls: Counter[str] = Counter()
        self._kernels: dict[str, Counter[str]] = {}
        self.outside: dict[tuple[Key, str], OutsideActivation] = {}

    def note_module(self, module: nn.Module, args: tuple[Any, ...]) -> None:  # noqa: ARG002 - a hook's signature
        """Count a call of an activation module; a hook that, unlike a module's own, leaves fused paths on."""
        if id(module) not in self._own_modules:
            self._find_foreign(module, locate(sys._getframe(1), self._own_modules))
        site = self._sites_of_modules.get(id(module))
        if site is not None:
            self._calls[site.name] += 1

    def _find_foreign(self, module: nn.Module, found: Location | None) -> None:
        """Learn which site the call of a module is that is no part of the model; at another time it may be another."""
        called = () if found is None else (s for key, s in self._sites_of_keys if key[:3] == key_of(found, "")[:3])
        site = next(iter(called), None)
        if site is not None:
            self._modules[id(module)] = module
            self._sites_of_modules[id(module)] = site

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = kernel_name(func)
        spec = kernel_spec(func, args, kwargs, self._survey.registry)
        if spec is not None or name in RECURRENT:
            self._note(name, spec)
        return func(*args, **kwargs)

    def _note(self, kernel: str, spec: ActivationSpec | None) -> None:
        found = locate(sys._getframe(2), self._modules)
        if found is None:
            return
        inside = next((s for m in found.chain if (s := self._sites_of_modules.get(id(m))) is not None), None)
        if inside is None:
            candidates = [s for key, s in self._sites_of_keys if key[:3] == key_of(found, "")[:3]]
            inside = next((s for s in candidates if spec is not None and s.spec.name == spec.name), None) or (
                candidates[0] if candidates else None
            )
            if inside is not None:
                self._calls[inside.name] += 1
        if inside is not None:
            self._kernels.setdefault(inside.name, Counter())[kernel] += 1
            return
        key = key_of(found, kernel), str(spec)
        before = self.outside[key].calls if key in self.outside else 0
        owner = self._survey.names_of(found.owner)[0]
        role: Role = "gate" if spec is None or self._survey.is_gate(spec) else "activation"
        self.outside[key] = OutsideActivation(owner, spec, kernel, role, before + 1, found.where)

    def covered(self, site: ActivationSite) -> CoveredSite:
        """Return what ran at a site."""
        where = tuple(dict.fromkeys(call.where for call in site.calls or ()))
        kernels = tuple(self._kernels.get(site.name, {}).items())
        calls = self._calls[site.name]
        training_only = not self._training and calls == 0 and bool(site.calls)
        return CoveredSite(site.name, site.spec, site.role, site.kind, calls, where, kernels, training_only)


def _by_key(survey: Survey) -> list[tuple[Key, ActivationSite]]:
    """Return the places of the code at which functions are called, with their sites."""
    seen = {} if survey.seen is None else {id(call): key for key, call in survey.seen.functions.items()}
    sites: Iterable[ActivationSite] = (site for site in survey.sites if site.kind != "module")
    return [(seen[id(call._seen)], site) for site in sites for call in site.calls or ()]
