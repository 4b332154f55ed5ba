"""The evaluation-mode copy that is exported, and runs of it beside the caller's module, which is never touched.

A file has no memory: a module that reads what an earlier call wrote is refused, and no trial leaves a trace in it.
"""

import contextlib
import functools
import itertools
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lit_gelu import surgery
from lit_gelu.activations import ActivationRegistry
from lit_gelu.errors import ArgumentError, ExportError, ModelInputError, SwapError
from lit_gelu.export.inputs import Call, FlatModule, as_in_a_file, fixed_batch, left_out, named_outputs, unique_names
from lit_gelu.sandbox import (
    as_written,
    equal,
    evaluation_mode,
    faithful_copy,
    isolated_random_state,
    preserved_state,
    side_pass,
    tensors_of,
)
from lit_gelu.surgery.sites import without_wrappers

# Whose hooks watch a training: they hold their callback and that the Trainer, and compute nothing.
_OF_TRAINING = frozenset({"lightning", "lightning_fabric", "lit_gelu", "pytorch_lightning"})
# Of the largest output: room for a GPU with TF32, and for a module in 16 bit whose copy is in float32.
_ALIKE = 1e-3
_ALIKE_ELSEWHERE = 5e-2
_NOTHING = 1e-6  # what is left where an output should be 0


def evaluation_copy(model: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a deep copy on the CPU, in evaluation mode, without what belongs to training."""
    # Compiled modules are unwrapped; a LightningModule has no Trainer. There are no backward hooks and none of this
    # package's or Lightning's, which hold callbacks. Every other forward hook stays, for it may be a part of what the
    # module computes: ``torch.nn.utils`` computes weights in them, and transformers gathers outputs.
    require_copyable(model)
    model = without_wrappers(model)
    memo = _replacements(model)
    watching = {key: hook for hooks in _forward_hooks(model) for key, hook in hooks.items() if _is_of_training(hook)}
    memo.update((id(hook), None) for hook in watching.values())  # what they hold is not copied
    try:
        for module in list(model.modules()):
            wrapped = without_wrappers(module)
            if wrapped is not module:
                memo[id(module)] = faithful_copy(wrapped, memo)
        twin = faithful_copy(model, memo)
    except Exception as error:
        raise ExportError(
            f"{type(model).__name__} cannot be copied ({error}). Export works on a deep copy: remove attributes and "
            "hooks that copy.deepcopy refuses, such as tensors with a gradient history, locks or open files."
        ) from error
    for hooks in _forward_hooks(twin):
        for key in watching.keys() & hooks.keys():
            del hooks[key]
    return _converted(twin.cpu(), dtype).eval().requires_grad_(False)


def _replacements(model: nn.Module) -> dict[int, Any]:
    """Return what deepcopy is to put in place of the Trainer, computed weights, registries and backward hooks."""
    memo: dict[int, Any] = {}
    for module in list(model.modules()):
        for name in ("_trainer", "_fabric"):
            if (owner := module.__dict__.get(name)) is not None:
                memo[id(owner)] = None
        for value in module.__dict__.values():
            if isinstance(value, Tensor) and value.grad_fn is not None:  # a pre-hook computes it anew at every call
                memo[id(value)] = value.detach().clone()
            elif isinstance(value, ActivationRegistry):  # it names activations, and is no part of what is computed
                memo[id(value)] = value
        for name in ("_backward_hooks", "_backward_pre_hooks"):
            memo[id(module.__dict__[name])] = OrderedDict()
    return memo


def nested_encoders(model: nn.Module) -> list[nn.TransformerEncoder]:
    """Return the encoders that turn padded sequences into nested tensors in inference, which makes padded places 0."""
    encoders = [part for part in model.modules() if isinstance(part, nn.TransformerEncoder)]
    return [part for part in encoders if getattr(part, "use_nested_tensor", False)]


def relative_difference(y: np.ndarray, of: np.ndarray) -> float:
    """Return the largest difference in units of the largest value; infinite where one alone is NaN."""
    a, b = y.astype(np.float64), of.astype(np.float64)
    scale = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    with np.errstate(invalid="ignore"):
        off = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return float(np.nan_to_num(off, nan=np.inf).max(initial=0.0)) / (scale or 1.0)


def two_answers(apart: float) -> str:
    """Return what to know of `nested_encoders` whose answers are this far apart, in units of the largest output."""
    return (
        "torch has two answers for padded sequences: in inference nn.TransformerEncoder makes nested tensors of them, "
        "after which padded places are 0; elsewhere, and in the file, these are computed like all others. The outputs "
        f"differ by {apart:.2g} of the largest. nn.TransformerEncoder(..., enable_nested_tensor=False) has one answer."
    )


def require_copyable(model: object) -> None:
    """Refuse what is no module, what TorchScript or torch's quantisation made, and tensors without values."""
    if not isinstance(model, nn.Module):
        raise ExportError(f"Only a torch.nn.Module can be exported, not {type(model).__name__}.")
    for where, part in model.named_modules():
        problem = ""
        if isinstance(part, torch.jit.ScriptModule):
            problem = "is TorchScript: give the module that it was made from"
        elif isinstance(part, nn.parallel.DistributedDataParallel):
            problem = "wraps a module for several processes: export the module in it, model.module"
        elif _is_quantized(part):
            problem = (
                "belongs to torch's own quantisation: export the float module that it was made from, and quantise the "
                "file (lit_gelu.export.quantization.quantize_onnx)"
            )
        elif isinstance(part, nn.LSTM) and part.proj_size:
            problem = (
                "has proj_size, which ONNX's LSTM has no place for: train one with proj_size=0 and a Linear behind it"
            )
        if problem:
            raise ExportError(f"{type(model).__name__} cannot be exported. {where or 'It'} {problem}.")
    for where, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(tensor) or tensor.is_meta:
            raise ExportError(
                f"{type(model).__name__} cannot be exported: {where!r} has no values yet. Call a lazy module once "
                "first; load the weights of one on the meta device (load_state_dict(..., assign=True))."
            )


def _is_quantized(module: nn.Module) -> bool:
    """Return whether torch's quantisation made a module, or watches it; fused float layers and stubs are neither."""
    place = f"{type(module).__module__}."
    kinds = r"ao\.(nn(\.intrinsic)?\.(quantized|qat)|quantization\.(observer|fake_quantize))|nn\.(quantized|qat)"
    return re.match(rf"torch(ao)?\.({kinds})\.", place) is not None and type(module).__name__ != "FloatFunctional"


def _converted(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a module in a dtype; complex tensors stay complex, which ``Module.to`` would cut to their real part."""
    kept: list[tuple[dict[str, Any], str, Tensor]] = []
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in list(tensors.items()):
                if tensor is not None and tensor.is_complex():
                    kept.append((tensors, name, tensor))
                    tensors[name] = None
    model = model.to(dtype)
    in_complex = torch.complex128 if dtype == torch.float64 else torch.complex64  # there is none to speak of in 16 bit
    once: dict[int, Tensor] = {}  # a tensor may be in two places
    for place, name, tensor in kept:
        twin = tensor.detach().to(in_complex)
        is_parameter = isinstance(tensor, nn.Parameter)
        place[name] = once.setdefault(id(tensor), nn.Parameter(twin, requires_grad=False) if is_parameter else twin)
    return model


@contextlib.contextmanager
def without_callers_autocast() -> Iterator[None]:
    """Turn off the autocast that surrounds a call, as Lightning's mixed precision does; forward's own still applies."""
    accelerator = torch.accelerator.current_accelerator()
    with contextlib.ExitStack() as stack:
        for kind in {"cpu", "cpu" if accelerator is None else accelerator.type}:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextlib.contextmanager
def _without_hooks_of_training(model: nn.Module) -> Iterator[None]:
    """Take out of a module the forward hooks that its copy does not have; put them back in their order on leaving."""
    before = [(hooks, dict(hooks)) for hooks in _forward_hooks(model)]
    try:
        for hooks, all_of_them in before:
            for key in [key for key, hook in all_of_them.items() if _is_of_training(hook)]:
                del hooks[key]
        yield
    finally:
        for hooks, all_of_them in before:
            after = dict(hooks)  # with those that the module hung on meanwhile, as transformers does at the first call
            hooks.clear()
            hooks.update({**all_of_them, **after})


def _forward_hooks(model: nn.Module) -> list[dict[int, Callable[..., Any]]]:
    """Return the forward hooks and pre-hooks of every module that has any, by their keys, which no two hooks share."""
    kinds = ("_forward_hooks", "_forward_pre_hooks")
    return [module.__dict__[kind] for module in model.modules() for kind in kinds if module.__dict__[kind]]


def _is_of_training(hook: object) -> bool:
    """Return whether a hook is this package's or Lightning's, or a method of an object that is, such as a callback."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    owner = getattr(hook, "__self__", None)
    classes = () if owner is None or isinstance(owner, nn.Module) else type(owner).__mro__
    places = [getattr(hook, "__module__", None), *(cls.__module__ for cls in classes)]
    return any(str(place).partition(".")[0] in _OF_TRAINING for place in places)


@dataclass(frozen=True)
class Trial:
    """A run of the module: inputs of at least two rows, and its outputs with names, none of them an input's."""

    tensors: tuple[Tensor, ...]
    names: tuple[str, ...]
    outputs: tuple[Tensor, ...]
    notes: tuple[str, ...]


@torch.no_grad()
def repeatable_outputs(flat: FlatModule, tensors: Sequence[Tensor]) -> tuple[list[tuple[str, Tensor]], list[str]]:
    """Return named outputs, and notes on what is in no file; refuse a module that is random or has a memory."""
    model = flat.model
    with preserved_state(model) as state:
        before, parameters = _copies(model), {name for name, _ in model.named_parameters()}
        outputs, notes = _run(flat, tensors)
        if late := [name for name, _ in model.named_parameters() if name not in parameters]:
            raise ExportError(
                f"{type(model).__name__} makes weights at its first call: {', '.join(late[:3])}. Call it once before."
            )
        between = _copies(model)
        repeated = [_run(flat, tensors)[0]]
        if _alike(outputs, repeated[0]) and not state.is_changed():
            return outputs, notes
        after = _copies(model)
        written = sorted({*_differing(before, between), *_differing(before, after)})
    # A call on other values may leave something that the next one reads. Where the next one writes over it, as a cache
    # does at the same positions, the rest tells: it is made noise, and what reads it gives other outputs.
    with preserved_state(model):
        _run_on_others(flat, tensors)
        carried = [name for name in _differing(after, _copies(model)) if name in written]
        repeated.append(_run(flat, tensors)[0])
        for name, tensor in tensors_of(model).items():
            if name in carried:
                tensor.copy_(_noise(tensor))
        with_noise: list[tuple[str, Tensor]] = []
        with contextlib.suppress(Exception):  # that noise stops forward, which is the user's, shows that it reads it
            with_noise = _run(flat, tensors)[0]
        repeated.append(with_noise)
    with preserved_state(model):
        anew, _ = _run(flat, tensors)
    if not _alike(outputs, anew):
        names = [name for (name, a), (_, b) in zip(outputs, anew, strict=False) if not _same(a, b)]
        raise ExportError(random_message(model, ", ".join(names)))
    if not all(_alike(outputs, others) for others in repeated):
        raise ExportError(
            f"{type(model).__name__}.forward reads what an earlier call wrote "
            f"({', '.join(map(repr, carried or written))}), and a file has no memory. Take that state as an input of "
            "forward and return the new one; or let forward begin anew where self.training is false."
        )
    buffers = [repr(name) for name, _ in model.named_buffers() if name in carried]
    return outputs, [*notes, *([f"forward writes to {', '.join(buffers)}; the file does not."] if buffers else [])]


def _run(flat: FlatModule, tensors: Sequence[Tensor]) -> tuple[list[tuple[str, Tensor]], list[str]]:
    """Return outputs, which may be views of buffers and are copied, and what is in no file."""
    output = flat.run([tensor.clone() for tensor in tensors])  # forward may overwrite them
    return [(name, tensor.clone()) for name, tensor in named_outputs(output)], left_out(output)


def random_message(model: nn.Module, where: str) -> str:
    """Return the message for a module that does not repeat itself; ``where`` are outputs or operators."""
    return (
        f"{type(model).__name__} gives two answers to one input in evaluation mode ({where}): it draws random numbers, "
        "which a file cannot. Let forward do so only where self.training is true."
    )


def _run_on_others(flat: FlatModule, tensors: Sequence[Tensor]) -> None:
    """Run the module on other values of the same shapes: gaussian ones, or the same rows in another order."""
    generator = torch.Generator().manual_seed(0)
    flipped = [tensor.flip(0) for tensor in tensors]
    drawn = [torch.randn(t.shape, generator=generator).to(t) if t.is_floating_point() else t.flip(0) for t in tensors]
    for others in (drawn, flipped):
        with contextlib.suppress(Exception), torch.random.fork_rng(devices=[]):
            flat.run(others)
            return


def _copies(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors_of(model).items()}


def _differing(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that are new or have other values."""
    return [name for name, tensor in after.items() if name not in before or not equal(before[name], tensor)]


def _noise(tensor: Tensor) -> Tensor:
    """Return other content of the same kind; whole numbers, which may be indices, in another order if there is one."""
    if tensor.is_floating_point() or tensor.is_complex():
        return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)).to(tensor)
    if tensor.dtype == torch.bool:
        return ~tensor
    rolled = tensor.flatten().roll(1).reshape(tensor.shape)
    return torch.full_like(tensor, torch.iinfo(tensor.dtype).max // 2) if equal(rolled, tensor) else rolled


def _same(first: Tensor, second: Tensor) -> bool:
    """Return whether two results agree; the tolerance is for kernels that add in another order each time."""
    return first.shape == second.shape and torch.allclose(first, second, rtol=1e-4, atol=1e-6, equal_nan=True)


def _alike(first: Sequence[tuple[str, Tensor]], second: Sequence[tuple[str, Tensor]]) -> bool:
    return len(first) == len(second) and all(_same(a, b) for (_, a), (_, b) in zip(first, second, strict=True))


def narrowed(flat: FlatModule) -> tuple[Call, list[str]]:
    """Return the call in float32; float64 inputs stay where forward, whose weights are float32 here, takes them."""
    call = flat.call
    if not call.wide:
        return call, []
    names = ", ".join(call.names[place] for place in call.wide)
    if any(True for _ in flat.model.parameters()):  # else its activations would be in float64
        with contextlib.suppress(Exception):
            flat.tried(call.tensors)
            return call, []
    return call.narrowed(), [f"{names}: float64 in the sample; the file takes and computes float32."]


def trial_run(flat: FlatModule, origin: nn.Module | None = None) -> Trial:
    """Run the copy: errors in it are reported as the user's (`ModelInputError`), and it must repeat itself."""
    # At least two rows. With one, `if x.shape[0] == 1` and broadcasting of size-1 dimensions would be decided for one
    # row, in a graph that says it takes any number.
    model, call = type(flat.model).__name__, flat.call
    tensors = call.resized(max(2, call.batch_size))
    with torch.random.fork_rng(devices=[]):
        try:
            outputs, notes = repeatable_outputs(flat, tensors)
        except ExportError:
            raise
        except Exception as error:
            raise _refused(flat, tensors, error, origin) from error
    if not outputs:
        raise ExportError(
            f"{model}.forward returns no tensor that can be found. Accepted: a tensor, a tuple, list or dict of them, "
            "or an object that has them as attributes, such as a dataclass without slots."
        )
    names = output_names([name for name, _ in outputs], call)
    notes += [
        f"output {name!r} is complex in the module; in the file it is real, with a last axis of 2 for real and "
        f"imaginary part: {[*tensor.shape, 2]} for {list(tensor.shape)}."
        for name, (_, tensor) in zip(names, outputs, strict=True)
        if tensor.is_complex()
    ]
    return Trial(tensors, names, tuple(tensor for _, tensor in outputs), tuple(notes))


def _refused(
    flat: FlatModule, tensors: Sequence[Tensor], error: Exception, origin: nn.Module | None = None
) -> ModelInputError:
    """Say on what forward fails; of the module that the copy was made from, which layers were converted for it."""
    pairs = zip(flat.call.names, tensors, strict=True)
    shapes = ", ".join(f"{name} {tuple(t.shape)} {t.dtype}" for name, t in pairs)
    remedy = "If forward takes another call, give that as input_sample=."
    if tensors[0].shape != flat.call.tensors[0].shape:
        remedy = (
            "A file's batch is open, so the sample's one row was tried twice over; for a file of one row alone give "
            f"dynamic_shapes={fixed_batch(flat.call)}."
        )
    places = () if origin is None else itertools.chain(origin.named_parameters(), origin.named_buffers())
    dtypes = {name: tensor.dtype for name, tensor in places if tensor.is_floating_point()}
    if len(set(dtypes.values())) > 1:
        converted = [f"{name} ({dtype})" for name, dtype in dtypes.items() if dtype != torch.float32]
        remedy = (
            f"Export computes in float32, so {', '.join(converted[:4])} were converted: let forward cast to the "
            "layer's dtype, x.to(self.layer.weight.dtype), and not to one by name."
        )
    reason = str(error).rstrip(".")
    return ModelInputError(f"{type(flat.model).__name__}.forward fails on the sample ({shapes}): {reason}. {remedy}")


def output_names(names: Sequence[str], call: Call) -> tuple[str, ...]:
    """Return the names that outputs have in a file: none is an input's, and no two are the same."""
    return tuple(unique_names([name if name not in call.names else f"output_{name}" for name in names]))


def require_faithful(
    flat: FlatModule, model: nn.Module, tensors: Sequence[Tensor], caller: Sequence[Tensor] = ()
) -> list[str]:
    """Refuse a copy whose outputs are not the module's (names, shapes, values); return what is to be noted."""
    # A module in float64 gets the caller's own tensors, which may be float64 where the copy's are not. Integer outputs
    # are compared where it is in float32 or float64 on the CPU, as the copy is.
    model = without_wrappers(model)
    try:
        copied = _outputs(flat, flat.model, tensors)
    except Exception as error:
        raise _refused(flat, tensors, error) from error
    try:
        wide = any(part.dtype == torch.float64 for part in model.parameters())
        original = _outputs(flat, model, caller if wide and caller else tensors)
    except Exception as error:  # noqa: BLE001 - a module in 16 bit need not run on the CPU, and then it cannot be asked
        return [f"the copy was not compared with the module itself, which fails on the sample ({error})."]
    parts = [*model.parameters(), *model.buffers()]
    exact = all(t.device.type == "cpu" and (t.dtype.itemsize >= 4 or not t.is_floating_point()) for t in parts)
    difference = _difference(original, copied, exact=exact)
    if difference:
        raise ExportError(
            f"A copy of {type(model).__name__} in float32 does not compute what the module computes: {difference}. "
            "Export and proof work on copies: let __deepcopy__ and __setstate__ keep all that forward uses. If it "
            "needs float64 inputs, keep its layers in float32, and call .float() in forward on what is small."
        )
    return ["the module's weights are float64; the file has and computes float32."] if wide else []


def _outputs(flat: FlatModule, model: nn.Module, tensors: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
    """Return what a module gives in the place of the copy, in its own dtype and on its own device."""
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    with (
        preserved_state(model),
        evaluation_mode(model),
        torch.no_grad(),
        isolated_random_state(model),
        side_pass(),
        _without_hooks_of_training(model),
        as_written(),  # parts that torch.compile made need not be compiled for this
    ):
        inputs = flat.fed([t.clone() for t in tensors])  # forward may overwrite them
        inputs = [t.to(like.device, like.dtype if t.dtype == torch.float32 else t.dtype) for t in inputs]
        return [(name, as_in_a_file(output)) for name, output in named_outputs(flat.called(model, inputs))]


def _difference(original: list[tuple[str, Tensor]], copied: list[tuple[str, Tensor]], *, exact: bool) -> str:
    """Say what is different; empty for nothing."""
    names, others = ([name for name, _ in outputs] for outputs in (original, copied))
    if names != others:
        return f"the module returns {len(names)} tensors, {names}, and its copy {len(others)}, {others}"
    for (name, a), (_, b) in zip(original, copied, strict=True):
        if a.shape != b.shape:
            return f"{name} has the shape {list(a.shape)}, and {list(b.shape)} in the copy"
        if not (a.is_floating_point() and b.is_floating_point()):
            if exact and not torch.equal(a, b):
                return f"{name} has other values in the copy"
            continue
        a, b = a.detach().cpu().double(), b.detach().cpu().double()
        off = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs()).nan_to_num(nan=torch.inf)
        largest = a.abs()[a.isfinite()].amax().item() if a.isfinite().any() else 0.0
        if off.numel() and off.max() > (_ALIKE if exact else _ALIKE_ELSEWHERE) * largest + _NOTHING:
            return f"{name} differs by {off.max():.2g}, where its largest value is {largest:.2g}"
    return ""


def approximate_(
    flat: FlatModule, approximate: str, registry: ActivationRegistry, dtype: torch.dtype = torch.float32
) -> None:
    """Give every GELU of a module one form in place: modules, and calls of functions that its sample reaches."""
    if approximate == "as_trained":
        return
    rows = flat.call.resized(max(2, flat.call.batch_size))  # as it is traced: with one row it may do something else
    sample = tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in rows)
    targets = {surgery.by_activation("gelu"): f"gelu(approximate={approximate!r})"}
    try:
        surgery.swap(flat, targets, sample, registry=registry)
    except SwapError as error:
        raise ArgumentError(
            f"approximate={approximate!r} was asked for, but not every GELU of {type(flat.model).__name__} can have "
            f"that form, or it has none: {error} Use approximate='as_trained', or lit_gelu.surgery.swap first."
        ) from error
