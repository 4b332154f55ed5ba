"""What a mismatch costs: outputs of the reference with the other activation in it, beside the reference's own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.audit.artefacts import Artefact, runner
from lit_gelu.errors import ArgumentError, AuditError, LitGeluError, message_of
from lit_gelu.export.inputs import Call, random_batch
from lit_gelu.export.parity.check import test_metrics
from lit_gelu.export.parity.input_families import data_batches, list_or_loader
from lit_gelu.export.preprocessing import is_data_module
from lit_gelu.sandbox import faithful_copy
from lit_gelu.surgery.swap import exactly, swap

_BATCHES = 32  # of the data, at most
_CLEARLY = 0.25  # times the next distance: how near outputs must be to those of one activation to be its
_ROUNDING = 1e-5  # of the largest output: where outputs of two runtimes are the same
ALTERNATIVES = ("gelu", "gelu_tanh", "gelu_sigmoid", "silu", "relu")  # what is mistaken for one another


@dataclass(frozen=True)
class Cost:
    """What one mismatch changes.

    Args:
        expected: The activation of the reference.
        computed: The activation that takes its place.
        outputs: The largest change of an output by this exchange alone, in units of the largest output.
        top1: The share of rows whose largest output is another one; ``None`` if outputs are no scores of classes.
        metrics: By name the reference's value and the one with the exchange, where data have labels or a test loop.
        rest: What else the candidate's outputs are off by, in the same units; ``None`` if it was not run.
    """

    expected: str
    computed: str
    outputs: float
    top1: float | None = None
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    rest: float | None = None

    def __str__(self) -> str:
        parts = [f"moves outputs by up to {self.outputs:.2g} of the largest"]
        parts += [] if self.top1 is None else [f"top-1 of {self.top1:.2%} of the rows"]
        parts += [f"{name} from {before:.6g} to {after:.6g}" for name, (before, after) in self.metrics.items()]
        rest = "" if self.rest is None else f"; all else, by {self.rest:.2g}"
        return f"{self.computed} for {self.expected} {', '.join(parts)}{rest}"


class Exchange:
    """The reference with activations exchanged, and the inputs on which both run.

    Args:
        reference: A module's artefact, which was run on a sample.
        data: As `lit_gelu.export.check_parity` takes it.
        registry: Names activations.
    """

    def __init__(self, reference: Artefact, data: Any, registry: ActivationRegistry) -> None:
        if reference.module is None or reference.call is None:
            raise ArgumentError("an exchange is made in a module that has a sample. Give input_sample=.")
        self.module, self.call, self.data, self.registry = reference.module, reference.call, data, registry
        self._batches: list[Any] = []
        if data is not None:
            with torch.random.fork_rng(devices=[]):  # a shuffling loader draws from the global state
                self._batches = list(islice(list_or_loader(data), _BATCHES))
        self.calls = self._inputs()
        self.outputs = [runner(self.module)(call) for call in self.calls]

    def _inputs(self) -> list[Call]:
        if self.data is not None:
            batches = data_batches(self._batches, self.module, self.call)
            return [replace(self.call, tensors=tuple(batch)) for batch in batches]
        calls = [self.call]
        if any(tensor.is_floating_point() for tensor in self.call.tensors):
            rows = self.call.batch_size  # a file may have no other
            batch = random_batch(self.call, rows, torch.Generator().manual_seed(0), {}, raw=False)
            calls.append(replace(self.call, tensors=batch))
            try:
                runner(self.module)(calls[-1])
            except Exception:  # noqa: BLE001 - forward is the user's: it may not take gaussian numbers
                calls.pop()
        return calls

    def module_with(self, names: Sequence[str], spec: str) -> nn.Module:
        """Return a copy of the reference with another activation at some of its calls."""
        tensors = (*self.module.parameters(), *self.module.buffers())
        twin = faithful_copy(self.module, {id(tensor): tensor for tensor in tensors})  # weights are shared
        modules = dict(twin.named_modules())
        replaced = {id(modules[name]) for name in names if modules.get(name, twin) is not twin}
        for name, part in list(twin.named_modules(remove_duplicate=False)):
            if id(part) in replaced:  # it may stand in several places
                twin.set_submodule(name, self.registry.create(spec, trusted=False))
        calls = [name for name in dict.fromkeys(names) if modules.get(name, twin) is twin]
        if calls:
            args, kwargs = self.call.arguments(self.call.tensors)
            sample = kwargs if kwargs and not args else tuple(args)
            swap(twin, {exactly(name): spec for name in calls}, sample, registry=self.registry)
        return twin.eval()

    def outputs_with(self, names: Sequence[str], spec: str) -> list[list[np.ndarray]]:
        """Return the outputs of `module_with` on the same inputs."""
        run = runner(self.module_with(names, spec))
        return [run(call) for call in self.calls]

    def cost(self, names: Sequence[str], expected: str, computed: str, candidate: Artefact) -> Cost:
        """Return what another activation at some calls changes, and what else the candidate changes."""
        other = self.outputs_with(names, computed)
        rest = None if candidate.run is None else distance([candidate.run(call) for call in self.calls], other)[0]
        pairs = [(before[0], after[0]) for before, after in zip(self.outputs, other, strict=True)]
        top1 = None
        if all(before.ndim == 2 and before.shape[1] > 1 for before, _ in pairs):
            moved = [before.argmax(1) != after.argmax(1) for before, after in pairs]
            top1 = float(np.concatenate(moved).mean())
        metrics = self._metrics(names, computed, pairs)
        return Cost(expected, computed, distance(other, self.outputs)[0], top1, metrics, rest)

    def _metrics(
        self, names: Sequence[str], computed: str, pairs: Sequence[tuple[np.ndarray, np.ndarray]]
    ) -> dict[str, tuple[float, float]]:
        """Return the module's own test metrics, or the error rate where batches end with labels."""
        if self.data is None:
            return {}
        if is_data_module(self.data) and hasattr(self.module, "test_step"):
            before, after = (test_metrics(m, self.data) for m in (self.module, self.module_with(names, computed)))
            return {name: (value, after[name]) for name, value in before.items() if name in after}
        labels = [_labels(batch, self.call) for batch in self._batches]
        if any(y is None for y in labels) or any(scores.ndim != 2 or scores.shape[1] < 2 for scores, _ in pairs):
            return {}
        wrong = np.array([
            [(scores.argmax(-1) != y.numpy()).sum() for scores in outputs]
            for y, outputs in zip(labels, pairs, strict=True)
            if y is not None
        ])
        rows = sum(len(y) for y in labels if y is not None)
        before_rate, after_rate = wrong.sum(0) / rows
        return {"error": (float(before_rate), float(after_rate))}


def _labels(batch: Any, call: Call) -> Tensor | None:
    if isinstance(batch, (tuple, list)) and len(batch) == len(call.names) + 1:
        y = batch[-1]
        if isinstance(y, Tensor) and y.ndim == 1 and not y.is_floating_point():
            return y
    return None


def distance(first: Sequence[Sequence[np.ndarray]], second: Sequence[Sequence[np.ndarray]]) -> tuple[float, float]:
    """Return the largest and the root mean square difference of outputs, in units of the largest of the second."""
    largest, most, squares, count = 0.0, 0.0, 0.0, 0
    for one, other in zip(first, second, strict=True):
        if len(one) < 1 or one[0].shape != other[0].shape:
            raise AuditError(f"Outputs have the shapes {one[0].shape} and {other[0].shape}. Give two of the same net.")
        for a, b in zip(one, other, strict=False):
            if a.shape == b.shape and b.dtype.kind == "f":
                difference = np.abs(np.nan_to_num(a.astype(np.float64)) - np.nan_to_num(b.astype(np.float64)))
                largest = max(largest, float(np.abs(np.nan_to_num(b)).max(initial=0.0)))
                most = max(most, float(difference.max(initial=0.0)))
                squares, count = squares + float((difference**2).sum()), count + difference.size
    unit = largest or 1.0
    return most / unit, (squares / max(count, 1)) ** 0.5 / unit


def told_by_outputs(exchange: Exchange, names: Sequence[str], expected: str, candidate: Artefact) -> tuple[str, bool]:
    """Return which activation at some of the reference's calls explains a candidate's outputs, and if it is certain."""
    if candidate.run is None:
        return expected, False
    try:
        outputs = [candidate.run(call) for call in exchange.calls]
    except LitGeluError:
        raise
    except Exception as error:
        raise AuditError(f"{candidate.label} cannot be run on the reference's inputs: {message_of(error)}.") from error
    apart, distances = distance(outputs, exchange.outputs)[0], {expected: distance(outputs, exchange.outputs)[1]}
    for name in ALTERNATIVES:
        spec = str(exchange.registry.resolve(name))
        if spec != expected:
            distances[spec] = distance(outputs, exchange.outputs_with(names, spec))[1]
    nearest, *others = sorted(distances, key=lambda spec: distances[spec])
    tells = distances[others[0]] > 0  # else no output depends on the activation
    near = distances[nearest] <= _CLEARLY * distances[others[0]] or (nearest == expected and apart <= _ROUNDING)
    certain = tells and near
    return nearest, certain
