"""The evaluation-mode copy that is exported, and runs of it beside the caller's module, which is never touched."""

import contextlib
import functools
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lit_gelu import surgery
from lit_gelu.activations import ActivationRegistry
from lit_gelu.errors import ArgumentError, ExportError, ModelInputError, SwapError
from lit_gelu.export.inputs import Call, FlatModule, named_outputs, unique_names
from lit_gelu.export.state import repeatable_outputs
from lit_gelu.sandbox import (
    as_written,
    evaluation_mode,
    isolated_generators,
    isolated_random_state,
    preserved_state,
    side_pass,
)
from lit_gelu.surgery.recognition import faithful_copy
from lit_gelu.surgery.sites import without_wrappers

# Whose hooks watch a training: they hold their callback and that the Trainer, and compute nothing.
_OF_TRAINING = frozenset({"lightning", "lightning_fabric", "lit_gelu", "pytorch_lightning"})
# Of the largest output. A copy goes wrong by a lost hook or attribute and not by rounding, so they leave room for a GPU
# with TF32, and for a module in 16 bit whose copy is in float32.
_ALIKE = 1e-3
_ALIKE_ELSEWHERE = 5e-2
_NOTHING = 1e-6  # what is left where an output should be 0


def evaluation_copy(model: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a deep copy on the CPU, in evaluation mode, without what belongs to training."""
    # In the copy, modules wrapped by ``torch.compile`` are unwrapped, a LightningModule has no Trainer, and there are
    # no backward hooks and none of this package's or Lightning's: a monitor's hook holds its callback, the callback the
    # Trainer, and neither belongs in a file. Every other forward hook and pre-hook stays, because it may be a part of
    # what the module computes: ``torch.nn.utils`` computes weights in them, and transformers gathers outputs.
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
            f"{type(model).__name__} cannot be copied ({error}). Export works on a deep copy, so that the module stays "
            "as it is: remove attributes and hooks that copy.deepcopy refuses, such as tensors with a gradient "
            "history, locks or open files."
        ) from error
    for hooks in _forward_hooks(twin):
        for key in watching.keys() & hooks.keys():
            del hooks[key]
    return _converted(twin.cpu(), dtype).eval().requires_grad_(False)


def _replacements(model: nn.Module) -> dict[int, Any]:
    """Return what deepcopy is to put in place of the Trainer, computed weights and backward hooks."""
    memo: dict[int, Any] = {}
    for module in list(model.modules()):
        for name in ("_trainer", "_fabric"):
            if (owner := module.__dict__.get(name)) is not None:
                memo[id(owner)] = None
        for value in module.__dict__.values():  # weights that a pre-hook computes anew at every call
            if isinstance(value, Tensor) and value.grad_fn is not None:
                memo[id(value)] = value.detach().clone()
        for name in ("_backward_hooks", "_backward_pre_hooks"):
            memo[id(module.__dict__[name])] = OrderedDict()
    return memo


def nested_encoders(model: nn.Module) -> list[nn.TransformerEncoder]:
    """Return the encoders that turn padded sequences into nested tensors in inference, which makes padded places 0."""
    encoders = [part for part in model.modules() if isinstance(part, nn.TransformerEncoder)]
    return [part for part in encoders if getattr(part, "use_nested_tensor", False)]


def two_answers(apart: float) -> str:
    """Return what to know of `nested_encoders` whose answers are this far apart, in units of the largest output."""
    return (
        "torch has two answers for padded sequences: in inference nn.TransformerEncoder makes nested tensors of them, "
        "after which padded places are 0; elsewhere, and in the file, these are computed like all others. The outputs "
        f"differ by {apart:.2g} of the largest. nn.TransformerEncoder(..., enable_nested_tensor=False) has one answer."
    )


def require_copyable(model: object) -> None:
    """Refuse what is no module, what TorchScript made, and tensors without values."""
    if not isinstance(model, nn.Module):
        raise ExportError(f"Only a torch.nn.Module can be exported, not {type(model).__name__}.")
    name = type(model).__name__
    if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
        raise ExportError(
            f"{name} was made by torch.jit.trace or torch.jit.script, or a part of it was: copies and forward are "
            "TorchScript's. Give the module that it was made from."
        )
    for where, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(tensor) or tensor.is_meta:
            raise ExportError(
                f"{name} cannot be exported: {where!r} has no values yet. Call a lazy module once first; load the "
                "weights of one on the meta device (load_state_dict(..., assign=True))."
            )


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


def narrowed(flat: FlatModule) -> tuple[Call, list[str]]:
    """Return the call in float32; float64 inputs stay where forward, whose weights are float32 here, takes them."""
    call = flat.call
    if not call.wide:
        return call, []
    names = ", ".join(call.names[place] for place in call.wide)
    if any(True for _ in flat.model.parameters()):  # else its activations would be in float64
        with contextlib.suppress(Exception), preserved_state(flat.model), torch.no_grad(), isolated_generators([]):
            flat.run([tensor.clone() for tensor in call.tensors])
            return call, []
    return call.narrowed(), [f"{names}: float64 in the sample; the file takes and computes float32."]


def trial_run(flat: FlatModule) -> Trial:
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
            raise _refused(flat, tensors, error) from error
    if not outputs:
        raise ExportError(
            f"{model}.forward returns no tensor that torch finds. Accepted: a tensor, a tuple, list or dict of them, "
            "or a dataclass that is known to torch: call torch.export.register_dataclass(...) once, before the export."
        )
    names = output_names([name for name, _ in outputs], call)
    notes += [
        f"output {name!r} is complex in the module; in the file it is real, with a last axis of 2 for real and "
        f"imaginary part: {[*tensor.shape, 2]} for {list(tensor.shape)}."
        for name, (_, tensor) in zip(names, outputs, strict=True)
        if tensor.is_complex()
    ]
    return Trial(tensors, names, tuple(tensor for _, tensor in outputs), tuple(notes))


def _refused(flat: FlatModule, tensors: Sequence[Tensor], error: Exception) -> ModelInputError:
    pairs = zip(flat.call.names, tensors, strict=True)
    shapes = ", ".join(f"{name} {tuple(t.shape)} {t.dtype}" for name, t in pairs)
    return ModelInputError(
        f"{type(flat.model).__name__}.forward fails on the input sample ({shapes}; the first size is the batch): "
        f"{str(error).rstrip('.')}. If forward takes another call, give that as input_sample=."
    )


def output_names(names: Sequence[str], call: Call) -> tuple[str, ...]:
    """Return the names that outputs have in a file: none is an input's, and no two are the same."""
    return tuple(unique_names([name if name not in call.names else f"output_{name}" for name in names]))


def require_faithful(
    flat: FlatModule, model: nn.Module, tensors: Sequence[Tensor], caller: Sequence[Tensor] = ()
) -> list[str]:
    """Refuse a copy whose outputs are not the module's (names, shapes, values); return what is to be noted."""
    # A module in float64 gets the caller's own tensors, which may be float64 where the copy's are not.
    # The module runs where it is, on the side of its training; modes, buffers and the random state are as before.
    # Integer outputs are compared where it is in float32 or float64 on the CPU, as the copy is.
    model = without_wrappers(model)
    try:
        copied = _outputs(flat, flat.model, tensors)
    except Exception as error:
        raise _refused(flat, tensors, error) from error
    try:
        wide = any(part.dtype == torch.float64 for part in model.parameters())
        own = _outputs(flat, model, caller if wide and caller else tensors)
    except Exception as error:  # noqa: BLE001 - a module in 16 bit need not run on the CPU, and then it cannot be asked
        return [f"the copy was not compared with the module itself, which fails on the sample ({error})."]
    parts = [*model.parameters(), *model.buffers()]
    exact = all(t.device.type == "cpu" and (t.dtype.itemsize >= 4 or not t.is_floating_point()) for t in parts)
    difference = _difference(own, copied, exact=exact)
    if difference and wide and not _difference(_outputs(flat, model, tensors), copied, exact=False):
        raise ExportError(
            f"{type(model).__name__} needs its float64 inputs, and a file that computes in float32 takes float32: "
            f"{difference}. Keep the layers in float32, and let forward take float64 and call .float() on what is "
            "small, such as a time less its start; then the file takes float64 too."
        )
    if difference:
        raise ExportError(
            f"A copy of {type(model).__name__} does not compute what the module computes: {difference}. Export and "
            "proof work on copies. What is lost is what copy.deepcopy does not bring along: let __deepcopy__ and "
            "__setstate__ keep all that forward uses, in attributes, parameters and buffers."
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
        return named_outputs(flat.called(model, inputs))


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
        sites = [f"{site.name}: {site.spec}" for site in surgery.find_sites(flat.model, registry=registry)]
        raise ArgumentError(
            f"approximate={approximate!r} was asked for, but not every GELU of {type(flat.model).__name__} can be "
            f"given that form, or it has none: {error} Its activation modules: {'; '.join(sites) or 'none'}. Use "
            "approximate='as_trained', or swap activations first (lit_gelu.surgery.swap)."
        ) from error
