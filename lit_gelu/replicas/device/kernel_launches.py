"""A layer of all replicas as one kernel on CUDA: product, bias, activation and dropout; see `net_kernels`."""

from typing import NamedTuple

import torch
from torch import Tensor

from lit_gelu.replicas.device import kernel_tiles
from lit_gelu.replicas.device.layer_ends import LayerEnd
from lit_gelu.replicas.forward.rules import LinearRule
from lit_gelu.tasks.keyed_dropout import has_kernel
from lit_gelu.tasks.keyed_noise import DeviceKeys


class Passes(NamedTuple):
    """The passes through the net that a launch computes, and where their samples lie.

    Args:
        members: The replicas, int32.
        slots: Where the inputs and outputs of each are, int32.
        seconds: Where those of a second pass are, without dropout and gradients, int32, or -1; ``None`` means none.
        replicas: Of the whole group.
        batch: Samples of each.
        rows: Which of all samples they are, int32 ``[steps, replicas, batch]``.
        place: The number of the step in ``rows``, on the device.
    """

    members: Tensor
    slots: Tensor
    seconds: Tensor | None
    replicas: int
    batch: int
    rows: Tensor
    place: Tensor


_BLOCK = 1024
_WITH_TF32 = (8, 0)  # the first compute capability whose tensor cores have it


def computes(stack: Tensor) -> bool:
    """Say whether the kernels know a stack's numbers and its device."""
    if not has_kernel(stack) or stack.dtype != torch.float32:
        return False
    return not stack.is_cuda or torch.cuda.get_device_capability(stack.device) >= _WITH_TF32


def launch_layer(
    end: LayerEnd,
    inputs: Tensor,
    outputs: Tensor,
    passes: Passes,
    *,
    weight: Tensor,
    kept: Tensor,
    keys: DeviceKeys | None,
    ahead: int,
) -> Tensor:
    """Start the kernel of a layer that is trained.

    Args:
        end: The layer.
        inputs: ``[passes, batch, features]``; of the first layer, where second passes start, ``[samples, features]``.
        outputs: Where the outputs go, ``[passes, batch, width]``.
        passes: Those that are computed.
        weight: The layer's weights.
        kept: Where pre-activations of first passes go.
        keys: What dropout draws by; ``None`` means that there is none.
        ahead: Steps since that of ``passes.place``.

    Returns:
        The outputs.
    """
    from lit_gelu.replicas.device import net_kernels

    width, features = weight.shape[1:]
    is_first, has_seconds = inputs.ndim == 2, passes.seconds is not None
    count = passes.batch * (2 if has_seconds and not is_first else 1)  # of rows
    tiles, unit = kernel_tiles.tiles_of("forward", count, width, features), kernel_tiles.unit_of(features)
    grid = (-(-width // tiles.columns), -(-count // tiles.rows), len(passes.members))
    # What is not read stands for what is not there.
    seconds = passes.members if passes.seconds is None else passes.seconds
    addresses = (outputs,) * len(DeviceKeys._fields) if keys is None else keys
    net_kernels.layer_forward[grid](
        inputs, weight, end.linear.bias, kept, outputs, passes.members, passes.slots, seconds, passes.rows,
        passes.place, *end.readings(outputs.device), *addresses, ahead, passes.replicas, passes.batch, features // unit,
        width, 0 if end.dropout is None else end.dropout.site,
        GATHERS=is_first, SPLITS=has_seconds and is_first, PAIRS=has_seconds and not is_first, DROPS=keys is not None,
        UNIT=unit, **tiles.constants(),
    )  # fmt: skip
    return outputs


def noise_free(end: LayerEnd, inputs: Tensor, part: Tensor | None) -> Tensor:
    """Return a layer's outputs without dropout, ``[replicas, samples, width]``.

    Args:
        end: The layer.
        inputs: ``[replicas, samples, features]``, or ``[samples, features]``, the same for all.
        part: Numbers of the replicas; ``None`` means all.
    """
    from lit_gelu.replicas.device import measuring_kernels

    weight = end.linear.weight
    if not computes(weight):
        return end(end.linear.product(inputs, part), part, drops=False)
    members = torch.arange(len(weight), device=inputs.device) if part is None else part
    samples, (width, features) = inputs.shape[-2], weight.shape[1:]
    outputs = inputs.new_empty(len(members), samples, width)
    if not outputs.numel():
        return outputs
    high, low = (torch.empty_like(weight) for _ in range(2))
    measuring_kernels.split_weights[(-(-weight.numel() // _BLOCK),)](weight, high, low, weight.numel(), BLOCK=_BLOCK)
    tiles, unit = kernel_tiles.tiles_of("measured", samples, width, features), kernel_tiles.unit_of(features)
    constants = tiles.constants()
    del constants["PRECISION"]
    measuring_kernels.measured_layer[(-(-width // tiles.columns), -(-samples // tiles.rows), len(members))](
        inputs.contiguous(), high, low, end.linear.bias, outputs, members.int(), *end.readings(outputs.device), samples,
        features // unit, width, SHARED=inputs.ndim == 2, UNIT=unit, **constants,
    )  # fmt: skip
    return outputs


def has_values(output: LinearRule) -> bool:
    """Say whether `values_of` knows an output layer."""
    is_whole = output.bias is not None and output.weight.shape[1] <= kernel_tiles.MOST_CLASSES
    return is_whole and computes(output.weight)


def values_of(output: LinearRule, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return every sample's cross-entropy, and 1 where another class is predicted, ``[replicas, samples]`` each.

    Args:
        output: The output layer.
        inputs: Its inputs, ``[replicas, samples, width]``.
        labels: ``[samples]``, each one a class.
    """
    from lit_gelu.replicas.device import net_kernels

    replicas, samples, width = inputs.shape
    classes = output.weight.shape[1]
    losses, errors = (inputs.new_empty(replicas, samples) for _ in range(2))
    tiles = kernel_tiles.tiles_of("output", samples, classes, width)
    constants = tiles.constants()
    constants["CLASSES"] = constants.pop("COLUMNS")
    net_kernels.sample_values[(-(-samples // tiles.rows), replicas)](
        inputs, output.weight, output.bias, losses, errors, labels.contiguous(), samples, width, classes, **constants
    )
    return losses, errors
