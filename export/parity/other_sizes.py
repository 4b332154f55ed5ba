"""Does a graph compute what the module computes at other sizes than the sample's? Asked before a file is written."""

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir
import torch
from torch import Tensor

from lit_gelu.activations import ActivationRegistry
from lit_gelu.errors import ArgumentError, ExportError, ModelFileError, ModelInputError
from lit_gelu.export.inputs import FlatModule, OpenSize, as_in_a_file, named_outputs, named_shapes
from lit_gelu.export.lowering.lowering_table import BoundActivation
from lit_gelu.export.lowering.replace import lower
from lit_gelu.export.metadata import ExportOptions
from lit_gelu.export.parity.execution import SessionSetup, run_file
from lit_gelu.export.parity.input_families import Batch, random_batch, resized, smallest_sizes
from lit_gelu.export.runtime import CPU, OnnxPredictor

_ROWS = 2
# Of an output's root mean square, so that a few values that rounding decides, such as those of round(x), are no fault:
# what a size is fixed in shows all over.
_ALIKE = 1e-3
_FAILS = "forward fails"
_SMALL = 2  # lower ends up to it are torch's own, which traces no size of 0 or 1
# Larger runs than that may take all memory, such as attention's, unless the sample is as large.
_LARGE, _MOST_NUMBERS = 2048, 2**22
_WEIGHTS_DO_NOT_FIT = "shapes cannot be multiplied"  # as torch says of a matrix product, such as that of nn.Linear
_NOTHING = 1e-6  # what is left where an output should be 0


@dataclass(frozen=True)
class OtherRun:
    """One run of the module at other sizes than the sample's."""

    sizes: Mapping[str, int]  # by the names that dynamic_shapes gave
    inputs: Batch
    outputs: tuple[Tensor, ...]
    bounds: str = ""  # of a run just beyond them: within what the graph holds, as torch.export.Dim takes it


def runs_at_other_sizes(flat: FlatModule, sizes: Sequence[OpenSize]) -> tuple[list[OtherRun], list[str]]:
    """Run the module once with every open size changed, beside the batch; say which sizes could not be tried."""
    # All change in one run, which costs as little as can be; where the module does not take that, each for itself.
    chosen = _beside_the_batch(flat, sizes)
    lengths = {size.name: flat.call.tensors[size.place].shape[size.axis] for size in chosen}
    if not lengths:
        return [], []
    together = _accepted_run(flat, chosen, lengths)
    if isinstance(together, OtherRun):
        return [together], []
    runs, notes = [], []
    for name, length in lengths.items():
        run = _accepted_run(flat, chosen, {name: length})
        if isinstance(run, OtherRun):
            runs.append(run)
        else:
            notes.append(f"the open size {name!r} was tried at the sample's {length} alone: with others {run}.")
    return runs, notes


def require_another_size(
    flat: FlatModule, sizes: Sequence[OpenSize], runs: Sequence[OtherRun], untried: Sequence[str]
) -> None:
    """Refuse open sizes of one input that the weights of a layer fix at the sample's."""
    # Whatever else forward raises may be of the numbers that were drawn, or of sizes that were not tried, such as one
    # more than multiples of 4. Sizes of several inputs may go together, such as samples and frames of one sound.
    chosen = _beside_the_batch(flat, sizes)
    failed = [note.partition(_FAILS)[2].removesuffix(".") for note in untried if _WEIGHTS_DO_NOT_FIT in note]
    if runs or not failed or len(failed) < len(untried) or len({size.place for size in chosen}) > 1:
        return
    names = " and ".join(repr(name) for name in dict.fromkeys(size.name for size in chosen))
    raise ExportError(
        f"dynamic_shapes= has {names}, but {type(flat.model).__name__}.forward took none of the other sizes that were "
        f"tried: {_FAILS}{failed[0]}. Layers with weights for each place fix them, such as nn.Linear behind "
        "nn.Flatten: pool to one cell (nn.AdaptiveAvgPool2d(1), or a mean over the axes), or leave the sizes fixed: "
        "take them out of dynamic_shapes=."
    )


def _is_of_batch(flat: FlatModule, size: OpenSize) -> bool:
    return size.axis in flat.call.batch_axes[size.place]


def _beside_the_batch(flat: FlatModule, sizes: Sequence[OpenSize]) -> list[OpenSize]:
    """Return the sizes that have to be open beside the batch."""
    return [size for size in sizes if size.required and not _is_of_batch(flat, size)]


def _accepted_run(flat: FlatModule, chosen: Sequence[OpenSize], lengths: Mapping[str, int]) -> OtherRun | str:
    """Run the module at the first other sizes that it takes; say why it takes none."""
    troubles: list[str] = []

    def accepted(sizes: Mapping[str, int]) -> bool:
        run = _run(flat, chosen, sizes)
        troubles.extend([run] if isinstance(run, str) else [])
        return isinstance(run, OtherRun)

    for sizes in _candidates(lengths, accepted):
        run = _run(flat, chosen, sizes) if sizes != lengths else ""
        if isinstance(run, OtherRun):
            return run
        troubles.extend([run] if run else [])
    return troubles[0] if troubles else "there is nothing to try"


def _candidates(lengths: Mapping[str, int], accepted: Callable[[Mapping[str, int]], bool]) -> Iterator[dict[str, int]]:
    """Yield other sizes, those first that tell most."""
    # A window or a table of the sample's size shows itself best at a larger size that is no multiple. Modules that take
    # multiples of a patch alone take the sample's size and the smallest one more; tables of places end at the sample.
    yield {name: n + n // 2 + 1 for name, n in lengths.items()}
    least = smallest_sizes(lengths, accepted)
    for change in (least, dict.fromkeys(lengths, 1), lengths):
        yield {name: n + change[name] for name, n in lengths.items()}
    yield {name: n // 2 + 1 for name, n in lengths.items()}
    for change in (least, dict.fromkeys(lengths, 1)):
        yield {name: max(1, n - change[name]) for name, n in lengths.items()}


def runs_beyond_bounds(
    flat: FlatModule, sizes: Sequence[OpenSize], bounds: Mapping[str, tuple[int, int | None]]
) -> tuple[list[OtherRun], list[str]]:
    """Run the module just beyond the bounds within which its graph was traced; say which could not be tried."""
    # Outside them forward takes another branch, or it refuses the size, as a convolution does below its kernel's.
    runs, notes = [], []
    for size in {size.name: size for size in sizes}.values():
        lower, upper = bounds.get(size.name, (0, None))
        below = lower if lower > _SMALL else None
        text = ", ".join(f"{end}={n}" for end, n in (("min", below), ("max", upper)) if n is not None)
        for n in ([] if below is None else [below - 1]) + ([] if upper is None else [upper + 1]):
            if not _is_within(n, *size.bounds):
                continue
            if _is_large(flat, sizes, size, n):
                notes.append(f"the graph was traced for {size.name!r} up to {upper}, and was not tried beyond.")
            elif isinstance(run := _run(flat, sizes, {size.name: n}), OtherRun):
                runs.append(replace(run, bounds=text))
    return runs, notes


def _is_large(flat: FlatModule, sizes: Sequence[OpenSize], size: OpenSize, n: int) -> bool:
    """Tell whether a run may take too long, or too much memory."""
    numbers = of_sample = 0
    for tensor, shape in zip(flat.call.tensors, named_shapes(flat.call, sizes), strict=True):
        of_sample += tensor.numel()
        numbers += math.prod(n if name == size.name else own for name, own in zip(shape, tensor.shape, strict=True))
    length = flat.call.tensors[size.place].shape[size.axis]
    return n > max(_LARGE, 4 * length) or numbers > max(_MOST_NUMBERS, 4 * of_sample)


def _run(flat: FlatModule, chosen: Sequence[OpenSize], sizes: Mapping[str, int]) -> OtherRun | str:
    """Run the module at some sizes; say what is wrong if it does not take them."""
    bounds = {size.name: size.bounds for size in chosen}
    outside = [name for name, n in sizes.items() if not _is_within(n, *bounds[name])]
    if outside:
        return f"{', '.join(outside)} would be outside the bounds of dynamic_shapes="
    call = replace(flat.call, tensors=resized(flat.call, named_shapes(flat.call, chosen), sizes))
    rows = next((sizes[size.name] for size in chosen if size.name in sizes and _is_of_batch(flat, size)), _ROWS)
    inputs = random_batch(call, rows, torch.Generator().manual_seed(0), {}, raw=flat.preprocessing is not None)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            outputs = named_outputs(flat.run([tensor.clone() for tensor in inputs]))
    except Exception as error:  # noqa: BLE001 - forward is the user's: whatever it raises is reported
        return f"{_FAILS} ({error})"
    tensors = tuple(as_in_a_file(tensor) for _, tensor in outputs)
    finite = all(bool(t.isfinite().all()) for t in tensors)
    return OtherRun(dict(sizes), inputs, tensors) if finite else "outputs are not finite"


def _is_within(size: int, least: int | None, most: int | None) -> bool:
    """Return whether a size is within the bounds of a ``Dim``; torch's hints may have none."""
    return (least is None or size >= least) and (most is None or size <= most)


def require_alike(
    graph: ir.Model,
    flat: FlatModule,
    runs: Sequence[OtherRun],
    marked: Mapping[str, BoundActivation],
    registry: ActivationRegistry,
) -> list[str]:
    """Refuse a traced graph that does not compute what the module computed; return why nothing was compared."""
    # What fixes a size is in the graph as torch made it. So its float32 form for the CPU is run, whatever the file's
    # dtype and target are: 16 bit would hide small differences, and there is no kernel for some of it here.
    if not runs:
        return []
    twin = graph.clone()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            lower(twin, marked, ExportOptions.checked(target="ort-cpu"), registry)
            ir.save(twin, path, external_data="weights")
            predictor = SessionSetup((CPU,)).open(path)
        except (ArgumentError, ModelFileError) as error:
            return [f"no other size than the sample's was tried: {error}"]
        for run in runs:
            trouble = _trouble(predictor, run)
            if trouble:
                raise ExportError(_message(flat, run, trouble))
    return []


def _trouble(predictor: OnnxPredictor, run: OtherRun) -> str:
    """Say in what a graph's outputs are not the module's; empty for nothing."""
    try:
        outputs = run_file(predictor, run.inputs)
    except (ModelFileError, ModelInputError) as error:
        return f"fails ({error.__cause__ or error})"
    for name, own, there in zip(predictor.output_names, run.outputs, map(torch.from_numpy, outputs), strict=True):
        if own.shape != there.shape:
            return f"gives {name!r} the shape {list(there.shape)}, and the module {list(own.shape)}"
        if not own.is_floating_point():  # rounding may decide whole numbers
            continue
        off, scale = _root_mean_square(there - own), _root_mean_square(own)
        if not off <= _ALIKE * scale + _NOTHING:
            return f"is off by {off:.2g} in {name!r}, which is {scale:.2g} (root mean squares)"
    return ""


def _root_mean_square(tensor: Tensor) -> float:
    return float(tensor.double().square().mean().sqrt()) if tensor.numel() else 0.0


def _message(flat: FlatModule, run: OtherRun, trouble: str) -> str:
    name, names = type(flat.model).__name__, " and ".join(map(repr, run.sizes))
    shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in zip(flat.call.names, run.inputs, strict=True))
    if run.bounds:  # forward takes another branch beyond it
        ((size, length),) = run.sizes.items()
        return (
            f"{name}.forward takes another branch where {size!r} is {length} than at the sample's size, and the graph "
            f"has that one alone ({run.bounds}): with {shapes} the graph {trouble}. Write it without a size, or give "
            f"torch.export.Dim({size!r}, {run.bounds}) for the axis in dynamic_shapes= of export_onnx."
        )
    return (
        f"dynamic_shapes= has {names}, but {name}.forward fixes something at the sample's size: with {shapes} the "
        f"graph {trouble}. Adaptive pooling to more than one cell does so, whose windows are numbers in a graph, and "
        "so does int() of a size. Pool to one cell (nn.AdaptiveAvgPool2d(1), or a mean over the axes), use "
        "x.shape[...] as it is, or leave the size fixed: take it out of dynamic_shapes=."
    )
