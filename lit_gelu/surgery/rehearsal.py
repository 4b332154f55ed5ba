"""What a run of the sample with a planned swap shows: whether what is put in runs, and nothing relied on the old."""

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from lit_gelu.errors import SwapError
from lit_gelu.surgery.changes import Change, make_all
from lit_gelu.surgery.mechanisms import Substitution
from lit_gelu.surgery.observation import Key, SeenCall, before_every_module, key_of, locate, on_the_side, run
from lit_gelu.surgery.recognition import FunctionTable
from lit_gelu.surgery.sites import ActivationSite, Survey


def ineffective(
    model: nn.Module, input_sample: Any, planned: Sequence[Substitution], changes: Sequence[Change]
) -> dict[int, str]:
    """Find by number, and say why, which new modules would not run as what they stand for does with the sample."""
    # A class that was exchanged changes nothing where something else is called: a forward that lies on the instance, a
    # hook or a bound method that was kept before. And a new child runs from elsewhere too where a module's code goes
    # through its children.
    awaited: dict[int, int] = {}
    for number, row in enumerate(planned):
        if row.place and any(call.count for call in row.site.calls or ()):
            awaited[id(row.module)] = number
    callers: dict[int, set[Key]] = {number: set() for number in awaited.values()}
    modules = {id(module): module for module in model.modules()}  # before the new ones come: those are called

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:  # noqa: ARG001 - a hook's signature
        if id(module) in awaited:
            found = locate(sys._getframe(1), modules)
            callers[awaited[id(module)]].update([] if found is None else [key_of(found, "")])
            missing.pop(id(module), None)

    missing = dict(awaited)
    if awaited:
        with _made(changes), before_every_module(note):
            _run_in_evaluation(model, input_sample)
            if missing:
                _run_in_training(model, input_sample)
    found = {number: _reason(planned[number]) for number in missing.values()}
    added = {number for number in callers if planned[number].site.kind == "call" and not planned[number].is_in_place}
    return found | {number: _CALLED_TWICE for number in added if len(callers[number]) > 1}


def _run_in_evaluation(model: nn.Module, input_sample: Any) -> None:
    try:
        with on_the_side(model):
            run(model, input_sample)
    except SwapError as error:
        cause = error.__cause__ or error
        raise SwapError(
            f"With the new activations {type(model).__name__}.forward fails on input_sample ({type(cause).__name__}: "
            f"{cause}). With the old ones it does not. Choose activations that take what comes there."
        ) from error


def _run_in_training(model: nn.Module, input_sample: Any) -> None:
    # As with the old ones: a model may want more for training, and what did not run is told.
    with contextlib.suppress(SwapError), on_the_side(model, training=True):
        run(model, input_sample)


@contextlib.contextmanager
def _made(changes: Sequence[Change]) -> Iterator[None]:
    make_all(changes)
    try:
        yield
    finally:
        for change in reversed(changes):
            change.revert()


_NEVER = "the new activation would never run, because"
_CALLED_TWICE = "it would run from other places too: the module's code goes through its children"


def _reason(row: Substitution) -> str:
    if any("forward" in vars(call.seen.owner) for call in row.site.calls or ()):
        return f"{_NEVER} forward lies on the instance of its module, where that of the class is not looked at"
    return f"{_NEVER} it is called by something that was kept before, such as a hook or a bound method"


def require_no_aliasing(survey: Survey, input_sample: Any, sites: Iterable[ActivationSite]) -> None:
    """Refuse to replace an activation in place whose overwritten input the model uses again."""
    # y = F.relu(x, inplace=True) followed by a use of x means something else with any activation that leaves its input
    # alone. The sample is run with the same activations on copies of their inputs: if the output is another, the model
    # relies on it.
    inplace = [site for site in sites if site.spec.arguments.get("inplace")]
    if not inplace:
        return
    culprits = _relied_on(survey, input_sample, inplace, training=False)
    with contextlib.suppress(SwapError):  # a model may want more for training
        culprits = culprits or _relied_on(survey, input_sample, inplace, training=True)
    if not culprits:
        return
    raise SwapError(
        f"{', '.join(repr(site.name) for site in culprits)} overwrites its input, and the model uses the overwritten "
        "input again: another activation in its place would change more than the activation. Write it without "
        "inplace=True first, so that the model says what it means."
    )


def _relied_on(
    survey: Survey, input_sample: Any, inplace: list[ActivationSite], *, training: bool
) -> list[ActivationSite]:
    """Return the sites whose overwritten inputs the model uses again, as a pass in one of the modes shows."""

    def outputs(out_of_place: list[ActivationSite]) -> list[Tensor]:
        return _outputs(survey, input_sample, out_of_place, training=training)

    plain = outputs([])
    if _same(plain, outputs(inplace)) or not _same(plain, outputs([])):
        return []  # in the second case the model does not repeat itself, and nothing can be told
    return [site for site in inplace if not _same(plain, outputs([site]))] or inplace


def _outputs(survey: Survey, input_sample: Any, out_of_place: list[ActivationSite], *, training: bool) -> list[Tensor]:
    """Return the tensors that the model puts out while some activations get copies of their inputs."""
    calls = [call.seen for site in out_of_place for call in site.calls or ()]
    seen = survey.seen

    def keys_of(rows: Mapping[Key, SeenCall]) -> set[Key]:
        return {key for key, row in rows.items() if any(row is call for call in calls)}

    modules: dict[nn.Module, set[Key] | None] = {site.module: None for site in out_of_place if site.kind == "module"}
    for module in survey.model.modules():  # of some, only some calls are sites
        keys = keys_of(seen.modules.get(id(module), {})) if seen else set()
        if keys and module not in modules:
            modules[module] = keys
    functions = keys_of(seen.functions) if seen else set()
    copied = _copied_inputs(survey.model, modules)
    with on_the_side(survey.model, training=training), copied, _OutOfPlace(survey.model, survey.table, functions):
        output = run(survey.model, input_sample)
    return [leaf.clone() for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


@contextlib.contextmanager
def _copied_inputs(model: nn.Module, modules: Mapping[nn.Module, set[Key] | None]) -> Iterator[None]:
    """Give modules copies of their inputs, in calls from some expressions or, of ``None``, in all."""
    known = {id(module): module for module in model.modules()}

    def copy(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        keys = modules[module]
        found = None if keys is None else locate(sys._getframe(1), known)
        if keys is not None and (found is None or not any(key[:3] == key_of(found, "")[:3] for key in keys)):
            return args
        return tuple(arg.clone() if isinstance(arg, Tensor) else arg for arg in args)

    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_pre_hook(copy).remove)
        yield


class _OutOfPlace(TorchFunctionMode):
    """Gives some calls copies of their inputs."""

    def __init__(self, model: nn.Module, table: FunctionTable, keys: set[Key]) -> None:
        super().__init__()
        self._modules = {id(module): module for module in model.modules()}
        self._table = table
        self._keys = keys

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        known = self._table.find_call(func, args, kwargs or {}) if self._keys and args else None
        if known is not None:
            found = locate(sys._getframe(1), self._modules)
            if found is not None and key_of(found, known.name) in self._keys:
                args = (args[0].clone(), *args[1:])
        return func(*args, **(kwargs or {}))


def _same(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(
        a.shape == b.shape and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
        if a.is_floating_point()
        else torch.equal(a, b)
        for a, b in zip(first, second, strict=True)
    )
