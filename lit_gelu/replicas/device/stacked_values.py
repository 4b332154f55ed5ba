"""Measuring all members at once on inputs that they share, as a GPU is fastest; on a CPU one by one is."""

from collections.abc import Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_gelu.replicas.device.fused_forward import FusedForward
from lit_gelu.replicas.forward.stacked_forward import StackedForward, cross_entropies
from lit_gelu.sandbox import evaluation_mode
from lit_gelu.tasks import ClassificationTask, MNISTAutoencoder

# What the values of a sample are computed by; a subclass may compute others.
_KNOWN = (ClassificationTask.sample_values, MNISTAutoencoder.sample_values)

_ELEMENTS = 2**26  # a quarter of a gibibyte in float32: enough that starting kernels takes no time beside them


def measures_as_known(module: nn.Module) -> bool:
    """Tell whether `stacked_means` computes a task's own ``sample_values``."""
    return getattr(type(module), "sample_values", None) in _KNOWN


@torch.no_grad()
def stacked_means(
    forward: StackedForward, inputs: Tensor, labels: Tensor, samples_at_once: int, fused: FusedForward | None = None
) -> dict[str, Tensor]:
    """Return every replica's means over a set, ``[replicas]`` float64 on its device, of a task's ``sample_values``.

    Args:
        forward: The members' forward pass; `measures_as_known` says whether their values are known.
        inputs: All inputs of the set.
        labels: Their labels.
        samples_at_once: Bounds the memory; where outputs of a layer are `_ELEMENTS` or fewer, more are taken.
        fused: The same pass with fewer kernels, if there is one.
    """
    widest = max(stack.shape[1] for stack in forward.stacks.parameters.values() if stack.ndim > 1)  # scalars have none
    at_once = _ELEMENTS // (len(forward.stacks.modules) * widest)
    at_once -= at_once % 16  # a part that begins elsewhere would have kernels compiled for its address
    samples_at_once = max(samples_at_once, at_once)
    sums: dict[str, Tensor] = {}
    # Switching all members' activations takes as long as some of these passes, and kernels have no modes.
    with evaluation_mode(forward.own_activations) if fused is None else nullcontext():
        for start in range(0, len(labels), samples_at_once):
            part = slice(start, start + samples_at_once)
            for name, values in _sample_values(forward, fused, inputs[part], labels[part]).items():
                added = values.double().sum(1)
                sums[name] = sums[name] + added if name in sums else added
    return {name: total / len(labels) for name, total in sums.items()}


def _outputs(forward: StackedForward, fused: FusedForward | None, flat: Tensor) -> Tensor:
    if fused is not None:
        return fused.noise_free_outputs(flat)
    return forward.noise_free_outputs(flat.expand(len(forward.stacks.modules), *flat.shape))


def _sample_values(
    forward: StackedForward, fused: FusedForward | None, inputs: Tensor, labels: Tensor
) -> Mapping[str, Tensor]:
    """Return the values of samples, ``[replicas, samples]``."""
    flat, classifies = inputs.flatten(1), forward.loss is cross_entropies
    if fused is not None and classifies and (known := fused.noise_free_values(flat, labels)) is not None:
        return dict(zip(("loss", "error"), known, strict=True))
    outputs = _outputs(forward, fused, flat)
    if not classifies:
        return {"loss": (outputs - flat).square().mean(2)}
    shared = labels.expand(len(outputs), -1)
    losses = functional.cross_entropy(outputs.flatten(0, 1), shared.flatten(), reduction="none")
    return {"loss": losses.view(shared.shape), "error": (outputs.argmax(2) != shared).float()}
