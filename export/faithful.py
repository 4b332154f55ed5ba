"""Does the copy that is exported compute what the module itself computes?"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lit_gelu.export.copying import without_hooks_of_training
from lit_gelu.export.errors import ExportError
from lit_gelu.export.inputs import FlatModule, named_outputs
from lit_gelu.sandbox import evaluation_sandbox, isolated_random_state, side_pass

# Of the largest output. A copy goes wrong by a lost hook or attribute and not by rounding, so they leave room for a GPU
# with TF32, and for a module in 16 bit whose copy is in float32.
_ALIKE = 1e-3
_ALIKE_ELSEWHERE = 5e-2
_NOTHING = 1e-6  # what is left where an output should be 0


def require_faithful(flat: FlatModule, model: nn.Module, tensors: Sequence[Tensor]) -> list[str]:
    """Compare the outputs of a copy with those of the module itself, in evaluation mode: number, names, shapes, values.

    The module runs where it is, on the side of its training; its modes, buffers and the random state are as before.
    Hooks run as in the copy.
    Integer outputs are compared where the module is in float32 or float64 on the CPU, as the copy is.

    Args:
        flat: The copy, how it is called, and what stands before and behind it.
        model: The module.
        tensors: The sample.

    Returns:
        Why nothing could be compared; empty if it was.

    Raises:
        ExportError: If the copy computes something else.
    """
    model = getattr(model, "_orig_mod", model)
    copied = _outputs(flat, flat.model, tensors)
    try:
        own = _outputs(flat, model, tensors)
    except Exception as error:  # noqa: BLE001 - a module in 16 bit need not run on the CPU, and then it cannot be asked
        return [f"the copy was not compared with the module itself, which fails on the sample ({error})."]
    difference = _difference(own, copied, exact=_is_like_its_copy(model))
    if difference:
        raise ExportError(
            f"A copy of {type(model).__name__} does not compute what the module computes: {difference}. Export and "
            "proof work on copies. What is lost is what copy.deepcopy does not bring along: let __deepcopy__ and "
            "__setstate__ keep all that forward uses, in attributes, parameters and buffers."
        )
    return []


def _outputs(flat: FlatModule, model: nn.Module, tensors: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
    """Return what a module gives in the place of the copy, in its own dtype and on its own device."""
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    eager = torch.compiler.set_stance("force_eager")  # parts that torch.compile made need not be compiled for this
    with evaluation_sandbox(model), isolated_random_state(model), side_pass(), without_hooks_of_training(model), eager:
        fed = [t.to(like.device, like.dtype if t.is_floating_point() else t.dtype) for t in flat.fed(tensors)]
        return named_outputs(flat.called(model, fed))


def _is_like_its_copy(model: nn.Module) -> bool:
    """Return whether a module is on the CPU and in float32 or float64."""
    tensors = [*model.parameters(), *model.buffers()]
    return all(t.device.type == "cpu" and (t.dtype.itemsize >= 4 or not t.is_floating_point()) for t in tensors)


def _difference(own: list[tuple[str, Tensor]], copied: list[tuple[str, Tensor]], *, exact: bool) -> str:
    """Say what is different; empty for nothing."""
    names, others = ([name for name, _ in outputs] for outputs in (own, copied))
    if names != others:
        return f"the module returns {len(names)} tensors, {names}, and its copy {len(others)}, {others}"
    for (name, a), (_, b) in zip(own, copied, strict=True):
        if a.shape != b.shape:
            return f"{name} has the shape {list(a.shape)}, and {list(b.shape)} in the copy"
        if not (a.is_floating_point() and b.is_floating_point()):
            if exact and not torch.equal(a, b):
                return f"{name} has other values in the copy"
            continue
        off, largest = _largest_difference(a, b)
        if off > (_ALIKE if exact else _ALIKE_ELSEWHERE) * largest + _NOTHING:
            return f"{name} differs by {off:.2g}, where its largest value is {largest:.2g}"
    return ""


def _largest_difference(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Return the largest difference of two outputs, and the largest finite magnitude of the first."""
    a, b = a.detach().cpu().double(), b.detach().cpu().double()
    off = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs()).nan_to_num(nan=torch.inf)
    largest = a.abs()[a.isfinite()]
    return float(off.max()) if off.numel() else 0.0, float(largest.max()) if largest.numel() else 0.0
