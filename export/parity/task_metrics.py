"""The module's own test metrics, with the module and with the file in its place."""

import inspect
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lit_gelu.export.copying import evaluation_copy
from lit_gelu.export.inputs import tensors_by_name
from lit_gelu.export.parity.execution import file_inputs
from lit_gelu.export.preprocessing import is_data_module
from lit_gelu.export.runtime import OnnxPredictor


@dataclass(frozen=True)
class TaskMetric:
    """One of the module's test metrics on the data."""

    name: str  # as the module logs it
    pytorch: float  # with the module as trained
    file: float  # with the file in the place of forward

    @property
    def difference(self) -> float:
        """The file's value less PyTorch's."""
        return self.file - self.pytorch


def task_metrics(model: nn.Module, data: Any, predictor: OnnxPredictor) -> tuple[list[TaskMetric], list[str]]:
    """Run Lightning's test loop twice, once with the file as ``forward``; return the metrics, or why there are none."""
    if data is None or not is_data_module(data):
        return [], []
    from lightning.pytorch import LightningDataModule, LightningModule

    if not isinstance(model, LightningModule):
        return [], []
    step = f"{type(model).__name__}.test_step"
    if type(model).test_step is LightningModule.test_step:
        return [], [f"{type(model).__name__} has no test_step, so there are no task metrics to compare."]
    if type(data).test_dataloader is LightningDataModule.test_dataloader:
        return [], ["the data module has no test data, so there are no task metrics to compare."]
    own, twin = evaluation_copy(model), evaluation_copy(model)
    if twin._forward_hooks or twin._forward_pre_hooks:  # a part of the file, and called around the file too
        return [], [f"{type(model).__name__} has hooks, so the file cannot take its forward's place: no task metrics."]
    twin.forward, trouble = _file_in_place_of(twin.forward, predictor)
    expected, metrics = _tested(own, data), _tested(twin, data)
    if trouble:
        return [], [f"{step} {trouble[0]}, so the file cannot take its place: no task metrics."]
    return [TaskMetric(name, value, metrics[name]) for name, value in expected.items() if name in metrics], []


def _file_in_place_of(forward: Callable[..., Any], predictor: OnnxPredictor) -> tuple[Callable[..., Any], list[str]]:
    """Return a file as ``forward``, and a list in which it says in what a call does not fit the file."""
    names, trouble = predictor.input_names, ["does not call forward"]
    template: list[Any] = []  # what the module returns, once: the file's outputs take its tensors' places

    @torch.no_grad()
    def file_forward(*args: Any, **kwargs: Any) -> Any:
        inputs = tensors_by_name(inspect.signature(forward), args, kwargs)
        if inputs.keys() != set(names):
            there = ", ".join(inputs) or "nothing"
            trouble[:] = [f"calls forward with {there} and the file takes {', '.join(names)}"]
            return forward(*args, **kwargs)
        if not template:
            template.append(forward(*args, **kwargs))
            trouble.clear()
        result = predictor(*file_inputs(predictor, [inputs[name] for name in names]))
        outputs = iter(result if isinstance(result, tuple) else (result,))

        def from_file(leaf: Any) -> Any:
            """Return the next output in the dtype in which the module's metrics take it."""
            output = next(outputs) if isinstance(leaf, Tensor) else leaf
            return output.to(leaf.dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else output

        return pytree.tree_map(from_file, template[0])

    return file_forward, trouble


def _tested(model: Any, data: Any) -> dict[str, float]:
    """Return what a module logs in Lightning's test loop; random numbers drawn there are the same each time."""
    from lightning.pytorch import Trainer

    before = data.trainer
    model._metric_attributes = None  # in a copy of a module that is being fitted these are the original's
    with torch.random.fork_rng(devices=[]), _quiet():
        torch.manual_seed(0)
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.test(model, datamodule=data, verbose=False)
    data.trainer = before
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Lightning from saying which devices there are, and that more workers would load faster."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
