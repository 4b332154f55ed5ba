"""Whether what a swap puts in really runs: the sample goes through the changed model before anything is said."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from lit_gelu.surgery.changes import Change, make_all
from lit_gelu.surgery.errors import SwapError
from lit_gelu.surgery.mechanisms import Placement
from lit_gelu.surgery.passes import on_the_side, run, training_branches


def ineffective(
    model: nn.Module, input_sample: Any, placements: Sequence[Placement], changes: list[Change]
) -> dict[int, str]:
    """Find the new modules that would never run, though the sample calls what they stand for.

    A class that was exchanged changes nothing where something else is called: a ``forward`` that lies on the instance,
    a hook or a bound method that was kept before. The changes are made for one pass in evaluation mode and one in
    training mode, and taken back.

    Args:
        model: The model.
        input_sample: The sample.
        placements: Which new module is to stand where.
        changes: The changes that put them there.

    Returns:
        By the number of a placement why it has no effect.

    Raises:
        SwapError: If ``forward`` fails with the new activations.
    """
    awaited = {
        id(row.module): number
        for number, row in enumerate(placements)
        if row.place and any(call.count for call in row.site.calls or ())
    }
    ran: set[int] = set()

    def note(module: nn.Module, args: tuple[Any, ...]) -> None:  # noqa: ARG001 - a hook's signature
        ran.add(id(module))

    if awaited:
        with _made(changes), _watched_by(note):
            _run_both_ways(model, input_sample, lambda: awaited.keys() <= ran)
    return {number: _reason(placements[number]) for key, number in awaited.items() if key not in ran}


def _run_both_ways(model: nn.Module, input_sample: Any, seen_all: Callable[[], bool]) -> None:
    """Run the sample in evaluation mode; in training mode too, if that is where the rest may run."""
    try:
        with on_the_side(model):
            run(model, input_sample)
    except SwapError as error:
        cause = error.__cause__ or error
        raise SwapError(
            f"With the new activations {type(model).__name__}.forward fails on input_sample ({type(cause).__name__}: "
            f"{cause}). With the old ones it does not. Choose activations that take what comes there."
        ) from error
    if seen_all():
        return
    try:
        with on_the_side(model), training_branches(model):
            run(model, input_sample)
    except SwapError:
        pass  # as with the old ones: a model may want more for training, and what did not run is told


@contextmanager
def _made(changes: list[Change]) -> Iterator[None]:
    make_all(changes)
    try:
        yield
    finally:
        for change in reversed(changes):
            change.revert()


@contextmanager
def _watched_by(note: Callable[[nn.Module, tuple[Any, ...]], None]) -> Iterator[None]:
    """Call a function before every module's forward, fused paths on."""
    handle = register_module_forward_pre_hook(note)
    try:
        yield
    finally:
        handle.remove()


def _reason(row: Placement) -> str:
    owners = {id(call._seen.owner): call._seen.owner for call in row.site.calls or ()}
    kept = any("forward" in vars(owner) for owner in owners.values())
    return (
        "forward lies on the instance of its module, where that of the class is not looked at"
        if kept
        else "it is called by something that was kept before, such as a hook or a bound method"
    )
