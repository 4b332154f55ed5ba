"""Going through a validation or test set in the course of training."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from lit_gelu.data.in_memory import fits
from lit_gelu.tasks import ActivationTask

SAMPLES_AT_ONCE = 1000  # bounds the memory; without effect on the result but for rounding


class EvaluationSet(NamedTuple):
    """All samples of a set: inputs ``[samples, ...]`` and labels ``[samples]``."""

    inputs: Tensor
    labels: Tensor

    @classmethod
    def of(cls, batches: Iterable[tuple[Tensor, Tensor]]) -> "EvaluationSet | None":
        """Gather a loader's batches.

        Args:
            batches: Pairs of inputs and labels.

        Returns:
            The set; ``None`` if there is no batch.

        Example:
            >>> EvaluationSet.of([(torch.zeros(2, 3), torch.tensor([0, 1]))]).inputs.shape
            torch.Size([2, 3])
            >>> EvaluationSet.of([]) is None
            True
        """
        pairs = list(batches)
        if not pairs:
            return None
        inputs, labels = zip(*pairs, strict=True)
        return cls(torch.cat(inputs), torch.cat(labels))

    def near(self, device: torch.device) -> "EvaluationSet":
        """Return the set on a device, if it may stay there for a whole run, else as it is.

        Args:
            device: Where the net computes.

        Returns:
            The set.
        """
        if not fits(self.inputs.nbytes + self.labels.nbytes, device):
            return self
        return EvaluationSet(self.inputs.to(device), self.labels.to(device))


def means(module: ActivationTask, samples: EvaluationSet) -> dict[str, float]:
    """Return the means over a set of what a task measures of each sample.

    The caller sees to evaluation mode, gradients and random numbers.

    Args:
        module: The task; its ``sample_values`` are taken.
        samples: The set.

    Returns:
        From name (``"loss"``, ``"error"``) to mean, summed up in float64.
    """
    found: dict[str, list[Tensor]] = {}
    for start in range(0, len(samples.labels), SAMPLES_AT_ONCE):
        inputs, labels = (part[start : start + SAMPLES_AT_ONCE] for part in samples)
        values = module.sample_values(inputs.to(module.device), labels.to(module.device))
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    return {name: torch.cat(values).cpu().double().mean().item() for name, values in found.items()}
