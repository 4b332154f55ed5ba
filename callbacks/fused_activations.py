"""`FusedActivations`: a model's activations by torch.compile, while a Trainer runs it."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import nn  # noqa: TC002 - the example's too
from typing_extensions import override

from lit_gelu import kernels
from lit_gelu.activations import ActivationRegistry
from lit_gelu.callbacks.swap.run import registry_for
from lit_gelu.callbacks.trainer import refuse_mixed_packages


class FusedActivations(Callback):
    """Fuses a model's activations, as `lit_gelu.kernels.fuse` does, while a Trainer runs it.

    Activations that an `ActivationSwap` brings in, or a checkpoint, are fused too. When the Trainer is done, or stops
    with an error, those that were not fused before are as they were. Checkpoints, exports and names are those of the
    model without this callback. Calls of functions within a ``forward`` are left as they are.

    Args:
        registry: Where activations are registered; ``None`` means the module's own, as tasks have one, or the default.

    Example:
        >>> model = LightningModule()
        >>> model.activation = nn.GELU()
        >>> FusedActivations().setup(Trainer(accelerator="cpu", logger=False), model, "fit")
        >>> kernels.is_fused(model.activation)
        True
    """

    def __init__(self, registry: ActivationRegistry | None = None) -> None:
        self.registry = registry
        self._fused: list[nn.Module] = []  # those that were not before; with those that a swap has taken out since

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Fuse what is there, before anything is compiled."""
        refuse_mixed_packages(trainer, pl_module)
        self._fuse(pl_module)

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fuse what the module's own ``setup`` and ``configure_model``, and a checkpoint, have brought."""
        self._fuse(pl_module)
        rank_zero_info(f"FusedActivations: {len(self._fused)} activations are fused.")

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """As `on_fit_start`."""
        self._fuse(pl_module)

    on_test_start = on_predict_start = on_validation_start

    def on_activations_swapped(self, trainer: Trainer, pl_module: LightningModule, report: Any) -> None:  # noqa: ARG002
        """Fuse new activations; the signature of `ActivationSwapListener`."""
        self._fuse(pl_module)

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the activations as they were found."""
        self._unfuse()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the activations as they were found: Lightning calls no teardown after an error."""
        self._unfuse()

    def _fuse(self, pl_module: LightningModule) -> None:
        plain = [module for module in pl_module.modules() if not kernels.is_fused(module)]
        kernels.fuse(pl_module, registry_for(pl_module, [self.registry]))
        self._fused += [module for module in plain if kernels.is_fused(module)]

    def _unfuse(self) -> None:
        for module in self._fused:
            kernels.unfuse(module)
        self._fused.clear()
