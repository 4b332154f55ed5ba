"""The module's own test metrics, with the module and with the file in its place."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lit_gelu.export.copying import evaluation_copy
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
    """Run Lightning's test loop twice: with copies of the module, one of them with the file as ``forward``."""
    if data is None or not is_data_module(data):
        return [], []
    from lightning.pytorch import LightningDataModule, LightningModule

    if not isinstance(model, LightningModule):
        return [], []
    if type(model).test_step is LightningModule.test_step:
        return [], [f"{type(model).__name__} has no test_step, so there are no task metrics to compare."]
    if type(data).test_dataloader is LightningDataModule.test_dataloader:
        return [], ["the data module has no test data, so there are no task metrics to compare."]
    own, twin = evaluation_copy(model), evaluation_copy(model)
    calls = _replace_forward(twin, predictor)
    expected, found = _tested(own, data), _tested(twin, data)
    if not calls:
        name = type(model).__name__
        return [], [f"{name}.test_step does not call forward, so the file cannot take its place: no task metrics."]
    return [TaskMetric(name, value, found[name]) for name, value in expected.items() if name in found], []


def _replace_forward(twin: nn.Module, predictor: OnnxPredictor) -> list[int]:
    """Put the file in the place of a copy's ``forward``; the list grows by one entry a call."""
    calls: list[int] = []
    original = twin.forward
    returned: list[Any] = []  # what forward returns, once: the file's outputs are put in the places of its tensors

    @torch.no_grad()
    def forward(*args: Any, **kwargs: Any) -> Any:
        calls.append(len(calls))
        if not returned:
            returned.append(original(*args, **kwargs))
        inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        result = predictor(*file_inputs(predictor, inputs))
        outputs = iter(result if isinstance(result, tuple) else (result,))
        return pytree.tree_map(lambda leaf: _like(next(outputs), leaf) if isinstance(leaf, Tensor) else leaf, *returned)

    twin.forward = forward
    return calls


def _like(output: Tensor, expected: Tensor) -> Tensor:
    """Return a file's output in the dtype in which the module's metrics take it."""
    return output.to(expected.dtype) if expected.is_floating_point() else output


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
