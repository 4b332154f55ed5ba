"""Running a sample through a model on the side."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd
from torch.utils import _pytree as pytree

from lit_gelu.sandbox import evaluation_sandbox, isolated_random_state
from lit_gelu.surgery.errors import SwapError


def run(model: nn.Module, input_sample: Any) -> Any:
    """Call a model with a copy of a sample, which it may overwrite.

    Args:
        model: The model.
        input_sample: A tensor, a tuple of ``forward``'s arguments, or a dict of them by name.

    Returns:
        What ``forward`` returns.

    Raises:
        SwapError: If it fails.

    Example:
        >>> run(nn.Identity(), {"input": torch.ones(1)})
        tensor([1.])
    """
    sample = pytree.tree_map_only(Tensor, torch.clone, input_sample)
    try:
        match sample:
            case dict():
                return model(**sample)
            case tuple() | list():
                return model(*sample)
            case _:
                return model(sample)
    except Exception as error:
        raise SwapError(
            f"{type(model).__name__}.forward fails on input_sample ({type(error).__name__}: {error}). Give a tensor, a "
            "tuple of forward's arguments or a dict of them by name, on the model's device."
        ) from error


@contextlib.contextmanager
def on_the_side(model: nn.Module) -> Iterator[None]:
    """Let a pass leave no trace: evaluation mode, no gradients, random state and buffers put back, nothing compiled.

    Args:
        model: The model.

    Yields:
        Nothing.
    """
    eager: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if "torch._dynamo" in sys.modules:  # otherwise nothing is compiled, and asking would import it
        eager = torch.compiler.set_stance("force_eager")
    with isolated_random_state(model), evaluation_sandbox(model), eager:
        yield


@contextlib.contextmanager
def training_branches(model: nn.Module) -> Iterator[None]:
    """Within `on_the_side`, let a model go the ways that it goes in training.

    Dropout and batch normalisation stay as they are: they have no such ways, and a sample of one example would not do.

    Args:
        model: The model.

    Yields:
        Nothing.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).eval()
        >>> with training_branches(model):
        ...     [module.training for module in model.modules()]
        [True, True, False]
        >>> [module.training for module in model.modules()]
        [False, False, False]
    """
    flags = [(module, module.training) for module in model.modules() if not isinstance(module, (_NormBase, _DropoutNd))]
    try:
        for module, _ in flags:
            module.training = True
        yield
    finally:
        for module, training in flags:
            module.training = training
