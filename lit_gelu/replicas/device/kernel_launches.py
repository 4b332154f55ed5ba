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
        members: The replica of each, int32.
        slots: Where its inputs and outputs are, int32; those from ``replicas`` on have no dropout.
        trained: How many have dropout; the others come behind them.
        replicas: Of the whole group, or 0 where no gradients follow.
        batch: Samples of each.
        rows: Which of all samples they are, int32 ``[steps, replicas, batch]``; ``None`` where no gradients follow.
        place: The number of the step in ``rows``, on the device.
    """

    members: Tensor
    slots: Tensor
    trained: int
    replicas: int
    batch: int
    rows: Tensor | None = None
    place: Tensor | None = None


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
    kept: Tensor | None = None,
    split: slice | None = None,
    keys: DeviceKeys | None = None,
    weight: Tensor | None = None,
    ahead: int = 0,
) -> Tensor:
    """Start the kernel.

    Args:
        end: The layer.
        inputs: ``[passes, batch, features]``, or ``[samples, features]``: those of which ``rows`` says whose they are,
            or, without, the same for all passes.
        outputs: Where the outputs go, ``[passes, batch, width]``.
        passes: Those that are computed.
        kept: Where pre-activations of trained passes go.
        split: Replicas whose outputs without dropout go behind those of the trained passes, too.
        keys: What dropout draws by; ``None`` means that there is none.
        weight: The layer's weights, where they are not read from the layer itself.
        ahead: Steps since that of ``passes.place``.

    Returns:
        The outputs.
    """
    from lit_gelu.replicas.device import net_kernels

    weight, bias = end.linear.weight if weight is None else weight, end.linear.bias
    width, features = weight.shape[1:]
    tiles = kernel_tiles.tiles_of("forward", passes.batch, width, features)
    unit = kernel_tiles.unit_of(features)
    count = passes.trained if split is not None else len(passes.members)
    grid = (-(-width // tiles.columns), -(-passes.batch // tiles.rows), count)
    table = passes.members if passes.rows is None else passes.rows
    place = passes.members if passes.place is None else passes.place  # which is not read then
    is_shared = inputs.ndim == 2
    addresses = (outputs,) * len(DeviceKeys._fields) if keys is None else keys
    free = (0, 0) if split is None else (split.start, split.stop - split.start)
    net_kernels.layer_forward[grid](
        inputs, weight, bias, outputs if kept is None else kept, outputs, passes.members, passes.slots, table, place,
        *end.readings(outputs.device), *addresses, ahead, passes.replicas, passes.batch, features // unit, width,
        0 if end.dropout is None else end.dropout.site, *free,
        GATHERS=is_shared and passes.rows is not None, SHARED=is_shared and passes.rows is None, KEEPS=kept is not None,
        SPLITS=split is not None, DROPS=keys is not None, UNIT=unit, **tiles.constants(),
    )  # fmt: skip
    return outputs


def noise_free(end: LayerEnd, inputs: Tensor, part: Tensor | None) -> Tensor:
    """Return a layer's outputs without dropout, ``[replicas, samples, width]``.

    Args:
        end: The layer.
        inputs: ``[replicas, samples, features]``, or ``[samples, features]``, the same for all.
        part: Numbers of the replicas; ``None`` means all.
    """
    weight = end.linear.weight
    if not computes(weight):
        return end(end.linear.product(inputs, part), part, drops=False)
    members = torch.arange(len(weight), device=inputs.device) if part is None else part
    outputs = inputs.new_empty(len(members), inputs.shape[-2], weight.shape[1])
    if not outputs.numel():
        return outputs
    slots = torch.arange(len(members), dtype=torch.int32, device=inputs.device)
    return launch_layer(end, inputs.contiguous(), outputs, Passes(members.int(), slots, 0, 0, outputs.shape[1]))


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
