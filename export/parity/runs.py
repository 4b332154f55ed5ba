"""Runs of the file in onnxruntime and of the module in PyTorch, in the file's dtype and in float64."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from lit_gelu.activations import ActivationRegistry
from lit_gelu.errors import ModelFileError, ProviderError
from lit_gelu.export.copying import (
    approximate_,
    evaluation_copy,
    nested_encoders,
    output_names,
    relative_difference,
    require_faithful,
)
from lit_gelu.export.inputs import Call, FlatModule, as_array, left_out, named_outputs, probabilities_first
from lit_gelu.export.metadata import FileMetadata
from lit_gelu.export.parity.criterion import dtype_name
from lit_gelu.export.runtime import CPU, CUDA, OnnxPredictor, Provider, default_providers, provider_name
from lit_gelu.export.runtime.model_file import Port
from lit_gelu.export.runtime.session import checked_providers

Run = Callable[[Sequence[Tensor]], list[np.ndarray]]
_DISABLED = "optimization.disable_specified_optimizers"
_FLOATING = {"tensor(float)": torch.float32, "tensor(float16)": torch.float16, "tensor(bfloat16)": torch.bfloat16}

LEVELS: Mapping[str, onnxruntime.GraphOptimizationLevel] = {
    name: getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{name}")
    for name in ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_LAYOUT", "ENABLE_ALL")
    if hasattr(onnxruntime.GraphOptimizationLevel, f"ORT_{name}")
}


@dataclass(frozen=True)
class SessionSetup:
    """How a session is opened."""

    providers: tuple[Provider, ...]  # as onnxruntime.InferenceSession takes them
    config: Mapping[str, str] = field(default_factory=dict)  # session configuration entries
    level: str | None = None  # the optimisation level, a key of `LEVELS`; None for onnxruntime's default, which is all
    disabled: tuple[str, ...] = ()  # names of graph optimisations that are left out

    def options(self) -> onnxruntime.SessionOptions:
        """Return onnxruntime's session options."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # no warnings about what is done here on purpose; errors are raised
        entries = dict(self.config)
        if self.disabled:
            entries[_DISABLED] = ";".join([*filter(None, [entries.get(_DISABLED)]), *self.disabled])
        for key, value in entries.items():
            options.add_session_config_entry(key, str(value))
        if self.level is not None:
            options.graph_optimization_level = LEVELS[self.level]
        return options

    def open(self, path: str | os.PathLike[str]) -> OnnxPredictor:
        """Open a file."""
        return OnnxPredictor(path, list(self.providers), self.options())

    @contextmanager
    def opened(self, model: onnx.ModelProto) -> Iterator[OnnxPredictor]:
        """Open a model that is in no file."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            onnx.save(model, path)
            yield self.open(path)


def open_predictor(
    path: Path, providers: Sequence[Provider] | None, config: Mapping[str, str], dtype: torch.dtype
) -> tuple[OnnxPredictor, SessionSetup, list[str]]:
    """Open a file where all of it runs on the wanted provider; say so if only a part does."""
    checked_providers(providers)  # a text is no list of names
    chosen = tuple(default_providers() if providers is None else providers)
    first = provider_name(chosen[0])
    if dtype == torch.float32:
        # TF32 rounds the factors of products to 10 bits: for a float32 file it is off, whatever the options say. 16-bit
        # files keep the options, since use_tf32=0 takes the tensor cores away from their convolutions too.
        chosen = tuple(
            (CUDA, {**({} if isinstance(p, str) else dict(*p[1:])), "use_tf32": 0}) if provider_name(p) == CUDA else p
            for p in chosen
        )
    setup = SessionSetup(chosen, config)
    if first == CPU:
        return setup.open(path), setup, []
    alone = replace(setup, providers=tuple(provider for provider in chosen if provider_name(provider) != CPU))
    try:
        return alone.open(path), alone, []
    except (ModelFileError, ProviderError):
        split = f"{first} does not run every operator of this file; onnxruntime put the others on the CPU."
        return setup.open(path), setup, [split]


def file_inputs(predictor: OnnxPredictor, batch: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Round a batch to the dtypes that the file takes, so that all references see the same numbers."""
    dtypes = (_FLOATING.get(value.type) for value in predictor.session.get_inputs())
    pairs = zip(batch, dtypes, strict=True)
    return tuple(t.to(dtype) if dtype is not None and t.is_floating_point() else t for t, dtype in pairs)


def run_file(predictor: OnnxPredictor, batch: Sequence[Tensor]) -> list[np.ndarray]:
    """Run a file."""
    result = predictor(*batch)
    return [as_array(y) for y in (result if isinstance(result, tuple) else (result,))]


def run_with_outputs(
    model: onnx.ModelProto, names: Sequence[str], batch: Sequence[Tensor], setup: SessionSetup
) -> dict[str, np.ndarray]:
    """Run a file with some of its inner values as outputs."""
    names = list(dict.fromkeys(names))
    if not names:
        return {}
    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    del extended.graph.output[:]
    values = {value.name: value for value in (*model.graph.output, *model.graph.value_info)}
    extended.graph.output.extend(values.get(name, onnx.ValueInfoProto(name=name)) for name in names)
    with setup.opened(extended) as predictor:
        return dict(zip(names, run_file(predictor, batch), strict=True))


def optimized_graph(path: Path, setup: SessionSetup) -> onnx.ModelProto:
    """Return the graph that onnxruntime really runs, without weights."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "optimized.onnx"
        options = setup.options()
        options.optimized_model_filepath = str(target)
        OnnxPredictor(path, list(setup.providers), options)
        return onnx.load(target, load_external_data=False)


def repeats(runs: Sequence[Run], batch: Sequence[Tensor]) -> bool:
    """Return whether each run of a file gives the same bits twice on a batch, NaNs at the same places included."""
    pairs = [pair for run in runs for pair in zip(run(batch), run(batch), strict=True)]
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)


class RoundedTo(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's __init_subclass__
    """While active, what operators make in float32 has the values of another dtype, as PyTorch's kernels round it."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtype = dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator and round its result; a view holds rounded values already."""
        result = func(*args, **(kwargs or {}))
        aliases = [returned.alias_info for returned in func._schema.returns]
        if any(alias is not None and not alias.is_write for alias in aliases):
            return result
        return tree_map_only(Tensor, self._rounded, result)

    def _rounded(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(tensor.to(self.dtype)) if tensor.dtype == torch.float32 else tensor


class Float64Throughout(TorchFunctionMode):
    """While active, what would be made in float32 is made in float64: ``x.float()``, ``torch.linspace(0, 1, 9)``."""

    def __enter__(self) -> Self:
        self._default = torch.get_default_dtype()
        super().__enter__()  # type: ignore[no-untyped-call]
        torch.set_default_dtype(torch.float64)
        return self

    def __exit__(self, *error: object) -> None:
        torch.set_default_dtype(self._default)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch with float64 in the place of float32."""
        kwargs = dict(kwargs or {})
        if func is Tensor.float:
            return args[0].to(torch.float64, **kwargs)
        if func is not Tensor.view:  # the bits of a tensor, or a shape
            args = tuple(map(_in_float64, args))
            kwargs = {name: _in_float64(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _in_float64(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


VARIATIONS = 8
_CHOOSING = frozenset({"argmax", "argmin", "argsort", "max", "min", "sort", "topk"})
_MOST_TERMS = 2**28  # of a layer in plain loops: some seconds; larger ones are left as they are


@dataclass(frozen=True)
class Outputs:
    """PyTorch's outputs for one batch, one array an output."""

    baseline: list[np.ndarray]  # in the file's dtype
    exact: list[np.ndarray] | None  # in float64
    trained: list[np.ndarray] | None  # in float32 with the module's own form of GELU


@dataclass(frozen=True)
class OutputSignature:
    """What the module says of one of its outputs."""

    name: str  # its name in the file
    dtype: str  # in torch's name
    shape: tuple[int, ...]  # on the sample


class References:
    """Copies of the module in the file's dtype and in float64 with the file's form of GELU, and as trained."""

    def __init__(
        self,
        model: nn.Module,
        call: Call,
        approximate: str,
        registry: ActivationRegistry,
        preprocessing: nn.Module | None = None,
        dtype: torch.dtype = torch.float32,
        *,
        softmax: bool = False,
    ) -> None:
        self.dtype = dtype
        self.places: Sequence[int] | None = None  # of the outputs that the file has, in its order; None: of all
        self._softmax, self.call, self._form = softmax, call, (approximate, registry)
        self._preprocessing: dict[torch.dtype, nn.Module] = {}
        if preprocessing is not None:
            wide = (torch.float32, torch.float64)
            self._preprocessing = {each: evaluation_copy(preprocessing, each) for each in wide}
        trained = evaluation_copy(model)
        flat = FlatModule(trained, call, self._preprocessing.get(torch.float32), softmax=softmax)
        output = flat.tried(call.tensors)
        self.notes = [*require_faithful(flat, model, call.tensors), *left_out(output)]
        outputs = named_outputs(output)
        names = output_names([name for name, _ in outputs], call)
        self.signatures = [
            OutputSignature(name, dtype_name(tensor.dtype), tuple(tensor.shape))
            for name, (_, tensor) in zip(names, outputs, strict=True)
        ]
        self._trained = None if approximate == "as_trained" else trained
        self._inference, self.apart = (trained, nested_encoders(trained)), 0.0
        self._modes: dict[nn.Module, Callable[[], AbstractContextManager[Any]]] = {}
        self.float32 = self._copy(model, torch.float32)
        self.baseline_dtype, self.exact_dtype = dtype, torch.float64
        baseline = self.float32 if dtype == torch.float32 else self._copy_that_runs(model, dtype)
        self.exact = self._copy_that_runs(model, torch.float64)
        if baseline is None:  # a proof is of the whole net: rounded float32 is the file's 16 bits
            baseline, self.baseline_dtype = self._copy(model, torch.float32), torch.float32
            self._modes[baseline] = partial(RoundedTo, dtype)
            for tensor in (*baseline.parameters(), *baseline.buffers()):
                if tensor.is_floating_point():
                    tensor.copy_(tensor.to(dtype))
            if self.exact is None:
                self.exact, self.exact_dtype = self.float32, torch.float32
                self.notes.append(f"float32 stands in for float64, which is as good for {dtype_name(dtype)}.")
            self.notes.append(f"PyTorch's own {dtype_name(dtype)} is float32 with every result rounded to it.")
        self.baseline = baseline

    def _copy(self, model: nn.Module, dtype: torch.dtype) -> nn.Module:
        flat = FlatModule(evaluation_copy(model, dtype), self.call, self._preprocessing.get(dtype))
        approximate_(flat, *self._form, dtype)
        for encoder in nested_encoders(flat.model):
            encoder.use_nested_tensor = False
        return flat.model

    def _copy_that_runs(self, model: nn.Module, dtype: torch.dtype) -> nn.Module | None:
        """Return a copy that runs in a dtype; or note why there is none."""
        reason = ""
        # A forward that asks for float32 somewhere can often run in float64 all the same, in a mode for that.
        for mode in (nullcontext, Float64Throughout) if dtype == torch.float64 else (nullcontext,):
            modes = dict(self._modes)
            try:
                twin = self._copy(model, dtype)  # the form of a call is found by running forward
                self._modes[twin] = mode
                self.run(twin, self.call.tensors, dtype)
            except Exception as error:  # noqa: BLE001 - forward is the user's: whatever it raises is reported
                reason, self._modes = reason or f"forward fails in {dtype_name(dtype)} ({error}).", modes
                continue
            return twin
        self.notes.append(f"no {dtype_name(dtype)} reference: {reason}")
        return None

    def outputs(self, batch: Sequence[Tensor]) -> Outputs:
        """Run all references, and the module as inference calls it where that is another path of torch."""
        inference, encoders = self._inference
        if encoders:
            paths = []
            for nested in (True, False):
                for encoder in encoders:
                    encoder.use_nested_tensor = nested
                paths.append(self.run(inference, batch, torch.float32))
            self.apart = max(self.apart, *map(relative_difference, *paths))
        baseline = self.run(self.baseline, batch, self.baseline_dtype)
        exact = None if self.exact is None else self.run(self.exact, batch, self.exact_dtype)
        trained = None if self._trained is None else self.run(self._trained, batch, torch.float32)
        return Outputs(baseline, exact, trained)

    def trouble(self, batch: Sequence[Tensor]) -> str:
        """Say what is wrong with an input: the module fails on it, or its outputs are not all finite."""
        try:
            outputs = self.run(self.float32, batch, torch.float32)
        except Exception as error:  # noqa: BLE001 - forward is the user's: whatever it raises is reported
            return f"forward fails ({error})"
        return "" if all(np.isfinite(y).all() for y in outputs) else "outputs are not finite"

    @torch.no_grad()
    def candidates(self, batch: Sequence[Tensor]) -> list[tuple["Candidates | None", "Candidates | None"]]:
        """Return what each output is an index into, if it is one: in float64, and in the file's dtype."""
        if self.exact is None:
            return []
        pairs = []
        for module, dtype in ((self.exact, self.exact_dtype), (self.baseline, self.baseline_dtype)):
            with IndexTracker() as tracker:
                outputs = named_outputs(self._called(module, batch, dtype))
            pairs.append([tracker.of(tensor) for _, tensor in self._selected(outputs)])
        return list(zip(*pairs, strict=True))

    @torch.no_grad()
    def varied(self, batch: Sequence[Tensor]) -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
        """Yield outputs with weights and inputs moved by at most a unit in the last place, and the exact ones."""
        # That is what another order of additions does to a net, by backward analysis. Where large parts of a sum cancel
        # it is more, and how much depends on the processor's library: so the last outputs are those of plain loops. In
        # 16 bit nothing is yielded: there the rounding of what is stored decides, which all implementations share.
        if self.dtype != torch.float32 or self.exact is None:
            return
        exact = self.run(self.exact, batch, torch.float64)
        generator = torch.Generator().manual_seed(0)
        values = [t for t in (*self.baseline.parameters(), *self.baseline.buffers()) if t.is_floating_point()]
        before = [t.clone() for t in values]
        try:
            for _ in range(VARIATIONS):
                for tensor, kept in zip(values, before, strict=True):
                    tensor.copy_(_moved(kept, generator))
                inputs = [_moved(t, generator) if t.is_floating_point() else t for t in batch]
                yield self.run(self.baseline, inputs, self.dtype), exact
        finally:
            for tensor, kept in zip(values, before, strict=True):
                tensor.copy_(kept)
        with PlainLoops():
            yield self.run(self.baseline, batch, self.dtype), exact

    @torch.no_grad()
    def run(self, module: nn.Module, batch: Sequence[Tensor], dtype: torch.dtype) -> list[np.ndarray]:
        """Run one module on one batch, in one dtype from the preprocessing on (which is never in 16 bit)."""
        output = self._called(module, batch, dtype)
        outputs = named_outputs(probabilities_first(output) if self._softmax else output)
        return [as_array(t) for _, t in self._selected(outputs)]

    def _selected(self, outputs: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
        return outputs if self.places is None else [outputs[place] for place in self.places]

    def _called(self, module: nn.Module, batch: Sequence[Tensor], dtype: torch.dtype) -> Any:
        tensors = [t.clone() for t in batch]  # forward may overwrite them, and others are given the same batch
        if self._preprocessing:
            tensors[0] = self._preprocessing.get(dtype, self._preprocessing[torch.float32])(tensors[0])
        # Where the file takes float64, so does forward, in whatever dtype its weights are.
        wide = () if dtype == torch.float64 else self.call.wide
        tensors = [t.to(dtype) if t.is_floating_point() and i not in wide else t for i, t in enumerate(tensors)]
        args, kwargs = self.call.arguments(tensors)
        with self._modes.get(module, nullcontext)():
            return module(*args, **kwargs)


def _moved(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Return a float32 tensor whose entries are moved by -1, 0 or 1 unit in the last place; whole numbers stay."""
    # A mask's 1 and a category's number are exact, and a little less is another one.
    share = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) * 2 - 1
    moved = (tensor.double() * (1 + torch.finfo(torch.float32).eps * share)).float()
    return torch.where(tensor == tensor.round(), tensor, moved)


def output_faults(expected: Sequence[OutputSignature], ports: Mapping[str, Port], metadata: FileMetadata) -> list[str]:
    """Say which outputs have another name or type than the module gives them, and whether the labels fit."""
    if len(expected) != len(ports):
        return []
    floating = {"fp16": "float16", "bf16": "bfloat16"}.get("" if metadata.io_dtype == "fp32" else metadata.dtype)
    faults = []
    for output, (name, port) in zip(expected, ports.items(), strict=True):
        if name != output.name:
            faults.append(f"output {output.name!r} of the module is called {name!r} in the file.")
        dtype = floating if floating is not None and output.dtype == "float32" else output.dtype
        if port.dtype is not None and not dtype.startswith("complex") and dtype_name(port.dtype) != dtype:
            faults.append(f"output {name!r} is {dtype_name(port.dtype)} in the file, and should be {dtype}.")
    classes = expected[0].shape[-1] if expected and expected[0].shape else 0
    if metadata.labels and len(metadata.labels) != classes:
        faults.append(f"the file has {len(metadata.labels)} labels for {classes} values of {expected[0].name!r}.")
    return faults


class PlainLoops(TorchFunctionMode):
    """Linear layers whose terms are added one by one: the order of additions that has the largest errors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch; a linear layer in its terms."""
        return (_plain_linear if func is functional.linear else func)(*args, **(kwargs or {}))


def _plain_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002 - torch's names
    if weight.ndim != 2 or not weight.is_floating_point() or input.numel() * len(weight) > _MOST_TERMS:
        return functional.linear(input, weight, bias)
    outputs = input.new_zeros(*input.shape[:-1], len(weight))
    for factor, column in zip(input.unbind(-1), weight.unbind(1), strict=True):
        outputs += factor.unsqueeze(-1) * column
    return outputs if bias is None else outputs + bias


Candidates = tuple[np.ndarray, int]  # values that indices were chosen from, and the dimension that they are of


class IndexTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's __init_subclass__
    """While active, keeps what each index of a largest, smallest or sorted value was chosen from."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._choices: dict[int, tuple[Tensor, Tensor, int]] = {}  # by the identity of the indices, which are kept

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator, and note its choice."""
        result = func(*args, **(kwargs or {}))
        if func._schema.name.removeprefix("aten::") in _CHOOSING:
            indices = result[-1] if isinstance(result, (list, tuple)) else result
            places = {argument.name: i for i, argument in enumerate(func._schema.arguments)}
            if "dim" in places and not indices.is_floating_point():
                default = func._schema.arguments[places["dim"]].default_value
                dim = args[places["dim"]] if places["dim"] < len(args) else (kwargs or {}).get("dim", default)
                if isinstance(dim, int):
                    self._choices[id(indices)] = (indices, args[0].detach().clone(), dim % max(args[0].ndim, 1))
        return result

    def of(self, output: Tensor) -> Candidates | None:
        """Return what an output was chosen from; ``None`` if it is no choice or the indices were changed."""
        if id(output) not in self._choices:
            return None
        _, values, dim = self._choices[id(output)]
        return values.cpu().double().numpy(), dim
