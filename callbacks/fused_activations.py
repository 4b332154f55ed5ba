"""`FusedActivations`: the activations of a model by kernels, while a Trainer runs it."""

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

from lit_gelu import kernels
from lit_gelu.activations import ActivationRegistry
from lit_gelu.activations.gpu.modules import KernelModule, is_fused
from lit_gelu.callbacks.errors import ExplainedOnce
from lit_gelu.callbacks.swap.run import registry_for
from lit_gelu.callbacks.trainer_facts import refuse_mixed_packages
from lit_gelu.surgery import SwapReport


class FusedActivations(ExplainedOnce):
    """Lets a model's activations be computed by kernels, as `lit_gelu.kernels.fuse` does, while a Trainer runs it.

    In code::

        Trainer(callbacks=[FusedActivations()], precision="bf16-true")

    or, in a configuration of ``lit-gelu fit``::

        callbacks:
          - class_path: lit_gelu.callbacks.FusedActivations

    Activations that an `ActivationSwap` brings in, or a checkpoint, are fused too. When the Trainer is done, or stops
    with an error, those that were not fused before are as they were. Checkpoints, exports, names and figures of
    monitors are those of the model without this callback, and on a CPU so are all numbers of a training run.

    Activations that are computed by functions within a ``forward`` are left as they are: `lit_gelu.surgery.coverage`
    shows them.

    Args:
        registry: Where activations are registered; ``None`` means the module's own, as tasks have one, or the default.

    Example:
        >>> import torch
        >>> model = LightningModule()
        >>> model.activation = torch.nn.GELU()
        >>> FusedActivations().setup(Trainer(accelerator="cpu", logger=False), model, "fit")
        >>> kernels.explain(model.activation, torch.zeros(3)).why
        'the tensor lies on cpu, and kernels are for CUDA'
    """

    def __init__(self, registry: ActivationRegistry | None = None) -> None:
        self.registry = registry
        self._fused: list[KernelModule] = []  # those that were not before; with those that a swap has taken out since

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Fuse what is there, before anything is compiled."""
        refuse_mixed_packages(trainer, pl_module)
        self._fuse(pl_module)

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fuse what the module's own ``setup`` and ``configure_model``, and a checkpoint, have brought."""
        self._fuse(pl_module)
        rank_zero_info(f"FusedActivations: activations that kernels may compute: {len(self._fused)}.")

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """As `on_fit_start`."""
        self._fuse(pl_module)

    @override
    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """As `on_fit_start`."""
        self._fuse(pl_module)

    @override
    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """As `on_fit_start`."""
        self._fuse(pl_module)

    def on_activations_swapped(
        self,
        trainer: Trainer,  # noqa: ARG002 - the protocol's signature
        pl_module: LightningModule,
        report: SwapReport | None,  # noqa: ARG002 - as above
    ) -> None:
        """Fuse new activations."""
        self._fuse(pl_module)

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the activations as they were found."""
        self._unfuse()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the activations as they were found: Lightning calls no teardown after an error."""
        super().on_exception(trainer, pl_module, exception)
        self._unfuse()

    def _fuse(self, pl_module: LightningModule) -> None:
        plain = [module for module in pl_module.modules() if not is_fused(module)]
        kernels.fuse(pl_module, registry_for(pl_module, [self.registry]))
        self._fused += [module for module in plain if is_fused(module)]

    def _unfuse(self) -> None:
        for module in self._fused:
            kernels.unfuse(module)
        self._fused.clear()
