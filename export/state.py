"""Whether a module is a function of its inputs: no random numbers, and nothing that an earlier call left.

A file has no memory. A module that reads what an earlier call wrote (a key-value cache, a memory bank, a running
maximum) is another function at each call, and a trial that left its trace in a buffer would put the sample into the
file.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.errors import ExportError
from lit_gelu.export.inputs import FlatModule, left_out, named_outputs
from lit_gelu.sandbox import equal, preserved_state, tensors_of


@torch.no_grad()
def repeatable_outputs(flat: FlatModule, tensors: Sequence[Tensor]) -> tuple[list[tuple[str, Tensor]], list[str]]:
    """Run a module, and leave it as it was; refuse one that draws random numbers or reads what an earlier call wrote.

    Returns:
        The outputs with their names, and notes on what is in no file: other parts of the output, writes to buffers.

    Raises:
        ExportError: If it does not repeat itself.
    """
    with preserved_state(flat.model) as state:
        before, parameters = _copies(flat.model), {name for name, _ in flat.model.named_parameters()}
        output = flat.run(_clones(tensors))
        outputs, notes = _cloned(output), left_out(output)
        if late := [name for name, _ in flat.model.named_parameters() if name not in parameters]:
            raise ExportError(
                f"{type(flat.model).__name__} makes weights at its first call ({', '.join(map(repr, late[:3]))}). Call "
                "it once before the export, so that they are its own."
            )
        written = {*_differing(before, _copies(flat.model))}
        again = _run(flat, tensors)
        if _alike(outputs, again) and not state.is_changed():
            return outputs, notes
        after = _copies(flat.model)
        written = sorted(written | {*_differing(before, after)})
    if not _alike(outputs, again):
        with preserved_state(flat.model):
            anew = _run(flat, tensors)
        raise ExportError(
            _message(flat.model, written)
            if _alike(outputs, anew)
            else random_message(flat.model, _names(outputs, anew))
        )
    # A call on other values may leave something that the next one reads. Where the next one writes over it, as a cache
    # does at the same positions, the rest tells: it is made noise, and what reads it gives other outputs.
    with preserved_state(flat.model):
        _run_on_others(flat, tensors)
        carried = [name for name in _differing(after, _copies(flat.model)) if name in written]
        if not _alike(outputs, _run(flat, tensors)):
            raise ExportError(_message(flat.model, carried or written))
    if not carried:
        return outputs, notes
    with preserved_state(flat.model):
        flat.run(_clones(tensors))
        for name, tensor in tensors_of(flat.model).items():
            if name in carried:
                tensor.copy_(_noise(tensor))
        try:
            alike = _alike(outputs, _run(flat, tensors))
        except Exception:  # noqa: BLE001 - forward is the user's: that noise stops it shows that it reads it
            alike = False
    if not alike:
        raise ExportError(_message(flat.model, carried))
    buffers = [repr(name) for name, _ in flat.model.named_buffers() if name in carried]
    written_only = [f"forward writes to {', '.join(buffers)}; the file does not."] if buffers else []
    return outputs, [*notes, *written_only]


def _run(flat: FlatModule, tensors: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
    return _cloned(flat.run(_clones(tensors)))


def _cloned(output: Any) -> list[tuple[str, Tensor]]:
    return [(name, tensor.clone()) for name, tensor in named_outputs(output)]  # it may be a view of a buffer


def random_message(model: nn.Module, where: str) -> str:
    """Return the message for a module that does not repeat itself; ``where`` are outputs or operators."""
    return (
        f"{type(model).__name__} gives two answers to one input in evaluation mode ({where}): it draws random numbers, "
        "which a file cannot. Let forward do so only where self.training is true."
    )


def _names(outputs: Sequence[tuple[str, Tensor]], others: Sequence[tuple[str, Tensor]]) -> str:
    if len(outputs) != len(others):
        return "their number"
    return ", ".join(name for (name, a), (_, b) in zip(outputs, others, strict=True) if not same(a, b))


def _run_on_others(flat: FlatModule, tensors: Sequence[Tensor]) -> None:
    """Run the module on other values of the same shapes: gaussian ones, or the same rows in another order."""
    generator = torch.Generator().manual_seed(0)
    others = [
        torch.randn(t.shape, generator=generator).to(t.dtype) if t.is_floating_point() else t.flip(0) for t in tensors
    ]
    with contextlib.suppress(Exception), torch.random.fork_rng(devices=[]):
        flat.run(others)
        return
    with contextlib.suppress(Exception), torch.random.fork_rng(devices=[]):
        flat.run([t.flip(0) for t in tensors])


def _clones(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors]


def _copies(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors_of(model).items()}


def _differing(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that are new or have other values."""
    return [name for name, tensor in after.items() if name not in before or not equal(before[name], tensor)]


def _noise(tensor: Tensor) -> Tensor:
    """Return other content of the same kind; whole numbers, which may be indices, in another order."""
    if tensor.is_floating_point() or tensor.is_complex():
        return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)).to(tensor)
    return ~tensor if tensor.dtype == torch.bool else tensor.flatten().roll(1).reshape(tensor.shape)


def same(first: Tensor, second: Tensor) -> bool:
    """Return whether two results agree; the tolerance is for kernels that add in another order each time."""
    return first.shape == second.shape and torch.allclose(first, second, rtol=1e-4, atol=1e-6, equal_nan=True)


def _alike(first: Sequence[tuple[str, Tensor]], second: Sequence[tuple[str, Tensor]]) -> bool:
    return len(first) == len(second) and all(same(a, b) for (_, a), (_, b) in zip(first, second, strict=True))


def _message(model: nn.Module, names: Sequence[str]) -> str:
    places = f" ({', '.join(map(repr, names))})" if names else ""
    return (
        f"{type(model).__name__}.forward reads what an earlier call wrote{places}, and a file has no memory. Take that "
        "state as an input of forward and return the new one, and keep it outside the model; or let forward begin "
        "anew where self.training is false."
    )
