"""A run of the module in PyTorch before it is exported: the user's own errors, the outputs' names, and randomness."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_gelu.export.errors import ExportError, ModelInputError
from lit_gelu.export.inputs import Call, FlatModule, named_outputs, unique_names


@dataclass(frozen=True)
class Trial:
    """A run of the module in PyTorch.

    Args:
        tensors: The inputs: at least two rows.
        names: Names of the outputs, none of them an input's.
        outputs: The outputs.
    """

    tensors: tuple[Tensor, ...]
    names: tuple[str, ...]
    outputs: tuple[Tensor, ...]


@torch.no_grad()
def trial_run(flat: FlatModule) -> Trial:
    """Run the module twice in PyTorch: its errors are reported as the user's, and it must repeat itself.

    The sample is brought to at least two rows. With one row, ``if x.shape[0] == 1`` and broadcasting of size-1
    dimensions would be decided for one row, in a graph that says it takes any number.

    Args:
        flat: The evaluation-mode copy and its sample call.

    Returns:
        The inputs and outputs.

    Raises:
        ModelInputError: If ``forward`` fails on the sample.
        ExportError: If two runs differ, or there is no tensor in the output.
    """
    model, call = type(flat.model).__name__, flat.call
    tensors = call.resized(max(2, call.batch_size))
    with torch.random.fork_rng(devices=[]):
        try:
            first, second = named_outputs(flat.run(tensors)), named_outputs(flat.run(tensors))
        except Exception as error:
            shapes = ", ".join(
                f"{name} {tuple(t.shape)} {t.dtype}" for name, t in zip(call.names, tensors, strict=True)
            )
            raise ModelInputError(f"{model}.forward fails on the input sample ({shapes}): {error}") from error
    if not first:
        raise ExportError(f"{model}.forward returns no tensor, so there is nothing to export.")
    differing = [name for (name, a), (_, b) in zip(first, second, strict=True) if not _same(a, b)]
    if differing:
        raise ExportError(random_message(model, ", ".join(differing)))
    return Trial(tensors, output_names([name for name, _ in first], call), tuple(tensor for _, tensor in first))


def output_names(names: Sequence[str], call: Call) -> tuple[str, ...]:
    """Return the names that outputs have in a file: none is an input's, and no two are the same.

    Args:
        names: What `lit_gelu.export.inputs.named_outputs` calls them.
        call: Names the inputs.

    Returns:
        As many names.
    """
    return tuple(unique_names([name if name not in call.names else f"output_{name}" for name in names]))


def random_message(model: str, where: str) -> str:
    """Return the message for a module that is random in evaluation mode.

    Args:
        model: Its class.
        where: The outputs or operators that show it.

    Returns:
        The message.
    """
    return (
        f"{model} draws random numbers in evaluation mode ({where}), so no file can compute what it computes. Let "
        "forward do so only where self.training is true."
    )


def _same(first: Tensor, second: Tensor) -> bool:
    """Return whether two results agree; the tolerance is for kernels that add in another order each time."""
    return first.shape == second.shape and torch.allclose(first, second, rtol=1e-4, atol=1e-6, equal_nan=True)
