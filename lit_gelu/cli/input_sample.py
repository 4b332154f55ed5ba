"""``--input-shape`` and ``--data``: what a model that says nothing of its inputs is called with."""

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn

from lit_gelu.curvature.probe.batches import ROWS, forward_inputs
from lit_gelu.errors import ModelInputError
from lit_gelu.export.parity.input_families import batches_in
from lit_gelu.sandbox import input_sample_of

DTYPES = {
    name: getattr(torch, name)
    for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool")
}
_INPUT = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>[1-9]\d{0,8}(?:,[1-9]\d{0,8})*)(?::(?P<dtype>\w+))?")
_STAGES = {"test_dataloader": "test", "val_dataloader": "validate", "train_dataloader": "fit"}


def input_sample(shapes: Sequence[str], model: nn.Module, data: LightningDataModule | None) -> Any:
    """Return what to call a model with; ``None`` where only its ``example_input_array`` says it."""
    if shapes:
        return random_sample(shapes)
    if data is None or input_sample_of(model) is not None:
        return None
    return inputs_of_data(data, model)


def sample_for(shapes: Sequence[str], data: LightningDataModule | None) -> Callable[[nn.Module], Any]:
    """Return what gives a model's sample as soon as the model is there, or says what it would need for that."""

    def of(model: nn.Module) -> Any:
        sample = input_sample(shapes, model, data)
        require_input(sample, model)
        return sample

    return of


def require_input(sample: Any, model: nn.Module) -> None:
    """Refuse a model of which it is not known what it takes."""
    if input_sample_of(model, sample) is None:
        raise ModelInputError(
            f"{type(model).__name__} has no example_input_array, which would say what it takes. Give the shape of one "
            "row, such as --input-shape 1,28,28, or a data module: --data my_package.MyData."
        )


def random_sample(shapes: Sequence[str]) -> Any:
    """Make a sample of two rows: normal numbers, levels from 0 to 255 for ``uint8``, ones for other whole numbers."""
    generator = torch.Generator().manual_seed(0)
    tensors = [_random_input(word, generator) for word in shapes]
    names = [name for name, _ in tensors]
    if names == [None]:
        return tensors[0][1]
    if not any(names):
        return tuple(tensor for _, tensor in tensors)
    if None in names or len(set(names)) < len(names):
        raise ModelInputError(f"--input-shape {' '.join(shapes)}: give each input a name of its own, or none any.")
    return dict(tensors)


def _random_input(word: str, generator: torch.Generator) -> tuple[str | None, Tensor]:
    match = _INPUT.fullmatch(word)
    dtype = DTYPES.get(match["dtype"] or "float32") if match else None
    if match is None or dtype is None:
        raise ModelInputError(
            f"--input-shape {word[:100]!r} is not accepted. Give the sizes of one row, without the batch, such as "
            f"1,28,28; a name before it, NAME=16; a type after it, 16:int64. Types: {', '.join(DTYPES)}."
        )
    shape = torch.Size([ROWS, *(int(size) for size in match["shape"].split(","))])
    if dtype == torch.uint8:
        return match["name"], torch.randint(0, 256, shape, generator=generator, dtype=dtype)
    if dtype.is_floating_point:
        return match["name"], torch.randn(shape, generator=generator).to(dtype)
    return match["name"], torch.ones(shape, dtype=dtype)  # as a mask it hides nothing; as an index it is small


def inputs_of_data(data: LightningDataModule, model: nn.Module) -> Any:
    """Return the first rows of a data module's first batch, without targets: of test, validation or training data."""
    for name in _loaders(data):
        data.prepare_data()
        data.setup(_STAGES[name])
        with torch.random.fork_rng(devices=[]):  # a shuffling loader draws from the global state
            batch = next(iter(batches_in(getattr(data, name)())), None)
            inputs = None if batch is None else forward_inputs(batch, model)
        if inputs is not None:
            return inputs
    parameters = ", ".join(inspect.signature(model.forward).parameters)
    raise ModelInputError(
        f"No batch of {type(data).__name__} begins with the inputs of {type(model).__name__}.forward({parameters}), or "
        "has entries of these names. Give --input-shape."
    )


def named_inputs(sample: Any, names: Sequence[str]) -> dict[str, Tensor] | None:
    """Return a sample's tensors by a file's names."""
    if sample is None or isinstance(sample, dict):
        return sample
    tensors = (sample,) if isinstance(sample, Tensor) else tuple(sample)
    if len(tensors) > len(names):
        raise ModelInputError(f"{len(tensors)} inputs were given, the file takes {len(names)}: {', '.join(names)}.")
    return dict(zip(names, tensors, strict=False))


def evaluation_data(data: LightningDataModule | None) -> LightningDataModule | None:
    """Return a data module that has data to measure on."""
    return data if data is not None and {"test_dataloader", "val_dataloader"} & set(_loaders(data)) else None


def _loaders(data: LightningDataModule) -> list[str]:
    return [name for name in _STAGES if is_overridden(name, data, LightningDataModule)]
