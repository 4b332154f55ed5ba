"""What a batch holds for a model's ``forward``: its inputs, without the targets."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from lit_gelu.sandbox import evaluation_sandbox, isolated_random_state

ROWS = 2


def forward_inputs(batch: Any, model: nn.Module) -> Any:
    """Return the first rows of a batch's inputs; ``None`` where its form does not tell them from the targets."""
    parameters = inspect.signature(model.forward).parameters
    if isinstance(batch, Tensor):
        return batch[:ROWS]
    if isinstance(batch, Mapping):
        named = {name: value for name, value in batch.items() if name in parameters and isinstance(value, Tensor)}
        return {name: value[:ROWS] for name, value in named.items()} or None
    if isinstance(batch, list | tuple):
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        required = [p for p in parameters.values() if p.kind in kinds and p.default is inspect.Parameter.empty]
        count = max(1, len(required))
        inputs = tuple(value[:ROWS] for value in batch[:count] if isinstance(value, Tensor))
        if len(inputs) == count:
            return inputs if count > 1 else inputs[0]
    return None


def forward_sample(model: nn.Module, batch: Any) -> Any:
    """Return a model's ``example_input_array``, or the inputs of a batch if ``forward`` runs on them, or ``None``."""
    sample = getattr(model, "example_input_array", None)
    if sample is not None:
        return sample
    sample = forward_inputs(batch, model)
    return sample if sample is not None and _runs(model, sample) else None


def _runs(model: nn.Module, sample: Any) -> bool:
    """Return whether a model takes a sample: many a LightningModule has a ``training_step`` and no ``forward``."""
    args = () if isinstance(sample, Mapping) else sample if isinstance(sample, tuple) else (sample,)
    named = sample if isinstance(sample, Mapping) else {}
    with isolated_random_state(model), evaluation_sandbox(model):
        try:
            model(*args, **named)
        except Exception:  # noqa: BLE001 - of a user's module
            return False
    return True
