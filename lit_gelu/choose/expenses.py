"""What a candidate costs: time and memory of a training step, and the latency of the exported file, on this machine."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim import Optimizer

from lit_gelu.curvature.probe.training_loss import loss_of, muted
from lit_gelu.errors import UnsupportedRunError
from lit_gelu.replicas import configured


def step_seconds(modules: Mapping[str, LightningModule], batch: Any, seconds: float) -> dict[str, float]:
    """Return the median time of a training step, by label: forward, backward and update, without the Trainer's share.

    All are timed in the same rounds, in shuffled order, so that a slow spell of the machine meets all of them.

    Args:
        modules: One of each candidate; they are trained.
        batch: What their ``training_step`` takes.
        seconds: How long to measure.
    """
    from lit_gelu.export.runtime.timing import interleaved, latency

    calls = {label: _step(module, batch) for label, module in modules.items()}
    samples = interleaved(calls, torch.device("cpu"), seconds=seconds)
    return {label: latency(times).p50 for label, times in samples.items()}


def _step(module: LightningModule, batch: Any) -> Callable[[], None]:
    optimizer = _optimizer(module)

    def make() -> None:
        with muted(module.modules()), torch.enable_grad():
            loss_of(module, batch, 0).backward()  # type: ignore[no-untyped-call]
        if optimizer is not None:
            optimizer.step()
        module.zero_grad(set_to_none=True)

    return make


def _optimizer(module: LightningModule) -> Optimizer | None:
    try:
        return configured(module).optimizer
    except UnsupportedRunError:  # several: the update is then left out
        return None


def kept_bytes(module: LightningModule, batch: Any) -> int:
    """Return the bytes that a training step keeps for its backward pass, parameters left out, each storage once."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, Tensor] = {}  # tensors, so that no storage is freed and its address given to another one

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in parameters:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with muted(module.modules()), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss_of(module, batch, 0)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def latencies(files: Mapping[str, Path], inputs: Mapping[str, Tensor], seconds: float) -> dict[str, float]:
    """Return the median time that onnxruntime takes for one row on this machine, by label, timed in the same rounds.

    Args:
        files: ONNX files.
        inputs: Tensors by the names that the files have for them.
        seconds: How long to measure.
    """
    from lit_gelu.export import OnnxPredictor
    from lit_gelu.export.runtime.bench import Variant, measured, resized
    from lit_gelu.export.runtime.settings import session_options

    options = session_options({"intra_op_num_threads": torch.get_num_threads()})
    predictors = {label: OnnxPredictor(path, None, options, tuning=False) for label, path in files.items()}
    first = next(iter(predictors.values()))
    values = resized({name: value for name, value in inputs.items() if name in first.ports}, first.ports, 1)
    values = {name: value.to(first.device) for name, value in values.items()}
    variants = [Variant(label, _called(predictor)) for label, predictor in predictors.items()]
    with torch.inference_mode():
        rows = measured(variants, values, 1, first.device, seconds)
    return {row.variant: row.latency.p50 for row in rows}


def _called(predictor: Any) -> Callable[[Mapping[str, Tensor]], Any]:
    return lambda values: predictor(*values.values())
