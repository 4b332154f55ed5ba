"""Runs of the module in PyTorch before it is exported: the user's own errors, randomness, and is the copy faithful?"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lit_gelu.export.copying import without_hooks_of_training
from lit_gelu.export.errors import ExportError, ExportOptionError, ModelInputError
from lit_gelu.export.inputs import Call, FlatModule, named_outputs, unique_names
from lit_gelu.export.options import ExportOptions
from lit_gelu.sandbox import evaluation_sandbox, isolated_random_state, side_pass
from lit_gelu.surgery.sites import without_wrappers

# Of the largest output. A copy goes wrong by a lost hook or attribute and not by rounding, so they leave room for a GPU
# with TF32, and for a module in 16 bit whose copy is in float32.
_ALIKE = 1e-3
_ALIKE_ELSEWHERE = 5e-2
_NOTHING = 1e-6  # what is left where an output should be 0


@dataclass(frozen=True)
class Trial:
    """A run of the module: inputs of at least two rows, and its outputs with names, none of them an input's."""

    tensors: tuple[Tensor, ...]
    names: tuple[str, ...]
    outputs: tuple[Tensor, ...]


@torch.no_grad()
def trial_run(flat: FlatModule) -> Trial:
    """Run the copy twice: errors in it are reported as the user's (`ModelInputError`), and it must repeat itself."""
    # At least two rows. With one, `if x.shape[0] == 1` and broadcasting of size-1 dimensions would be decided for one
    # row, in a graph that says it takes any number.
    model, call = type(flat.model).__name__, flat.call
    tensors = call.resized(max(2, call.batch_size))
    before = _state_of(flat.model)
    with torch.random.fork_rng(devices=[]):
        try:
            first, second = (named_outputs(flat.run([t.clone() for t in tensors])) for _ in range(2))
        except Exception as error:
            raise _refused(flat, tensors, error) from error
    if not first:
        raise ExportError(_no_tensor_message(flat, tensors))
    differing = [name for (name, a), (_, b) in zip(first, second, strict=True) if not _same(a, b)]
    if differing:
        _require_no_state(flat, tensors, before, first)
        raise ExportError(random_message(model, ", ".join(differing)))
    return Trial(tensors, output_names([name for name, _ in first], call), tuple(tensor for _, tensor in first))


def complex_outputs(trial: Trial) -> list[str]:
    """Say which outputs have another shape in the file than in the module, since files give no complex numbers."""
    return [
        f"output {name!r} is complex in the module; in the file it is real, with a last axis of 2 for real and "
        f"imaginary part: {[*tensor.shape, 2]} for {list(tensor.shape)}."
        for name, tensor in zip(trial.names, trial.outputs, strict=True)
        if tensor.is_complex()
    ]


def _refused(flat: FlatModule, tensors: Sequence[Tensor], error: Exception) -> ModelInputError:
    """Return the error for a sample that the module does not take."""
    pairs = zip(flat.call.names, tensors, strict=True)
    shapes = ", ".join(f"{name} {tuple(t.shape)} {t.dtype}" for name, t in pairs)
    model = type(flat.model).__name__
    return ModelInputError(
        f"{model}.forward fails on the input sample ({shapes}; the first size is the batch): "
        f"{str(error).rstrip('.')}. If forward takes another call, give that as input_sample=."
    )


def _same(first: Tensor, second: Tensor) -> bool:
    """Return whether two results agree; the tolerance is for kernels that add in another order each time."""
    return first.shape == second.shape and torch.allclose(first, second, rtol=1e-4, atol=1e-6, equal_nan=True)


def output_names(names: Sequence[str], call: Call) -> tuple[str, ...]:
    """Return the names that outputs have in a file: none is an input's, and no two are the same."""
    return tuple(unique_names([name if name not in call.names else f"output_{name}" for name in names]))


def _state_of(model: nn.Module) -> dict[tuple[str, str], Any]:
    """Return the buffers of all modules, copied, and the numbers among their attributes."""
    state: dict[tuple[str, str], Any] = {}
    for name, module in model.named_modules():
        held = module._buffers.items()
        state |= {(name, key): None if value is None else value.clone() for key, value in held}
        state |= {(name, key): value for key, value in vars(module).items() if isinstance(value, int | float)}
    return state


def _set_state(model: nn.Module, state: Mapping[tuple[str, str], Any]) -> None:
    """Give modules the buffers and numbers that they had."""
    for (name, key), value in state.items():
        module = model.get_submodule(name)
        held = module._buffers if key in module._buffers else vars(module)
        held[key] = value.clone() if isinstance(value, Tensor) else value


def _require_no_state(
    flat: FlatModule, tensors: Sequence[Tensor], before: Mapping[tuple[str, str], Any], first: list[tuple[str, Tensor]]
) -> None:
    """Refuse a module that gives the same again once what it changes in itself is as it was: it draws no numbers."""
    after = _state_of(flat.model)
    changed = [place for place, value in before.items() if not _equal(value, after.get(place))]
    _set_state(flat.model, before)
    with torch.random.fork_rng(devices=[]):
        torch.rand(1)  # so that numbers that are drawn are others than in the first run
        try:
            again = named_outputs(flat.run([t.clone() for t in tensors]))
        except Exception:  # noqa: BLE001 - forward is the user's, and may keep what is not put back, such as a list
            return
    if changed and all(_same(a, b) for (_, a), (_, b) in zip(first, again, strict=True)):
        places = ", ".join(".".join(filter(None, place)) for place in changed)
        raise ExportError(
            f"{type(flat.model).__name__}.forward changes {places} in evaluation mode, and its outputs depend on that: "
            "called twice on the same input it gives two answers, and a file keeps nothing from call to call. Let "
            "forward change it only where self.training is true, or take it as an input and return what it becomes."
        )


def _equal(a: Any, b: Any) -> bool:
    """Return whether a buffer or number is as it was; NaN is as NaN."""
    if a is None or b is None:
        return a is b
    one, other = torch.as_tensor(a), torch.as_tensor(b)
    alike = (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
    return alike and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _no_tensor_message(flat: FlatModule, tensors: Sequence[Tensor]) -> str:
    """Say why no tensor was found in an output: there is none, or it is in a class that torch does not open."""
    output, model = flat.run([t.clone() for t in tensors]), type(flat.model).__name__
    for leaf in pytree.tree_leaves(output):
        if dataclasses.is_dataclass(leaf) and any(
            isinstance(getattr(leaf, field.name, None), Tensor) for field in dataclasses.fields(leaf)
        ):
            kind = type(leaf).__name__
            return (
                f"{model}.forward returns {kind}, a dataclass that torch does not take apart. Accepted: a tensor, a "
                f"tuple, list or dict of them, or a class that is known to torch: call "
                f"torch.export.register_dataclass({kind}) once, before the export."
            )
    return f"{model}.forward returns no tensor, so there is nothing to export."


def random_message(model: str, where: str) -> str:
    """Return the message for a module that is random in evaluation mode; ``where`` are outputs or operators."""
    return (
        f"{model} draws random numbers in evaluation mode ({where}), so no file can compute what it computes. Let "
        "forward do so only where self.training is true."
    )


def require_labels_fit(options: ExportOptions, trial: Trial) -> None:
    """Check that the first output has a dimension for labels and for a softmax."""
    if not options.labels and not options.softmax:
        return
    name, output = trial.names[0], trial.outputs[0]
    if output.ndim < 2 or not output.is_floating_point():
        raise ExportOptionError(
            f"labels= and softmax= need a first output [batch, ..., classes] of real numbers; {name!r} is "
            f"{output.dtype} of shape {list(output.shape)}. Leave them out, or let forward return the logits first."
        )
    if options.labels and len(options.labels) != output.shape[-1]:
        raise ExportOptionError(
            f"labels= has {len(options.labels)} names, and the last dimension of {name!r} has {output.shape[-1]} "
            "values. Give one name for each."
        )


def require_faithful(flat: FlatModule, model: nn.Module, tensors: Sequence[Tensor]) -> list[str]:
    """Refuse a copy whose outputs are not the module's (names, shapes, values); return why nothing was compared."""
    # The module runs where it is, on the side of its training; modes, buffers and the random state are as before.
    # Integer outputs are compared where it is in float32 or float64 on the CPU, as the copy is.
    model = without_wrappers(model)
    try:
        copied = _outputs(flat, flat.model, tensors)
    except Exception as error:
        raise _refused(flat, tensors, error) from error
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
        own = flat.fed([t.clone() for t in tensors])  # forward may overwrite them
        fed = [t.to(like.device, like.dtype if t.is_floating_point() else t.dtype) for t in own]
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
