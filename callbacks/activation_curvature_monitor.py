"""`ActivationCurvatureMonitor`: logs, during training, what every activation is given and how curved it is there."""

import fnmatch
from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from typing_extensions import override

from lit_gelu import activations, surgery
from lit_gelu.activations import ActivationRegistry
from lit_gelu.callbacks.errors import CallbackArgumentError, NoActivationError
from lit_gelu.callbacks.log_records import log_figures, require_logger
from lit_gelu.callbacks.packages import refuse_mixed_packages
from lit_gelu.callbacks.reduction import sum_over_ranks
from lit_gelu.callbacks.trainer_facts import is_trial_run, logged_step, steps_of_run
from lit_gelu.curvature import ActivationRecorder, statistics_by_site
from lit_gelu.surgery import ActivationSite, SwapReport


class ActivationCurvatureMonitor(Callback):
    """Logs ``curvature/<site>/<statistic>`` for every activation, every ``every_n_steps`` optimizer steps.

    The statistics are those of `lit_gelu.curvature.statistics_from_sums`: mean and standard deviation of the
    pre-activation, the shares where f' < 0, |f'| < 0.01 and |f' - 1| < 0.01, the means of |f''|, f'^2 and the gate
    f(x) / x, and the share of NaN and infinite inputs. A site is an activation module that
    `lit_gelu.surgery.find_sites` lists with the role "activation", if it is elementwise. Calls of functions (``F.gelu``
    in a ``forward``) and functions that a module holds are no modules, and what they are given is not measured; what
    `lit_gelu.surgery.swap` or `ActivationSwap`, given an ``input_sample``, puts in their place is a module, and is.

    *When.* At the steps at which Lightning itself logs with ``log_every_n_steps`` of the same value (the 50th, the
    100th, ...), under the same step number. The Trainer's own ``log_every_n_steps`` does not gate it: a figure that was
    asked for is never dropped. Under gradient accumulation the first micro-batch of such a step is measured. Validation
    and sanity checks are not.

    *What counts.* All calls of a site's module in the training step, outside of the backward pass (what activation
    checkpointing computes again does not count twice), of all ranks together. Calls for which the module is switched to
    evaluation within the step do not count. Figures are left out for a site that was not called, with a warning, and
    those that are not defined (``mean_gate`` where f(0) != 0).

    *What it costs.* Rows are copied in the forward pass; after the step there is one reduction, one all-reduce over
    ranks and one transfer to the host for all sites. Rows are drawn by a generator of its own, from ``seed``, the step
    and the rank: training is bitwise the same with and without the monitor, and a resumed run draws what an
    uninterrupted one draws, so it needs no state in the checkpoint.

    When activations are replaced, it follows: `ActivationSwap` announces itself, and at each measurement the model is
    compared with what the hooks are on.

    Args:
        every_n_steps: How many optimizer steps lie between two measurements.
        sample_rows: How many rows of each input to use on each rank (see `lit_gelu.curvature.count_rows`); ``None``
            means all. A row holds every channel: 128 rows of 64 channels put a standard error of 0.5 % on a share
            of 1/4.
        include: Shell-style patterns for the names of the sites to watch; one or several.
        seed: Which rows are drawn.
        registry: Where activations are looked up; ``None`` means `lit_gelu.activations.registry`.

    Attributes:
        latest: The figures of the last measurement, by site and statistic, on every rank.

    Raises:
        CallbackArgumentError: If a number is not positive.
        NoLoggerError: At the start of a fit, if the Trainer has no logger.
        NoActivationError: At the start of a fit, if the model has no site, or none that ``include`` matches.

    Example:
        >>> monitor = ActivationCurvatureMonitor(every_n_steps=100, include=["encoder.*", "decoder.*"])
        >>> monitor.latest
        {}
    """

    def __init__(
        self,
        every_n_steps: int = 50,
        sample_rows: int | None = 128,
        include: str | Sequence[str] = "*",
        seed: int = 0,
        registry: ActivationRegistry | None = None,
    ) -> None:
        if every_n_steps < 1:
            raise CallbackArgumentError(f"{every_n_steps=} is not accepted. Give a positive number.")
        if sample_rows is not None and sample_rows < 1:
            raise CallbackArgumentError(f"{sample_rows=} is not accepted. Give a positive number, or None for all.")
        self.every_n_steps = every_n_steps
        self.sample_rows = sample_rows
        self.include = (include,) if isinstance(include, str) else tuple(include)
        self.seed = seed
        self.registry = registry
        self.latest: dict[str, dict[str, float]] = {}
        self._recorder: ActivationRecorder | None = None
        self._modules: list[nn.Module] = []
        self._recording = False
        self._overdue = False
        self._measured_step = -1
        self._not_called: set[str] = set()

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse a Trainer that fits without a logger."""
        refuse_mixed_packages(trainer, pl_module)
        if stage == "fit":
            require_logger(trainer, type(self).__name__)

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the hooks on before the first forward pass: a compiled one keeps the hooks it was compiled with."""
        self.latest = {}
        self._overdue = False
        self._measured_step = -1
        self._not_called.clear()
        self._attach(pl_module)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn if the run is too short for a single measurement."""
        steps = steps_of_run(trainer)
        if steps < self.every_n_steps and not is_trial_run(trainer):
            rank_zero_warn(
                f"ActivationCurvatureMonitor(every_n_steps={self.every_n_steps}) will measure nothing: this run has "
                f"{steps} steps. Set every_n_steps to {steps} or less."
            )

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin to record if a measurement is due."""
        step = logged_step(trainer)
        due = step != self._measured_step and (step + 1) % self.every_n_steps == 0
        if due or self._overdue:
            self._follow(pl_module)
            self._start(trainer)

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Pause: activation checkpointing calls the activations again in the backward pass."""
        if self._recording and self._recorder is not None:
            self._recorder.pause()

    @override
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on: a training step with several backward passes may call the activations again."""
        if self._recording and self._recorder is not None:
            self._recorder.resume()

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Reduce and log what was recorded."""
        if not self._recording or self._recorder is None:
            return
        self._stop()
        self._overdue = self._follow(pl_module)  # replaced since the batch began: the next batch is measured instead
        if self._overdue:
            return
        self._measured_step = logged_step(trainer)
        sums = sum_over_ranks(self._recorder.sums(pl_module.device))
        self.latest = statistics_by_site(self._recorder.sites, sums)
        self._warn_of_sites_not_called()
        log_figures(
            trainer,
            {("curvature", site, name): value for site, row in self.latest.items() for name, value in row.items()},
        )

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop recording: a batch that the module skipped has no end of its own."""
        self._stop()

    def on_activations_swapped(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        report: SwapReport | None,  # noqa: ARG002 - the listener's signature
    ) -> None:
        """Put the hooks on the new activations; see `ActivationSwapListener`."""
        recording = self._recording
        if self._recorder is not None and self._follow(pl_module) and recording:
            self._start(trainer)

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Take the hooks off."""
        self._detach()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the hooks off."""
        self._detach()

    def _start(self, trainer: Trainer) -> None:
        """Record from now on, with rows that depend on seed, step and rank alone."""
        if self._recorder is not None:
            self._recording = True
            seed = (self.seed * 1_000_003 + logged_step(trainer)) * 65_537 + trainer.global_rank
            self._recorder.start(seed % 2**63)

    def _stop(self) -> None:
        self._recording = False
        if self._recorder is not None:
            self._recorder.stop()

    def _attach(self, pl_module: LightningModule) -> None:
        """Put hooks on all sites that are to be watched."""
        self._detach()
        self._modules = list(pl_module.modules())
        found = {
            site.name: site.module
            for site in surgery.find_sites(pl_module, registry=self.registry)
            if site.kind == "module" and site.role == "activation" and _is_elementwise(site, self.registry)
        }
        sites = {
            name: module
            for name, module in found.items()
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.include)
        }
        if not sites:
            raise NoActivationError(
                f"ActivationCurvatureMonitor(include={list(self.include)}) finds nothing to watch in "
                f"{type(pl_module).__name__}. Its activations: {', '.join(found) or 'none'}. Calls of functions such "
                "as F.gelu are not measured: use activation modules, or let lit_gelu.surgery.swap(model, targets, "
                "input_sample) put modules in their place."
            )
        self._recorder = ActivationRecorder(sites, self.sample_rows, self.registry)

    def _follow(self, pl_module: LightningModule) -> bool:
        """Attach anew if a module of the model was replaced, added or removed; return whether that was so."""
        modules = list(pl_module.modules())
        if len(modules) == len(self._modules) and all(a is b for a, b in zip(modules, self._modules, strict=True)):
            return False
        self._attach(pl_module)
        return True

    def _detach(self) -> None:
        """Take the hooks off."""
        if self._recorder is not None:
            self._recorder.detach()
        self._recorder = None
        self._recording = False
        self._modules = []

    def _warn_of_sites_not_called(self) -> None:
        """Say once of each site that it was not called; its share of non-finite inputs is NaN then."""
        missing = {site for site, row in self.latest.items() if row["share_non_finite"] != row["share_non_finite"]}
        for site in sorted(missing - self._not_called):
            rank_zero_warn(
                f"ActivationCurvatureMonitor logs nothing for {site!r}: it was not called in the training step."
            )
        self._not_called |= missing


def _is_elementwise(site: ActivationSite, registry: ActivationRegistry | None) -> bool:
    """Return whether f' is a number for each element; of what was never registered, it is taken to be."""
    if site.spec.opaque:
        return True
    registry = activations.registry if registry is None else registry
    return registry.entry(site.spec.name).facts_for(site.spec.arguments).elementwise
