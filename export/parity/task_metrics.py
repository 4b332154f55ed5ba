"""The module's own test metrics, with the module and with the file in its place."""

import inspect
import logging
import warnings
from collections import OrderedDict
from collections.abc import Iterator
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

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


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
    stand_in = _StandIn(twin, predictor)
    expected, found = _tested(own, data), _tested(twin, data)
    step = f"{type(model).__name__}.test_step"
    if stand_in.unfit:
        return [], [f"{step} {stand_in.unfit}, so the file cannot take its place: no task metrics."]
    if not stand_in.calls:
        return [], [f"{step} does not call forward, so the file cannot take its place: no task metrics."]
    return [TaskMetric(name, value, found[name]) for name, value in expected.items() if name in found], []


class _StandIn:
    """The file in the place of a module's ``forward``."""

    def __init__(self, twin: nn.Module, predictor: OnnxPredictor) -> None:
        self.calls = 0
        self.unfit = ""  # in what a call does not fit the file
        self._twin, self._predictor = twin, predictor
        self._signature = inspect.signature(twin.forward)
        self._returned: list[Any] = []  # what the module returns, once: the file's outputs take its tensors' places
        # The module's own hooks are a part of the file, so nothing else may call them.
        self._of_module = {name: twin.__dict__[name] for name in _HOOKS}
        self._of_module["forward"] = twin.forward
        self._of_file = {**{name: OrderedDict() for name in _HOOKS}, "forward": self.forward}
        twin.__dict__.update(self._of_file)

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the file gives, in the form in which the module returns it."""
        self.calls += 1
        inputs = tensors_by_name(self._signature, args, kwargs)
        names = self._predictor.input_names
        if inputs.keys() != set(names):
            given = ", ".join(inputs) or "nothing"
            self.unfit = f"calls forward with {given} and the file takes {', '.join(names)}"
            return self._by_module(*args, **kwargs)
        if not self._returned:
            self._returned.append(self._by_module(*args, **kwargs))
        result = self._predictor(*file_inputs(self._predictor, [inputs[name] for name in names]))
        outputs = iter(result if isinstance(result, tuple) else (result,))
        return pytree.tree_map(
            lambda leaf: _like(next(outputs), leaf) if isinstance(leaf, Tensor) else leaf, *self._returned
        )

    def _by_module(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module gives, hooks included."""
        self._twin.__dict__.update(self._of_module)
        try:
            return self._twin(*args, **kwargs)
        finally:
            self._twin.__dict__.update(self._of_file)


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
