"""Runs of a file: sessions of onnxruntime, what they take and give, what they really run, and whether they repeat."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor

from lit_gelu.errors import ModelFileError, ProviderError
from lit_gelu.export.inputs import as_in_a_file
from lit_gelu.export.parity.report import Repeatability
from lit_gelu.export.runtime import CPU, CUDA, TENSORRT, OnnxPredictor, Provider, default_providers, provider_name

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
    # Session configuration entries, such as optimization.enable_gelu_approximation.
    config: Mapping[str, str] = field(default_factory=dict)
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
            options.add_session_config_entry(key, value)
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


def open_wanted(
    path: Path, providers: Sequence[Provider] | None, config: Mapping[str, str], dtype: torch.dtype
) -> tuple[OnnxPredictor, SessionSetup, list[str]]:
    """Open a file where all of it runs on the wanted provider; say so if only a part does."""
    chosen = tuple(default_providers() if providers is None else providers)
    notes, first = [], provider_name(chosen[0]) if chosen else CPU
    if dtype == torch.float32:
        # TF32 rounds the factors of products to 10 bits: for a float32 file it is off, whatever the options say. 16-bit
        # files keep the options, since use_tf32=0 takes the tensor cores away from their convolutions too.
        asked = [{} if isinstance(p, str) else dict(p[1]) for p in chosen if provider_name(p) == CUDA]
        if any(options.get("use_tf32", 1) not in {0, "0"} for options in asked):
            notes.append("TF32 was turned off for the comparison.")
        chosen = tuple(_without_tf32(p) if provider_name(p) == CUDA else p for p in chosen)
        if first == TENSORRT and os.environ.get("NVIDIA_TF32_OVERRIDE") != "0":
            notes.append("TensorRT may round factors to TF32, unless NVIDIA_TF32_OVERRIDE=0 is in the environment.")
    setup = SessionSetup(chosen, config)
    if first == CPU:
        return setup.open(path), setup, notes
    alone = replace(setup, providers=tuple(provider for provider in chosen if provider_name(provider) != CPU))
    try:
        return alone.open(path), alone, notes
    except (ModelFileError, ProviderError):
        predictor = setup.open(path)
        split = f"{first} does not run every operator of this file; onnxruntime put the others on the CPU."
        return predictor, setup, [*notes, split]


def _without_tf32(provider: Provider) -> Provider:
    return (CUDA, {**({} if isinstance(provider, str) else provider[1]), "use_tf32": 0})


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
    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    del extended.graph.output[:]
    known = {value.name: value for value in (*model.graph.output, *model.graph.value_info)}
    extended.graph.output.extend(known.get(name, onnx.ValueInfoProto(name=name)) for name in names)
    with setup.opened(extended) as predictor:
        return dict(zip(names, run_file(predictor, batch), strict=True))


def as_array(tensor: Tensor) -> np.ndarray:
    """Return a tensor as an array: bfloat16, which numpy lacks, as float64; complex numbers as a file gives them."""
    tensor = as_in_a_file(tensor.detach().cpu())
    array: np.ndarray = (tensor.double() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def optimized_graph(path: Path, setup: SessionSetup) -> onnx.ModelProto:
    """Return the graph that onnxruntime really runs, without weights."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "optimized.onnx"
        options = setup.options()
        options.optimized_model_filepath = str(target)
        OnnxPredictor(path, list(setup.providers), options)
        return onnx.load(target, load_external_data=False)


# Operators that draw random numbers, whatever their inputs say.
_RANDOM = frozenset({
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial",
})  # fmt: skip


Run = Callable[[Sequence[Tensor]], list[np.ndarray]]


def _same(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> bool:
    """Return whether two runs gave the same bits, NaNs at the same places included."""
    pairs = zip(first, second, strict=True)
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)


def random_nodes(model: onnx.ModelProto) -> list[str]:
    """Name the nodes that draw random numbers: generators, and Dropout unless its training_mode is a constant false."""
    constants = {t.name: bool(onnx.numpy_helper.to_array(t)) for t in model.graph.initializer if not t.dims}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value" and not node.attribute[0].t.dims:
            constants[node.output[0]] = bool(onnx.numpy_helper.to_array(node.attribute[0].t))

    def is_live(node: onnx.NodeProto) -> bool:
        training = node.input[2] if node.op_type == "Dropout" and len(node.input) > 2 else ""
        return node.op_type in _RANDOM or (training != "" and constants.get(training, True))

    return [f"{node.op_type} {node.name}".strip() for node in model.graph.node if is_live(node)]


def distance(y: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return absolute differences in float64: 0 at the same infinity, infinite where one is, NaN at NaN."""
    a, b = y.astype(np.float64), reference.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.where(a == b, 0.0, np.abs(a - b))


def repeatability(run: Run, plain: Run, batch: Sequence[Tensor], model: onnx.ModelProto) -> Repeatability:
    """Run the file twice on a batch, optimised and plain."""
    identical = _same(run(batch), run(batch)) and _same(plain(batch), plain(batch))
    return Repeatability(identical, tuple(random_nodes(model)))
