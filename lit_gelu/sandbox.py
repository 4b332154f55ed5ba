"""Running a model on the side of its training without leaving a trace."""

import random
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from torch.nn.parameter import is_lazy


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation, and on leaving back to exactly the mode that each of its modules had."""
    # The flags are kept one by one: ``model.train()`` afterwards would also turn what was frozen in evaluation mode.
    flags = [(module, module.training) for module in model.modules()]
    try:
        for module, _ in flags:
            module.training = False
        yield
    finally:
        for module, training in flags:
            module.training = training


@contextmanager
def evaluation_sandbox(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation without gradients; on leaving, restore every train/eval flag and every buffer.

    Random number generators are the caller's matter, since Python's and numpy's are among them.

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
    buffers = [
        (module, name, buffer, None if buffer is None or is_lazy(buffer) else buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    try:
        with evaluation_mode(model), torch.no_grad():
            yield
    finally:
        with torch.no_grad():
            for module, name, buffer, content in buffers:
                if buffer is not None and content is not None:
                    buffer.copy_(content)
                module._buffers[name] = buffer


def devices_of(model: nn.Module) -> set[torch.device]:
    """Return where a model's parameters and buffers are."""
    return {
        tensor.device
        for module in model.modules()  # once: parameters() and buffers() would each go through all of them
        for tensors in (module._parameters, module._buffers)
        for tensor in tensors.values()
        if tensor is not None
    }


@contextmanager
def isolated_random_state(model: nn.Module) -> Iterator[None]:
    """Put back the random number generators of torch (CPU and the model's devices), Python and numpy on leaving."""
    with isolated_generators(devices_of(model)):
        yield


@contextmanager
def isolated_generators(devices: Iterable[torch.device]) -> Iterator[None]:
    """Put back the random number generators of torch (CPU and some devices), Python and numpy on leaving."""
    cuda = [device for device in devices if device.type == "cuda"]
    numpy_random = sys.modules.get("numpy.random")  # if nobody imported it, the model does not draw from it
    python_state, numpy_state = random.getstate(), numpy_random.get_state() if numpy_random else None
    try:
        with torch.random.fork_rng(devices=cuda):
            yield
    finally:
        random.setstate(python_state)
        if numpy_random is not None:
            numpy_random.set_state(numpy_state)


class _EagerPasses:
    """How many passes let compiled modules run as they were written: torch's stance is one for all threads."""

    running = 0
    lock = threading.Lock()
    stance = ExitStack()  # what the last of them undoes


@contextmanager
def as_written() -> Iterator[None]:
    """Let compiled modules run as they were written."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and asking would import it
        yield
        return
    with _EagerPasses.lock:
        if not _EagerPasses.running:
            _EagerPasses.stance.enter_context(torch.compiler.set_stance("force_eager"))
        _EagerPasses.running += 1
    try:
        yield
    finally:
        with _EagerPasses.lock:
            _EagerPasses.running -= 1
            if not _EagerPasses.running:
                _EagerPasses.stance.close()


class _SidePasses:
    """How often a model runs on the side of its training: hooks ask, so as not to take such a pass for training."""

    # A number and not a context variable: what is compiled can read it. Passes of several threads do not end in the
    # order in which they began, so that each adds itself and takes itself away.

    running = 0
    lock = threading.Lock()


def in_side_pass() -> bool:
    """Return whether a model runs on the side of its training: what a hook sees then is no training step."""
    return _SidePasses.running > 0


@contextmanager
def side_pass() -> Iterator[None]:
    """Let `in_side_pass` say that what runs is no training."""
    with _SidePasses.lock:
        _SidePasses.running += 1
    try:
        yield
    finally:
        with _SidePasses.lock:
            _SidePasses.running -= 1
