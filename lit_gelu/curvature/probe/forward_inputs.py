"""What a batch holds for a model's ``forward``: its inputs, without the targets."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from lit_gelu.curvature.probe.examples import take_examples
from lit_gelu.errors import ArgumentError
from lit_gelu.sandbox import evaluation_sandbox, input_sample_of, isolated_random_state

ROWS = 2


def forward_inputs(batch: Any, model: nn.Module) -> Any:
    """Return the first rows of a batch's inputs; ``None`` where its form does not tell them from the targets."""
    if isinstance(batch, Tensor):
        return batch[:ROWS]
    if isinstance(batch, Mapping):
        parameters = inspect.signature(model.forward).parameters
        named = {name: value for name, value in batch.items() if name in parameters and isinstance(value, Tensor)}
        return {name: value[:ROWS] for name, value in named.items()} or None
    if isinstance(batch, list | tuple):
        count = max(1, _required(model))
        inputs = tuple(value[:ROWS] for value in batch[:count] if isinstance(value, Tensor))
        if len(inputs) == count:
            return inputs if count > 1 else inputs[0]
    return None


def forward_sample(model: nn.Module, batch: Any, input_sample: Any = None) -> Any:
    """Return `input_sample_of` a model, or the inputs of a batch if ``forward`` runs on them, or ``None``."""
    sample = input_sample_of(model, input_sample)
    return tried_inputs(model, batch)[0] if sample is None else sample


def tried_inputs(model: nn.Module, batch: Any) -> tuple[Any, Exception | None]:
    """Return the inputs of a batch that ``forward`` runs on; else ``None``, and why it fails on those tried first."""
    first = None
    for sample in _candidates(batch, model):
        failure = failure_on(model, sample)
        if failure is None:
            return sample, None
        first = first or failure
    return None, first


def failure_on(model: nn.Module, sample: Any) -> Exception | None:
    """Return why a model does not run on a sample: many a LightningModule has no ``forward``, for one."""
    args = () if isinstance(sample, Mapping) else sample if isinstance(sample, list | tuple) else (sample,)
    named = sample if isinstance(sample, Mapping) else {}
    with isolated_random_state(model), evaluation_sandbox(model):
        try:
            model(*args, **named)
        except Exception as failure:  # noqa: BLE001 - of a user's module
            return failure
    return None


def _candidates(batch: Any, model: nn.Module) -> Iterator[Any]:
    """Yield what of a batch may be a model's inputs, as ``example_input_array`` has them, the likely ones first."""
    inputs = forward_inputs(batch, model)
    if inputs is not None:
        yield inputs
    nested = batch[0] if isinstance(batch, list | tuple) and batch else batch
    if not isinstance(nested, Mapping | list | tuple):
        return
    try:
        rows = take_examples(nested, ROWS)
    except ArgumentError:  # it has no tensors, or packed ones
        return
    if _required(model) == 1:
        yield (rows,)
    yield dict(rows) if isinstance(rows, Mapping) else tuple(rows)


def _required(model: nn.Module) -> int:
    """Return how many arguments by position ``forward`` cannot do without."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(model.forward).parameters.values()
    return sum(one.kind in kinds and one.default is inspect.Parameter.empty for one in parameters)
