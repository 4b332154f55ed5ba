"""What the paper's tasks share: `ActivationTask` and `ClassificationTask`, fully connected layers, refusals."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Self, cast

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import _restricted_classmethod
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.dropout import _DropoutNd
from torchmetrics import MeanMetric

from lit_gelu import activations
from lit_gelu.activations.analysis.initialisation import unit_norm_rows_
from lit_gelu.activations.registry import registry_or_default
from lit_gelu.callbacks import ActivationSwap
from lit_gelu.callbacks.checkpoint_file import loading
from lit_gelu.callbacks.swap.run import ACTIVATIONS_KEY
from lit_gelu.errors import ArgumentError, SpecError, shown
from lit_gelu.sandbox import evaluation_mode, input_sample_of
from lit_gelu.surgery import infer_channels_
from lit_gelu.surgery.activation_record import record_activations, restore_activations
from lit_gelu.surgery.swap import without_marks


class HiddenLayer(nn.Module):
    """Linear, activation, dropout that keeps a unit with probability ``keep``, for inputs ``[..., in_features]``."""

    def __init__(self, in_features: int, out_features: int, activation: nn.Module, keep: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.activation = activation
        self.dropout = nn.Dropout(1 - keep)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``dropout(activation(linear(inputs)))``."""
        outputs: Tensor = self.dropout(self.activation(self.linear(inputs)))
        return outputs


class SampleMean(MeanMetric):
    """The mean of all samples, summed in float32 or more; a NaN is let through."""

    # ``Trainer(precision="bf16-true")`` converts all of a module, and a sum in bfloat16 stops growing after some
    # hundred samples. torchmetrics' own strategies drop a NaN, and a diverged net would look healthy.

    def __init__(self) -> None:
        super().__init__(nan_strategy="disable")

    def _apply(self, fn: Callable[..., Any], exclude_state: Sequence[str] = "") -> Self:
        def widened(state: Tensor) -> Any:
            moved = fn(state)
            return moved if state.is_meta else state.to(moved.device, torch.promote_types(state.dtype, moved.dtype))

        super()._apply(widened, exclude_state)
        return self


Batch = tuple[Tensor, Tensor]


class ActivationTask(LightningModule, ABC):
    """A net with an activation by name; a subclass builds the net and says what its loss is.

    It logs ``train_loss`` each step, and over the whole set ``val_NAME`` and ``test_NAME`` for every name in
    ``metric_names``. Where training is noisy (dropout, a stochastic activation), the logged ``train_loss`` is measured
    with the noise off, on the same batch and before the update, as in Hendrycks and Gimpel's code (arXiv 1606.08415):
    one forward pass more a step, unless a subclass sets ``logs_noise_free_training_loss = False``. The gradient is
    always that of the noisy loss. On several ranks, what is logged each step is of rank 0's part of the batch.

    An activation that was never registered trains like any other, but cannot be written in a checkpoint: that is
    refused at the start of `Trainer.fit` if checkpoints are on. Checkpoints name the activation at every site: a net in
    which some were swapped is loaded as it was saved.

    Args:
        activation: Any form of activation that `lit_gelu.activations.create` takes.
        registry: Where the activation's name is looked up; ``None`` means `lit_gelu.activations.registry`.
    """

    metric_names: ClassVar[tuple[str, ...]] = ("loss",)
    logs_noise_free_training_loss: ClassVar[bool] = True
    learning_rate: float  # an attribute, because Lightning's learning rate finder sets it

    def __init__(self, activation: Any, registry: activations.ActivationRegistry | None) -> None:
        super().__init__()
        if not isinstance(registry, activations.ActivationRegistry | None):
            raise ArgumentError(f"registry={shown(registry)} is not accepted. Give an ActivationRegistry, or None.")
        self.registry = registry_or_default(registry)
        self.activation_spec = self.registry.resolve(activation)
        self.save_hyperparameters(ignore=["activation", "registry"])
        # The canonical text instead of what was given: plain data, whatever form was used, here and in LightningCLI.
        self.save_hyperparameters({**self.hparams, "activation": str(self.activation_spec)})
        self._modules_seen: tuple[list[nn.Module], bool] = ([], False)
        self.metrics = nn.ModuleDict({
            f"{stage}_{name}": SampleMean() for stage in ("val", "test") for name in self.metric_names
        })

    @_restricted_classmethod
    def load_from_checkpoint(
        cls,  # noqa: N805 - a classmethod that refuses to be called on an instance, as Lightning's own
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> Self:
        """Load a checkpoint as ``LightningModule.load_from_checkpoint`` does; nothing that it holds can run.

        Its activation is looked up by its registered name, never imported; for one without, give ``activation=``.
        ``weights_only=False`` lets the file run programs; ``hparams_file`` may name what is to be imported.

        Returns:
            The module.

        Raises:
            CheckpointError: If it is no checkpoint, is damaged, or holds more than plain data.
            SpecError: If it names an activation that is not registered.
        """
        options = {"hparams_file": hparams_file, "strict": strict, "weights_only": weights_only is not False}
        with loading(cls, checkpoint_path, {**options, **kwargs}):
            return super().load_from_checkpoint(checkpoint_path, map_location, **options, **kwargs)

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """Return the net's outputs."""

    @abstractmethod
    def mean_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch, a scalar to descend."""

    @abstractmethod
    def sample_values(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return each sample's value, ``[batch]``, of every name in ``metric_names``."""

    def activation_maker(self, activation: Any, width: int) -> Callable[[], nn.Module]:
        """Return what builds the activation; refuse one, such as a gated one, that changes the size of a layer."""
        module, inputs = self.registry.create(activation), torch.zeros(2, width)
        infer_channels_(module, inputs)
        with torch.no_grad():
            shape = list(module.eval()(inputs).shape)
        if shape != [2, width]:
            raise ArgumentError(
                f"activation={str(self.activation_spec)!r} turns shape {[2, width]} into {shape}. Give one that keeps "
                "its input's shape."
            )
        return partial(self.registry.create, activation)

    def dense_layers(self, activation: Any, sizes: Sequence[int], keep: float = 1.0) -> nn.Sequential:
        """Return a `HiddenLayer` from each size to the next, each with an activation of its own."""
        make_activation = self.activation_maker(activation, sizes[1])
        return nn.Sequential(*(HiddenLayer(fed, width, make_activation(), keep) for fed, width in pairwise(sizes)))

    def init_dense_layers_(self) -> None:
        """Draw the rows of every hidden layer's weight, and of ``output``'s, with length 1, biases 0, in place."""
        infer_channels_(self)
        output: Any = self.get_submodule("output")
        hidden = [layer.linear for layer in self.modules() if isinstance(layer, HiddenLayer)]
        for linear in [*hidden, output]:  # not what an activation may hold
            unit_norm_rows_(linear.weight)
            nn.init.zeros_(linear.bias)

    def configure_optimizers(self) -> Any:
        """Return Adam with the constant ``learning_rate`` that the subclass sets."""
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:  # noqa: ARG002 - Lightning's signature
        """Return the loss of the batch and log it, measured with noise off."""
        noise_free: Tensor | None = None
        if self.logs_noise_free_training_loss and self.is_noisy:
            with torch.no_grad(), evaluation_mode(self):
                noise_free = self.mean_loss(*batch)
        loss = self.mean_loss(*batch)
        self.log("train_loss", loss.detach() if noise_free is None else noise_free, prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, batch_index: int) -> None:  # noqa: ARG002 - Lightning's signature
        """Add the batch to ``val_loss`` and the other validation metrics."""
        self._measure("val", batch)

    def test_step(self, batch: Batch, batch_index: int) -> None:  # noqa: ARG002 - Lightning's signature
        """Add the batch to ``test_loss`` and the other test metrics."""
        self._measure("test", batch)

    def predict_step(self, batch: Batch | Tensor, batch_index: int) -> Tensor:  # noqa: ARG002 - Lightning's signature
        """Return the net's outputs for a batch, inputs and labels or inputs alone."""
        outputs: Tensor = self(batch if isinstance(batch, Tensor) else batch[0])
        return outputs

    @property
    def is_noisy(self) -> bool:
        """Whether training adds noise: by dropout, or by an activation that is stochastic or not known to be not."""
        modules = list(self.modules())[1:]
        if modules != self._modules_seen[0]:  # at the first step, and when a callback has swapped a module
            self._modules_seen = (modules, any(adds_noise(module, self.registry) for module in modules))
        return self._modules_seen[1] or self.activation_spec.opaque

    def on_fit_start(self) -> None:
        """Refuse an activation that the run's checkpoints could not hold, before the first step is spent."""
        is_dry_run = getattr(self.trainer, "fast_dev_run", False)  # set by a connector, so unknown to mypy
        if not self.trainer.checkpoint_callbacks or is_dry_run:
            return
        try:
            self.activation_spec.for_checkpoint()
        except SpecError as error:
            raise SpecError(f"{error} To train without: Trainer(enable_checkpointing=False).") from None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Write down every activation, and refuse one that could not be built again."""
        self.activation_spec.for_checkpoint()
        hyper_parameters = checkpoint.get(self.CHECKPOINT_HYPER_PARAMS_KEY, {})
        if "activation" in hyper_parameters:
            # A subclass that calls save_hyperparameters again stores the argument as it was passed.
            hyper_parameters["activation"] = str(self.activation_spec)
            hyper_parameters.pop("registry", None)
        checkpoint[ACTIVATIONS_KEY] = record_activations(self, self.registry)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put in the activations that the checkpoint was saved with, before their parameters are loaded."""
        # Within a Trainer that callback makes its swap again, or takes it back; the two would get in each other's way.
        callbacks: list[Any] = getattr(self._trainer, "callbacks", [])  # set by a connector, so unknown to mypy
        if any(isinstance(callback, ActivationSwap) for callback in callbacks):
            return
        if ACTIVATIONS_KEY in checkpoint:
            restore_activations(self, checkpoint[ACTIVATIONS_KEY], self.registry, input_sample_of)
            without_marks(checkpoint.get("state_dict", {}))

    def _measure(self, stage: str, batch: Batch) -> None:
        """Update the metrics of ``stage`` sample by sample: batches may differ in size."""
        for name, value in self.sample_values(*batch).items():
            metric = cast("SampleMean", self.metrics[f"{stage}_{name}"])
            metric.update(value)
            self.log(f"{stage}_{name}", metric, prog_bar=True, on_step=False, on_epoch=True, batch_size=len(value))


class ClassificationTask(ActivationTask):
    """An `ActivationTask` trained with the mean cross-entropy; a subclass builds the net.

    It logs ``val_loss``, ``val_error``, ``test_loss`` and ``test_error``: losses in nats, errors as the share of wrong
    classes. Arguments are those of `lit_gelu.tasks.ActivationTask`.
    """

    metric_names: ClassVar[tuple[str, ...]] = ("loss", "error")

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits, shape ``[batch, classes]``."""

    def mean_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy of a batch in nats, a scalar."""
        return functional.cross_entropy(self(inputs), labels)

    def sample_values(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return each sample's ``"loss"``, in nats, and ``"error"``, 0 or 1; samples with the label -100 have none."""
        logits = self(inputs)
        counted = labels != -100  # what cross-entropy leaves out
        return {
            "loss": functional.cross_entropy(logits, labels, reduction="none")[counted],
            "error": (logits.argmax(dim=1) != labels).float()[counted],
        }


def adds_noise(module: nn.Module, registry: activations.ActivationRegistry) -> bool:
    """Tell whether a module draws random numbers in training mode; one may say so by an attribute ``adds_noise``."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(says := getattr(module, "adds_noise", None), bool):
        return says
    entry = registry.entry_of(module)
    return entry is not None and entry.facts_for(registry.spec_of(module).arguments).stochastic


PIXELS = 28 * 28
_Range = tuple[Callable[[float], bool], str]  # whether a number is accepted, and what is
_SHARE: _Range = (lambda value: 0 <= value < 1, "a number of at least 0 and below 1")
_POSITIVE: _Range = (lambda value: 0 < value < math.inf, "a number above 0, such as 1e-3")
_NOT_NEGATIVE: _Range = (lambda value: 0 <= value < math.inf, "a number of at least 0; 0 turns it off")
_COUNT: _Range = (lambda value: isinstance(value, int) and 1 <= value <= 100_000, "an integer from 1 to 100,000")
_RANGES: Mapping[str, _Range] = {
    "learning_rate": _POSITIVE,
    "eps": _POSITIVE,
    "keep": (lambda value: 0 < value <= 1, "a probability above 0 and at most 1; 1 turns dropout off"),
    "noise": _NOT_NEGATIVE,
    "weight_decay": _NOT_NEGATIVE,
    "dropout": _SHARE,
    "momentum": _SHARE,
    "beta1": _SHARE,
    "beta2": _SHARE,
}


def check_numbers(**arguments: float) -> None:
    """Refuse a number outside the range for its name; a name without a range stands for a count."""
    for name, value in arguments.items():
        is_accepted, accepts = _RANGES.get(name, _COUNT)
        if not isinstance(value, int | float) or isinstance(value, bool) or not is_accepted(value):
            raise ArgumentError(f"{name}={shown(value)} is not accepted. Give {accepts}.")


def check_inputs(inputs: Tensor, is_accepted: bool, accepts: str) -> None:
    """Refuse inputs of another shape, or that are not in a floating dtype."""
    if not is_accepted or not inputs.is_floating_point():
        raise ArgumentError(
            f"Inputs of shape {list(inputs.shape)} and dtype {inputs.dtype} given; accepted: {accepts}, a floating "
            "dtype, as the data module makes them. For raw pixels: data.preprocessing()(images)."
        )


def check_digit_images(images: Tensor) -> None:
    """Refuse a batch that does not hold 784 pixels a sample."""
    check_inputs(images, images.ndim >= 2 and images.shape[1:].numel() == PIXELS, "[batch, 1, 28, 28] or [batch, 784]")
