"""`ClassificationTask`: what the paper's classifiers share, all but the net and its optimizer."""

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from lit_gelu.tasks.activation_task import ActivationTask

IGNORED = -100  # the label of samples that cross-entropy leaves out


class ClassificationTask(ActivationTask):
    """A net with an activation by name, trained with the mean cross-entropy; a subclass builds the net.

    It logs ``train_loss`` each step, and over the whole set ``val_loss``, ``val_error``, ``test_loss``, ``test_error``:
    losses in nats, errors as the share of wrong classes, 1 - accuracy. How the training loss is measured where there
    is noise, and what checkpoints hold: `lit_gelu.tasks.ActivationTask`.

    Args:
        activation: Any form of activation that `lit_gelu.activations.create` takes.
        registry: Where the activation's name is looked up; ``None`` means `lit_gelu.activations.registry`.
    """

    metric_names: ClassVar[tuple[str, ...]] = ("loss", "error")

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits, shape ``[batch, classes]``."""

    def mean_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy of a batch in nats, a scalar."""
        return functional.cross_entropy(self(inputs), labels)

    def sample_values(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return each sample's cross-entropy in nats, ``"loss"``, and 0 or 1 for a wrong class, ``"error"``.

        Samples whose label is -100 have none: training leaves them out, too.
        """
        logits = self(inputs)
        counted = labels != IGNORED
        return {
            "loss": functional.cross_entropy(logits, labels, reduction="none")[counted],
            "error": (logits.argmax(dim=1) != labels).float()[counted],
        }
