"""`ActivationWatch`: hooks on the activations of a model in training, whatever becomes of it."""

import fnmatch
import glob
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities import rank_zero_warn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.callbacks.errors import NoActivationError
from lit_gelu.callbacks.trainer_facts import on_device
from lit_gelu.curvature import HistogramBins, watchable_sites
from lit_gelu.curvature.activation.module_tree import ModuleTree
from lit_gelu.curvature.activation_measurement import ActivationMeasurement, Figures


class ActivationWatch:
    """Records activations with an `ActivationMeasurement` of a model, and with another one when modules were replaced.

    Args:
        include: Patterns for the names of the sites.
        input_sample: As `ActivationCurvatureMonitor`, like the rest.
        registry: Where activations are looked up; ``None`` for the default registry.
        sample_rows: How many rows.
        dead_unit_window: How many measurements.
        histograms: The bins of histograms; ``None`` for none.

    Attributes:
        measurement: While hooks are on: what measures.
        recording: Whether it records.
    """

    def __init__(
        self,
        include: Sequence[str],
        input_sample: Any,
        registry: ActivationRegistry | None,
        sample_rows: Any,
        dead_unit_window: int | None,
        histograms: HistogramBins | None,
    ) -> None:
        self.measurement: ActivationMeasurement | None = None
        self.recording = False
        self._include = include
        self._input_sample = input_sample
        self._registry = registry
        self._sample_rows = sample_rows
        self._dead_unit_window = dead_unit_window
        self._histograms = histograms
        self._tree: ModuleTree | None = None
        self._warned: set[str] = set()
        self._state: dict[str, Any] | None = None

    def begin(self, model: LightningModule) -> None:
        """Put hooks on for a fit, and go on from the state that was loaded, or from that of the last fit.

        Args:
            model: The model.

        Raises:
            NoActivationError: If there is no site.
        """
        state, self._state = self._state, None
        self._warned.clear()
        self._attach(model)
        if state is not None and self.measurement is not None:
            self.measurement.load_state_dict(state, model.device)

    def follow(self, model: LightningModule) -> bool:
        """Attach anew if a module of the model was replaced, added or removed; what was recorded is lost then.

        Where nothing is left to watch, a warning says so, and nothing is watched until the model changes again.

        Args:
            model: The model.

        Returns:
            Whether that was so.
        """
        if self._tree is None or self._tree.is_unchanged():
            return False
        try:
            self._attach(model)
        except NoActivationError as error:
            self._warn_once("", str(error))
        return True

    def end(self) -> None:
        """Take the hooks off; the state stays."""
        self._state = self.state_dict()
        self._detach()

    def start(self, seed: int, device: torch.device) -> None:
        """Record from now on, if there is anything to watch.

        Args:
            seed: Which rows are drawn.
            device: Where the inputs will be.
        """
        if self.measurement is not None:
            self.recording = True
            self.measurement.recorder.start(seed, device)

    def stop(self) -> None:
        """Stop recording."""
        self.recording = False
        if self.measurement is not None:
            self.measurement.recorder.stop()

    def pause(self) -> None:
        """Do not record for now."""
        if self.recording and self.measurement is not None:
            self.measurement.recorder.pause()

    def resume(self) -> None:
        """Go on recording."""
        if self.recording and self.measurement is not None:
            self.measurement.recorder.resume()

    def reduce_those_with_parameters(self) -> None:
        """Sum what belongs to activations whose parameters are about to be trained."""
        if self.recording and self.measurement is not None:
            self.measurement.recorder.reduce_those_with_parameters()

    def state_dict(self) -> dict[str, Any] | None:
        """Return the state of what measures, or measured last."""
        return self._state if self.measurement is None else self.measurement.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any] | None) -> None:
        """Remember a state for the next fit.

        Args:
            state_dict: As `state_dict` returned; ``None`` to begin anew.
        """
        self._state = state_dict

    def _attach(self, model: LightningModule) -> None:
        """Put hooks on all sites that are to be watched."""
        self._detach()
        self._tree = ModuleTree(model)
        registry = registry_or_default(self._registry)
        sample = None if self._input_sample is None else on_device(self._input_sample, model.device)
        seen: list[str] = []

        def wanted(name: str) -> bool:
            seen.append(name)
            return any(fnmatch.fnmatchcase(name, pattern) for pattern in self._include)

        def named(name: str) -> bool:  # as in `lit_gelu.surgery.swap`: a pattern does not catch a gate
            return not {name, glob.escape(name)}.isdisjoint(self._include)

        sites = watchable_sites(model, sample, registry=registry, accept=wanted, accept_gate=named)
        for site, reason in sites.refused.items():
            self._warn_once(site, f"ActivationCurvatureMonitor cannot observe {site!r}: {reason}.")
        if not sites.calls:
            sites.remove()
            raise NoActivationError(self._nothing_to_watch(model, dict.fromkeys(seen), sites.gates))
        self.measurement = ActivationMeasurement(
            sites, self._sample_rows, registry, self._dead_unit_window, self._histograms
        )

    def _detach(self) -> None:
        if self.measurement is not None:
            self.measurement.detach()
        self.measurement = None
        self.recording = False
        self._tree = None

    def warn_of_sites_not_called(self, figures: Figures) -> None:
        """Say once of each site that it was not called; its share of non-finite inputs is NaN then.

        Args:
            figures: The measured ones.
        """
        silent: Iterable[str] = (
            site for site, row in figures.items() if row["share_non_finite"] != row["share_non_finite"]
        )
        for site in sorted(silent):
            self._warn_once(
                site,
                f"ActivationCurvatureMonitor logs nothing for {site!r}: it was not called in the training step, "
                "or its input was overwritten before the backward pass, or torch.compile goes on with code from before "
                "the hooks were on (torch._dynamo.reset() lets it compile anew).",
            )

    def _nothing_to_watch(self, model: LightningModule, names: Iterable[str], gates: Sequence[str]) -> str:
        gate_hint = f"; its gates, which are watched if include= names them in full: {', '.join(gates)}"
        return (
            f"ActivationCurvatureMonitor(include={list(self._include)}) finds nothing to watch in "
            f"{type(model).__name__}. Its activations: {', '.join(names) or 'none'}{gate_hint if gates else ''}. Calls "
            "of functions such as F.gelu are found with input_sample=, a batch for forward; otherwise use activation "
            "modules."
        )

    def _warn_once(self, site: str, message: str) -> None:
        if site not in self._warned:
            self._warned.add(site)
            rank_zero_warn(message)
