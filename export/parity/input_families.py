"""The inputs that a file is compared on: samples, data, batch sizes and extremes."""

import inspect
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lit_gelu.errors import ModelInputError
from lit_gelu.export.input_kinds import Kind, OfSample, integer_kinds, other_sizes, resized
from lit_gelu.export.inputs import (
    PAST,
    RAW_DTYPE,
    Batch,
    Call,
    drawn,
    plain_tensor,
    random_batch,
    sample_lengths,
    sample_of,
    take_apart,
)
from lit_gelu.export.preprocessing import is_data_module, sample_call
from lit_gelu.export.runtime import OnnxPredictor
from lit_gelu.export.runtime.model_file import random_inputs
from lit_gelu.sandbox import input_sample_of

Trouble = Callable[[Sequence[Tensor]], str]  # says what is wrong with inputs, nothing if the module takes them


def input_kinds(
    call: Call, run: Callable[[Sequence[Tensor]], object], trouble: Trouble, *, raw: bool
) -> tuple[dict[int, Kind], list[str]]:
    """Say what inputs may hold that are not to be gaussian, and what cannot be varied; raw pixels are none of these."""
    places = call.whole_numbers(raw=raw)
    kinds, notes = integer_kinds(call, run, places) if places else ({}, [])
    if trouble(call.tensors):  # on the sample already: drawn values cannot be judged
        return kinds, notes
    usable: dict[int, Kind] = {}
    for place, kind in kinds.items():
        refused = trouble(drawn(call.tensors, {**usable, place: kind}, torch.Generator().manual_seed(0)))
        if refused:
            notes.append(f"input {call.names[place]!r} was not varied: with drawn values {refused}.")
        else:
            usable[place] = kind
    others, instead = ({}, []) if raw else _instead_of_gaussian(call, usable, trouble)
    return {**usable, **others}, [*notes, *instead]


def _instead_of_gaussian(call: Call, kinds: Mapping[int, Kind], trouble: Trouble) -> tuple[dict[int, Kind], list[str]]:
    """Return what to draw floating-point inputs from if the module takes no gaussian ones, such as for a logarithm."""
    floats = [i for i, t in enumerate(call.tensors) if t.is_floating_point() and t.numel() and i not in kinds]
    generator = torch.Generator().manual_seed(0)
    gaussian = [torch.randn(t.shape, generator=generator) if i in floats else t for i, t in enumerate(call.tensors)]
    refused = trouble(drawn(gaussian, kinds, torch.Generator().manual_seed(0))) if floats else ""
    if not refused:
        return {}, []
    others: dict[int, Kind] = {i: OfSample(call.tensors[i].flatten()) for i in floats}
    if trouble(drawn(call.tensors, {**kinds, **others}, torch.Generator().manual_seed(0))):
        return {}, []
    return others, [f"with gaussian values {refused}; the sample's own were drawn instead."]


GAUSSIAN_ROWS = 32
EXTREME_ROWS = 8
LENGTH_ROWS = 4
DATA = "data"  # the family of the user's own
SAMPLE = "sample"
_OTHER_LENGTHS = 4  # beside the sample's


@dataclass(frozen=True)
class Family:
    """Inputs of one kind."""

    name: str  # what they are
    batches: Iterable[Batch]  # the inputs; read once
    # Whether they are far outside the range of data: outputs are then judged by at least the size that they have on
    # gaussian inputs (those of zeros may be zero), and what PyTorch cannot hold either is excused.
    extreme: bool = False
    gap: bool = False  # whether the gap to the module as trained is reported on them
    # A larger family of the same kind: PyTorch's own error is the larger one of both, since the largest error of a few
    # numbers says little.
    rows_of: str = ""


_LARGE, _LARGE_FLOAT16 = ("1e3", "1e4"), ("10", "100")  # float16 ends at 65504
_EXTREMES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "negative tail, -10 |gaussian|": lambda g: -10 * g.abs(),
    "tiny, 1e-30": lambda g: 1e-30 * g,
    "subnormal, 1e-40": lambda g: 1e-40 * g,
    "zeros": torch.zeros_like,
}


def families(
    call: Call,
    data: Any,
    model: nn.Module,
    seed: int,
    *,
    raw: bool = False,
    dtype: torch.dtype = torch.float32,
    kinds: Mapping[int, Kind] = MappingProxyType({}),
    lengths: Sequence[Call] = (),
) -> Iterator[Family]:
    """Yield the inputs to compare on."""
    # Integer inputs (token indices, masks) are drawn where it is known what they may hold, and else keep the sample's
    # values; without a floating-point input there are no gaussian and no extreme families. Raw pixels are random ones
    # in the place of gaussian values, and all black and all white.
    floating = any(tensor.is_floating_point() for tensor in call.tensors)
    usual = "sample's values" if any(call.tensors[i].is_floating_point() for i in kinds) else "gaussian"
    kind = "random pixels" if raw else usual if floating else "random" if kinds else "sample"
    size = GAUSSIAN_ROWS if any(call.batched) else call.batch_size  # of a fixed batch, as many as give 32 rows
    full_batch = f"{kind}, batch {size}"
    yield Family(SAMPLE, [call.tensors], gap=data is None, rows_of=full_batch)
    if data is not None:
        yield Family(DATA, data_batches(data, model, call), gap=True)
    generator = torch.Generator().manual_seed(seed)
    batches = [random_batch(call, size, generator, kinds, raw=raw) for _ in range(-(-GAUSSIAN_ROWS // size))]
    rows = batches[0]
    yield Family(full_batch, batches, gap=True)
    for size in (1, 2) if any(call.batched) else ():
        yield Family(f"{kind}, batch {size}", [call.selected(rows, torch.arange(size))], rows_of=full_batch)
    for other in lengths:
        shapes = {name: list(t.shape[1:]) for name, t in zip(other.names, other.tensors, strict=True)}
        for name in [name for name in shapes if name.startswith(f"{PAST}.")][1:]:  # all of a cache are alike
            del shapes[name]
        shown = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        yield Family(f"{kind}, {shown}", [random_batch(other, LENGTH_ROWS, generator, kinds, raw=raw)])
    if raw:
        for name, value in (("black", 0), ("white", 255)):
            pixels, *others = call.selected(rows, torch.arange(2))
            yield Family(name, [(torch.full_like(pixels, value), *others)])
    if floating:
        factors = _LARGE_FLOAT16 if dtype == torch.float16 else _LARGE
        changes: dict[str, Callable[[Tensor], Tensor]] = {
            f"gaussian x {factor}": partial(operator.mul, float(factor)) for factor in factors
        }
        integers = {i: kind for i, kind in kinds.items() if not call.tensors[i].is_floating_point()}
        for name, change in {**changes, **_EXTREMES}.items():
            batch = random_batch(call, EXTREME_ROWS, generator, integers, raw=raw)
            yield Family(name, [tuple(change(t) if t.is_floating_point() else t for t in batch)], extreme=True)


def data_batches(data: Any, model: nn.Module, call: Call) -> Iterator[Batch]:
    """Yield the inputs of a tensor, of DataLoaders or of a LightningDataModule, without the targets."""
    # Of a data module the test data, or its validation data if it has none; of a tuple the first parts, of a dict those
    # with forward's names.
    empty = True
    with torch.random.fork_rng(devices=[]):  # a shuffling loader draws from the global state
        for batch in list_or_loader(data):
            inputs = _inputs_of(batch, model, call)
            if inputs and 0 not in inputs[0].shape[:1]:
                empty = False
                yield inputs
    if empty:
        raise ModelInputError("The data hold no row. Give a tensor, a DataLoader or a LightningDataModule.")


def list_or_loader(data: Any) -> Iterable[Any]:
    """Return batches of what `data_batches` takes; ModelInputError if it is nothing of that."""
    loaders = loaders_in(data)
    if loaders and all(isinstance(loader, DataLoader) for loader in loaders):
        return itertools.chain.from_iterable(loaders) if len(loaders) > 1 else loaders[0]
    if isinstance(data, (Tensor, Mapping, tuple)):
        return [data]
    if not is_data_module(data) and isinstance(data, Iterable):
        return data
    if not is_data_module(data):
        raise ModelInputError(f"data={type(data).__name__}: give a tensor, a DataLoader or a LightningDataModule.")
    from lightning.pytorch import LightningDataModule
    from lightning.pytorch.utilities.model_helpers import is_overridden

    has_test_data = is_overridden("test_dataloader", data, LightningDataModule)
    if not (has_test_data or is_overridden("val_dataloader", data, LightningDataModule)):
        raise ModelInputError(f"{type(data).__name__} has neither test_dataloader nor val_dataloader. Define one.")
    data.prepare_data()
    data.setup("test" if has_test_data else "validate")
    return batches_in(data.test_dataloader() if has_test_data else data.val_dataloader())


def batches_in(dataloaders: Any) -> Iterable[Any]:
    """Return the batches of what a Trainer takes: loaders, or a list of batches."""
    loaders = loaders_in(dataloaders)
    if any(isinstance(loader, Tensor) or not isinstance(loader, Iterable) for loader in loaders):
        return list(dataloaders or ())  # a list of batches; ``None`` of a module that has none
    return loaders[0] if len(loaders) == 1 else itertools.chain.from_iterable(loaders)


def loaders_in(dataloaders: Any) -> list[Any]:
    """Return the loaders in what a Trainer takes: a single one, or lists, tuples and mappings of them."""
    if isinstance(dataloaders, Mapping):
        dataloaders = list(dataloaders.values())
    if isinstance(dataloaders, (list, tuple)):
        return [loader for part in dataloaders for loader in loaders_in(part)]
    return [dataloaders]


def _inputs_of(batch: Any, model: nn.Module, call: Call) -> Batch:
    if isinstance(batch, Mapping):
        parts = [batch[name] for name in call.names if name in batch]
    else:
        parts = [batch] if isinstance(batch, Tensor) else list(batch) if isinstance(batch, Iterable) else []
        if len(parts) >= len(call.names):  # in the order of forward, which need not be the file's
            order = sorted(call.positions)
            parts = [parts[order.index(position)] for position in call.positions]
    tensors = [plain_tensor(part) for part in parts[: len(call.names)] if isinstance(part, Tensor)]
    if len(tensors) != len(call.names):
        raise ModelInputError(
            f"A batch of the data gives {len(tensors)} input tensors, {type(model).__name__}.forward takes "
            f"{len(call.names)}: {', '.join(call.names)}. Give batches that begin with the inputs, or dicts by name."
        )
    for name, tensor, sample in zip(call.names, tensors, call.tensors, strict=True):
        alike = tensor.dtype == sample.dtype or (tensor.is_floating_point() and sample.is_floating_point())
        if tensor.ndim != sample.ndim or not alike:
            hint = " The file takes raw pixels: give them as they are before the preprocessing."
            raise ModelInputError(
                f"A batch of the data has {name!r} as {tensor.dtype} of shape {tuple(tensor.shape)}, the sample is "
                f"{sample.dtype} of shape {tuple(sample.shape)}.{hint if sample.dtype == RAW_DTYPE else ''}"
            )
    return tuple(tensors)


def other_lengths(
    call: Call, shapes: Sequence[Sequence[int | str | None]], trouble: Trouble
) -> tuple[list[Call], list[str]]:
    """Return the sample in up to four other sizes of each open dimension, those of `other_sizes` that it takes."""
    # Dimensions take turns, so that no two have the same size all the time; those that are only accepted together
    # change together.
    lengths = {name: length for name, length in sample_lengths(call, shapes).items() if name != shapes[0][0]}
    if not lengths:
        return [], []
    calls: list[Call] = []
    for groups in ([{name: length} for name, length in lengths.items()], [lengths]):
        tried = [_accepted_sizes(call, shapes, group, trouble) for group in groups]
        accepted, notes = [sizes for sizes, _ in tried], [note for _, refused in tried for note in refused]
        calls = []
        for turn in range(max(map(len, accepted)) if all(accepted) else 0):
            parts = [sizes[(turn + i) % len(sizes)] for i, sizes in enumerate(accepted)]
            together = {name: n for part in parts for name, n in part.items()}
            calls.append(replace(call, tensors=resized(call, shapes, together)))
        if calls and not any(trouble(other.tensors) for other in calls):
            break
    return calls, notes


def _accepted_sizes(
    call: Call, shapes: Sequence[Sequence[int | str | None]], lengths: Mapping[str, int], trouble: Trouble
) -> tuple[list[dict[str, int]], list[str]]:
    """Return up to four other sizes of open dimensions that the module takes, and why it does not take others."""
    accepted: list[dict[str, int]] = []
    notes = []
    for sizes in other_sizes(lengths, lambda sizes: not trouble(resized(call, shapes, sizes))):
        if len(accepted) == _OTHER_LENGTHS:
            break
        tensors = resized(call, shapes, sizes)
        if refused := trouble(tensors):
            shown = ", ".join(f"{name} {list(t.shape)}" for name, t in zip(call.names, tensors, strict=True))
            notes.append(f"the sizes {shown} were not tried: with them {refused}.")
        else:
            accepted.append(sizes)
    return accepted, notes


def file_call(model: nn.Module, preprocessing: nn.Module | None, input_sample: Any, predictor: OnnxPredictor) -> Call:
    """Return the sample call: of the given sample, the module's own, or one that is made up."""
    owners = [model] if preprocessing is None else [model, preprocessing]
    if all(input_sample_of(owner, input_sample) is None for owner in owners):
        inputs = random_inputs(predictor.ports, 2)
        by_name = inputs.keys() <= inspect.signature(model.forward).parameters.keys()
        input_sample = inputs if by_name else tuple(inputs.values())
    if preprocessing is None:
        return take_apart(model, sample_of(model, input_sample))
    return sample_call(model, preprocessing, input_sample)[0]
