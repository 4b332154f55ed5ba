"""What a run of the sample with a planned swap shows: whether what is put in runs, and nothing relied on the old."""

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from lit_gelu.surgery.changes import Change, make_all
from lit_gelu.surgery.errors import SwapError
from lit_gelu.surgery.mechanisms import Substitution
from lit_gelu.surgery.observation import Key, before_every_module, key_of, locate, on_the_side, run
from lit_gelu.surgery.recognition import FunctionTable
from lit_gelu.surgery.sites import ActivationSite, Survey


def ineffective(
    model: nn.Module, input_sample: Any, planned: Sequence[Substitution], changes: Sequence[Change]
) -> dict[int, str]:
    """Find by number, and say why, which new modules would never run, though the sample calls what they stand for."""
    # A class that was exchanged changes nothing where something else is called: a forward that lies on the instance, a
    # hook or a bound method that was kept before.
    awaited: dict[int, int] = {}
    for number, row in enumerate(planned):
        if row.place and any(call.count for call in row.site.calls or ()):
            awaited[id(row.module)] = number

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:  # noqa: ARG001 - a hook's signature
        missing.pop(id(module), None)

    missing = dict(awaited)
    if awaited:
        with _made(changes), before_every_module(note):
            _run_in_evaluation(model, input_sample)
            if missing:
                _run_in_training(model, input_sample)
    return {number: _reason(planned[number]) for number in missing.values()}


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


def _reason(row: Substitution) -> str:
    if any("forward" in vars(call.seen.owner) for call in row.site.calls or ()):
        return "forward lies on the instance of its module, where that of the class is not looked at"
    return "it is called by something that was kept before, such as a hook or a bound method"


def require_no_aliasing(survey: Survey, input_sample: Any, sites: Iterable[ActivationSite]) -> None:
    """Refuse to replace an activation in place whose overwritten input the model uses again."""
    # y = F.relu(x, inplace=True) followed by a use of x means something else with any activation that leaves its input
    # alone. The sample is run with the same activations on copies of their inputs: if the output is another, the model
    # relies on it.
    inplace = [site for site in sites if site.spec.arguments.get("inplace")]
    if not inplace:
        return
    plain = _outputs(survey, input_sample, [])
    if _same(plain, _outputs(survey, input_sample, inplace)) or not _same(plain, _outputs(survey, input_sample, [])):
        return  # in the second case the model does not repeat itself, and nothing can be told
    culprits = [site for site in inplace if not _same(plain, _outputs(survey, input_sample, [site]))] or inplace
    raise SwapError(
        f"{', '.join(repr(site.name) for site in culprits)} overwrites its input, and the model uses the overwritten "
        "input again: another activation in its place would change more than the activation. Write it without "
        "inplace=True first, so that the model says what it means."
    )


def _outputs(survey: Survey, input_sample: Any, out_of_place: list[ActivationSite]) -> list[Tensor]:
    """Return the tensors that the model puts out while some activations get copies of their inputs."""
    modules = [site.module for site in out_of_place if site.kind == "module"]
    calls = [call.seen for site in out_of_place for call in site.calls or ()]
    functions = survey.seen.functions.items() if survey.seen else ()
    keys = {key for key, seen in functions if any(seen is call for call in calls)}
    with on_the_side(survey.model), _copied_inputs(modules), _OutOfPlace(survey.model, survey.table, keys):
        output = run(survey.model, input_sample)
    return [leaf.clone() for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


@contextlib.contextmanager
def _copied_inputs(modules: list[nn.Module]) -> Iterator[None]:
    """Give modules copies of their inputs."""

    def copy(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
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
