"""The inputs that a file is compared on: samples, data, batch sizes and extremes."""

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lit_gelu.export.copying import evaluation_copy
from lit_gelu.export.errors import ModelInputError
from lit_gelu.export.inputs import Call, FlatModule, plain_tensor, sample_of, take_apart
from lit_gelu.export.parity.integer_inputs import Kind, drawn
from lit_gelu.export.parity.sample_values import Magnitudes, OfSample
from lit_gelu.export.preprocessing import RAW_DTYPE, is_data_module, preprocessing_copy, random_pixels, raw_call
from lit_gelu.export.runtime import OnnxPredictor
from lit_gelu.export.runtime.ports import Port

GAUSSIAN_ROWS = 32
EXTREME_ROWS = 8
LENGTH_ROWS = 4
DATA = "data"  # the family of the user's own
SAMPLE = "sample"
_OTHER_LENGTHS = 4  # beside the sample's
_CHANGES: Sequence[Callable[[int], int]] = (
    lambda n: n // 2,
    lambda n: n + 1,
    lambda n: 2 * n,
    lambda n: 3 * n,
    lambda n: 4 * n,
)

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Family:
    """Inputs of one kind."""

    name: str  # what they are
    batches: Iterable[Batch]  # the inputs; read once
    # Whether they are far outside the range of data: outputs are then judged by at least the size that they have on
    # gaussian inputs (those of zeros may be zero), and what PyTorch cannot hold either is excused.
    extreme: bool = False
    gap: bool = False  # whether the gap to the module as trained is reported on them
    # A larger family, whose first rows these are or might be: PyTorch's own error is the larger one of both, since
    # the largest error of a few numbers says little.
    rows_of: str = ""


_LARGE: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gaussian x 1e3": lambda g: 1e3 * g,
    "gaussian x 1e4": lambda g: 1e4 * g,
}
_LARGE_FLOAT16: Mapping[str, Callable[[Tensor], Tensor]] = {  # which ends at 65504
    "gaussian x 10": lambda g: 10 * g,
    "gaussian x 100": lambda g: 100 * g,
}
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
    labels = [kind.label for kind in kinds.values() if isinstance(kind, OfSample | Magnitudes)]
    usual = labels[0] if labels else "gaussian"
    kind = "random pixels" if raw else usual if floating else "random" if kinds else "sample"
    whole = f"{kind}, batch {GAUSSIAN_ROWS}"
    yield Family(SAMPLE, [call.tensors], gap=data is None, rows_of=whole)
    if data is not None:
        yield Family(DATA, data_batches(data, model, call), gap=True)
    generator = torch.Generator().manual_seed(seed)
    rows = random_batch(call, GAUSSIAN_ROWS, generator, kinds, raw=raw)
    yield Family(whole, [rows], gap=True)
    for size in (1, 2):
        yield Family(f"{kind}, batch {size}", [first_rows(rows, call, size)], rows_of=whole)
    for other in lengths:
        shapes = ", ".join(f"{name} {list(t.shape[1:])}" for name, t in zip(other.names, other.tensors, strict=True))
        yield Family(f"{kind}, {shapes}", [random_batch(other, LENGTH_ROWS, generator, kinds, raw=raw)])
    if raw:
        for name, value in (("black", 0), ("white", 255)):
            pixels, *others = first_rows(rows, call, 2)
            yield Family(name, [(torch.full_like(pixels, value), *others)])
    if floating:
        large = _LARGE_FLOAT16 if dtype == torch.float16 else _LARGE
        integers = {i: kind for i, kind in kinds.items() if not call.tensors[i].is_floating_point()}
        for name, change in {**large, **_EXTREMES}.items():
            batch = random_batch(call, EXTREME_ROWS, generator, integers, raw=raw)
            yield Family(name, [tuple(change(t) if t.is_floating_point() else t for t in batch)], extreme=True)


def random_batch(call: Call, rows: int, generator: torch.Generator, kinds: Mapping[int, Kind], *, raw: bool) -> Batch:
    """Return random pixels, what tensors may hold, and standard normal values for the other floating-point ones."""
    first, *others = (
        torch.randn(t.shape, generator=generator, dtype=torch.float32).to(t.dtype)
        if t.is_floating_point() and i not in kinds
        else t
        for i, t in enumerate(drawn(call.resized(rows), kinds, generator))
    )
    return (random_pixels(first.shape, generator) if raw else first, *others)


def first_rows(batch: Batch, call: Call, size: int) -> Batch:
    """Return the first rows of a batch."""
    return call.selected(batch, torch.arange(size))


def data_batches(data: Any, model: nn.Module, call: Call) -> Iterator[Batch]:
    """Yield the inputs of a tensor, of DataLoaders or of a LightningDataModule, without the targets."""
    # Of a data module the test data, or its validation data if it has none; of a tuple the first parts, of a dict those
    # with forward's names.
    empty = True
    with torch.random.fork_rng(devices=[]):  # a shuffling loader draws from the global state
        batches = list_or_loader(data)
        for batch in batches:
            empty = False
            yield _inputs_of(batch, model, call)
    if empty:
        raise ModelInputError(
            "The data hold no batch. Give a tensor, a DataLoader or a LightningDataModule with test data."
        )


def list_or_loader(data: Any) -> Iterable[Any]:
    """Return batches of what `data_batches` takes; ModelInputError if it holds none."""
    loaders = loaders_in(data)
    if loaders and all(isinstance(loader, DataLoader) for loader in loaders):
        return itertools.chain.from_iterable(loaders) if len(loaders) > 1 else loaders[0]
    if isinstance(data, (Tensor, Mapping, tuple)):
        return [data]
    if is_data_module(data):
        return _loader_of(data)
    if isinstance(data, Iterable):
        return data
    raise ModelInputError(
        f"data={type(data).__name__} holds no batches. Give a tensor, a DataLoader or a LightningDataModule."
    )


def _loader_of(module: Any) -> Iterable[Any]:
    """Return a LightningDataModule's test batches, or its validation batches if it has no test data."""
    from lightning.pytorch import LightningDataModule

    module.prepare_data()
    overridden = type(module).test_dataloader is not LightningDataModule.test_dataloader
    module.setup("test" if overridden else "validate")
    given: Iterable[Any] = module.test_dataloader() if overridden else module.val_dataloader()
    loaders = loaders_in(given)
    if any(isinstance(loader, Tensor) or not isinstance(loader, Iterable) for loader in loaders):
        return given  # a list of batches
    return loaders[0] if len(loaders) == 1 else itertools.chain.from_iterable(loaders)


def loaders_in(given: Any) -> list[Any]:
    """Return the loaders in what a Trainer takes: one, or lists, tuples and mappings of several."""
    if isinstance(given, Mapping):
        given = list(given.values())
    return [loader for part in given for loader in loaders_in(part)] if isinstance(given, (list, tuple)) else [given]


def _inputs_of(batch: Any, model: nn.Module, call: Call) -> Batch:
    """Return the input tensors of one batch."""
    if isinstance(batch, Mapping):
        known = inspect.signature(model.forward).parameters
        parts = [batch[name] for name in call.names if name in batch and name in known]
    else:
        parts = _parts(batch)[: len(call.names)]
    tensors = [plain_tensor(part) for part in parts if isinstance(part, Tensor)]
    if len(tensors) != len(call.names):
        raise ModelInputError(
            f"A batch of the data gives {len(tensors)} input tensors, {type(model).__name__}.forward takes "
            f"{len(call.names)}: {', '.join(call.names)}. Give batches that begin with the inputs, or dicts with these "
            "names."
        )
    for name, tensor, sample in zip(call.names, tensors, call.tensors, strict=True):
        if tensor.ndim != sample.ndim or tensor.dtype != sample.dtype:
            hint = " The file takes raw pixels: give them as they are before the preprocessing."
            raise ModelInputError(
                f"A batch of the data has {name!r} as {tensor.dtype} of shape {tuple(tensor.shape)}, the sample is "
                f"{sample.dtype} of shape {tuple(sample.shape)}.{hint if sample.dtype == RAW_DTYPE else ''}"
            )
    return tuple(tensors)


def other_lengths(
    call: Call, shapes: Sequence[Sequence[int | str]], accepts: Callable[[Sequence[Tensor]], str]
) -> tuple[list[Call], list[str]]:
    """Return the sample in four other sizes of each open dimension: the smallest, half, one more, twice as many."""
    # Where a module does not take one of these, three times and so on. Dimensions take turns, so that no two have the
    # same size all the time; those that are only accepted together change together.
    lengths = {
        size: length
        for tensor, shape in zip(call.tensors, shapes, strict=True)
        for size, length in zip(shape, tensor.shape, strict=True)
        if isinstance(size, str) and size != shapes[0][0]
    }
    if not lengths:
        return [], []
    at = functools.partial(resized, call, shapes)
    for groups in ([{name: length} for name, length in lengths.items()], [lengths]):
        tried = [_accepted(group, call.names, at, accepts) for group in groups]
        turns = range(max(len(found) for found, _ in tried) if all(found for found, _ in tried) else 0)
        calls = []
        for turn in turns:
            parts = [found[(turn + i) % len(found)] for i, (found, _) in enumerate(tried)]
            calls.append(replace(call, tensors=at({name: n for part in parts for name, n in part.items()})))
        if calls and not any(accepts(other.tensors) for other in calls):
            break
    return calls, [note for _, notes in tried for note in notes]


def _accepted(
    lengths: Mapping[str, int], names: Sequence[str], at: Callable[..., Batch], accepts: Callable[..., str]
) -> tuple[list[dict[str, int]], list[str]]:
    """Return up to four other sizes of open dimensions that the module takes, and why it does not take others."""
    found: list[dict[str, int]] = []
    notes = []
    others = [{name: max(1, change(n)) for name, n in lengths.items()} for change in _CHANGES]
    for sizes in [smallest_sizes(lengths, lambda sizes: not accepts(at(sizes))), *others]:
        if len(found) == _OTHER_LENGTHS or sizes in (lengths, *found):
            continue
        trouble = accepts(at(sizes))
        if trouble:
            shown = ", ".join(f"{name} {list(t.shape)}" for name, t in zip(names, at(sizes), strict=True))
            notes.append(f"the sizes {shown} were not tried: with them {trouble}.")
        else:
            found.append(sizes)
    return found, notes


def smallest_sizes(lengths: Mapping[str, int], accepted: Callable[[Mapping[str, int]], bool]) -> dict[str, int]:
    """Return 1 for all sizes, or the smallest that are accepted, as divisors of the sample's and bisection tell."""
    low, share = 0, math.gcd(*lengths.values())
    for part in (k for k in range(1, share + 1) if share % k == 0):
        if accepted({name: n // share * part for name, n in lengths.items()}):
            break
        low = part
    while len(lengths) == 1 and part - low > 1:
        middle = (low + part) // 2
        low, part = (low, middle) if accepted(dict.fromkeys(lengths, middle)) else (middle, part)
    return {name: n // share * part for name, n in lengths.items()}


def resized(call: Call, shapes: Sequence[Sequence[int | str]], sizes: Mapping[str, int]) -> tuple[Tensor, ...]:
    """Return tensors with other sizes of open dimensions; entries are repeated."""
    tensors = []
    for tensor, shape in zip(call.tensors, shapes, strict=True):
        for dim, name in enumerate(shape):
            if name in sizes:
                tensor = tensor.index_select(dim, torch.arange(sizes[str(name)]) % tensor.shape[dim])
        tensors.append(tensor)
    return tuple(tensors)


def sample_call(
    model: nn.Module,
    preprocessing: nn.Module | None,
    input_sample: Any,
    predictor: OnnxPredictor,
    data: Any = None,
) -> tuple[Call, Any]:
    """Return the sample call, and the data, which a look for a sample leaves whole."""
    # The given sample, the module's own, one that is made up, or the data's first rows.
    owners = [model] if preprocessing is None else [model, preprocessing]
    if input_sample is None and all(getattr(owner, "example_input_array", None) is None for owner in owners):
        if preprocessing is None:
            input_sample, data = _found_sample(model, predictor, data)
        else:
            input_sample = _made_sample(predictor, raw=True)
    if preprocessing is None:
        return take_apart(model, sample_of(model, input_sample)), data
    call = raw_call(model, preprocessing, input_sample)
    preprocessing_copy(preprocessing, call)  # its own errors, before it is part of a longer computation
    return call, data


def _found_sample(model: nn.Module, predictor: OnnxPredictor, data: Any) -> tuple[dict[str, Tensor], Any]:
    """Return a sample that is made up, or where the module does not take that, the data's first rows; and the data."""
    # Data may be slow to open, or be there once only: they are read where nothing else helps.
    made, error = None, None
    try:
        made = _made_sample(predictor, raw=False)
    except ModelInputError as refused:
        error = refused
    if data is not None and (made is None or not _takes(model, made)):
        found, data = _sample_of_data(data, predictor.ports)
        made = made if found is None else found
    if made is None:
        raise error or ModelInputError("The file has no inputs.")
    return made, data


def _takes(model: nn.Module, sample: Mapping[str, Tensor]) -> bool:
    """Return whether a copy of a module runs on a sample."""
    twin = evaluation_copy(model)
    try:
        call = take_apart(twin, sample)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            FlatModule(twin, call).run([tensor.clone() for tensor in call.tensors])
    except Exception:  # noqa: BLE001 - forward is the user's: it may fail in any way
        return False
    return True


def _sample_of_data(data: Any, ports: Mapping[str, Port]) -> tuple[dict[str, Tensor] | None, Any]:
    """Return the first two rows of data, ``None`` if they do not fit the file's inputs, and all of the data."""
    with torch.random.fork_rng(devices=[]):
        batches = iter(list_or_loader(data))
        batch = next(batches, None)
    # Opened once: what was looked at is put back in front.
    whole = batches if batch is None else itertools.chain([batch], batches)
    if isinstance(batch, Mapping):
        found = {name: batch[name] for name in ports if name in batch}
    else:
        found = dict(zip(ports, _parts(batch), strict=False))
    if len(found) < len(ports) or not all(isinstance(value, Tensor) for value in found.values()):
        return None, whole
    if not all(_could_be(port, found[name]) for name, port in ports.items()):
        return None, whole  # what reads the data says in what they do not fit
    batch_name = next(iter(ports.values())).shape[0]
    for name, port in ports.items():
        for axis in (axis for axis, size in enumerate(port.shape) if size == batch_name and isinstance(size, str)):
            found[name] = found[name].narrow(axis, 0, min(2, found[name].shape[axis]))
    return found, whole


def _parts(batch: Any) -> list[Any]:
    """Return the parts of a batch that is no mapping."""
    if isinstance(batch, Tensor):
        return [batch]
    return list(batch) if isinstance(batch, Iterable) else []


def _could_be(port: Port, value: Tensor) -> bool:
    """Return whether a tensor of the data has an input's sizes and kind of numbers."""
    if port.dtype is None or value.ndim != len(port.shape) or not port.shape or 0 in value.shape:
        return False
    alike = port.dtype == value.dtype or (port.dtype.is_floating_point and value.is_floating_point())
    sizes = zip(port.shape, value.shape, strict=True)
    return alike and all(size == there or not isinstance(size, int) for size, there in sizes)


def _made_sample(predictor: OnnxPredictor, *, raw: bool) -> dict[str, Tensor]:
    """Return normal values, and for the first input of a file that takes them raw pixels, in the file's shapes."""
    generator = torch.Generator().manual_seed(0)
    made = {}
    for i, value in enumerate(predictor.session.get_inputs()):
        shape = torch.Size([size if isinstance(size, int) else 2 for size in value.shape])
        if raw and i == 0:
            made[value.name] = random_pixels(shape, generator)
        elif value.type in {"tensor(float)", "tensor(float16)", "tensor(bfloat16)"}:
            made[value.name] = torch.randn(shape, generator=generator)
        else:
            raise ModelInputError(
                f"Input {value.name!r} is {value.type}: give input_sample=, values cannot be made up for it."
            )
    return made
