"""Running a model on the side of its training without leaving a trace."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluation_sandbox(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation without gradients; on leaving, restore every train/eval flag and every buffer.

    The flags are kept one by one: a model in training may hold parts that are frozen in evaluation. Random number
    generators are the caller's matter, since Python's and numpy's are among them.

    Args:
        model: The model.

    Yields:
        Nothing.

    Example:
        >>> model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
        >>> _ = model[1].eval()
        >>> with evaluation_sandbox(model):
        ...     model.training, torch.is_grad_enabled()
        (False, False)
        >>> [module.training for module in model.modules()]
        [True, True, False]
    """
    flags = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, None if buffer is None else buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, training in flags:
            module.training = training
        with torch.no_grad():
            for module, name, buffer, content in buffers:
                if buffer is not None and content is not None:
                    buffer.copy_(content)
                module._buffers[name] = buffer
