"""What running a model changes in it besides its output, and how it is as before."""

import itertools
import operator
import random
import sys
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.curvature.loss.probe_contents import UNCHANGING, Contents, is_of_library

_OF_EVERY_MODULE = frozenset(nn.Module().__dict__)
_MISSING = object()

_Attributes = tuple[dict[str, Any], dict[str, Any], int]
"""A module's own dictionary, what in it is neither parameter, buffer nor module, and its length."""


class ModuleState:
    """The state of a model that a forward pass may change, kept so that any number of passes find the same.

    `rewind` puts **copies** of the buffers and of the tensors among the attributes in place of the originals, so that
    what a pass changes in place (running means, the states of metrics) is the copy, and graphs of an earlier pass keep
    theirs; other attributes get the value they had, and lists, dictionaries, sets and generators their contents.
    `restore` puts the very originals back: nothing has touched them. Train/eval flags and ``.grad`` are put back, too.

    Modules that stand in plain lists and dictionaries (metrics often do) are included. What stands in containers and
    plain objects is kept as `Contents` says, but for the values of tensors in them, and of parameters: `WriteGuard`
    keeps these.

    Args:
        model: Any module.

    Attributes:
        modules: All of its modules, itself included.
        parameters: All of their parameters.
        tensors: What stands in containers and plain objects.
        devices: Where their parameters and buffers are.

    Example:
        >>> model = nn.BatchNorm1d(2)
        >>> state = ModuleState(model)
        >>> for _ in range(3):
        ...     state.rewind()
        ...     _ = model(torch.ones(4, 2))
        ...     print(model.num_batches_tracked.item())
        1
        1
        1
        >>> state.restore()
        >>> model.num_batches_tracked.item()
        0
    """

    def __init__(self, model: nn.Module) -> None:
        self.modules: list[nn.Module] = []
        self._flags: list[bool] = []
        self._buffers: list[dict[str, Tensor | None]] = []
        self._attributes: list[_Attributes] = []
        self._contents = Contents()
        self._tensors: list[tuple[dict[str, Any], str, Tensor]] = []
        self._copies: dict[int, Tensor] = {}
        self._gradients: list[tuple[Tensor, Tensor | None]] = []
        seen: set[int] = set()
        found = [model]
        while found:  # once for all there is to know of a module: a walk costs as much as a small layer
            module = found.pop()
            if id(module) not in seen:  # by identity: hashing a metric costs more than everything else here
                seen.add(id(module))
                found += [child for child in module._modules.values() if child is not None]
                found += self._keep(module)
        self.parameters = [parameter for parameter, _ in self._gradients]
        self.tensors = self._contents.tensors
        self.devices = {parameter.device for parameter, _ in self._gradients}
        self.devices |= {b.device for buffers in self._buffers for b in buffers.values() if b is not None}

    def rewind(self) -> None:
        """Let the next pass find what the first one found."""
        copies: dict[int, Tensor] = {}  # a buffer that two modules share stays shared
        for module, buffers in zip(self.modules, self._buffers, strict=True):
            if not buffers and not module._buffers:
                continue
            module._buffers.clear()
            for name, buffer in buffers.items():
                if buffer is not None and id(buffer) not in copies:
                    copies[id(buffer)] = buffer.detach().clone()
                module._buffers[name] = None if buffer is None else copies[id(buffer)]
        self._put_back_attributes()
        for number, (own, name, tensor) in enumerate(self._tensors):
            copied = self._copies.get(number)
            if copied is None or copied._version != 0:  # changed in place
                copied = self._copies[number] = tensor.detach().clone()
            own[name] = copied

    def restore(self) -> None:
        """Put everything back."""
        for module, flag, buffers in zip(self.modules, self._flags, self._buffers, strict=True):
            if module.training is not flag:
                module.training = flag
            if buffers or module._buffers:
                module._buffers.clear()
                module._buffers.update(buffers)
        self._put_back_attributes()
        self._copies.clear()
        for parameter, gradient in self._gradients:
            if parameter.grad is not gradient:
                parameter.grad = gradient

    def _keep(self, module: nn.Module) -> list[nn.Module]:
        """Take note of one module's state, and return the modules in its containers."""
        own = module.__dict__
        values = {name: value for name, value in own.items() if name not in _OF_EVERY_MODULE}
        guarded = len(self._contents.tensors)
        for name, value in values.items():
            if type(value) in UNCHANGING:
                continue
            if _is_plain_tensor(value):
                self._tensors.append((own, name, value))
            elif not isinstance(value, Tensor):
                self._contents.keep(value)
        if len(self._contents.tensors) > guarded and is_of_library(module):
            del self._contents.tensors[guarded:]  # a metric's defaults: nobody writes to them
        self.modules.append(module)
        self._flags.append(module.training)
        self._buffers.append(dict(module._buffers))
        self._attributes.append((own, values, len(own)))
        self._gradients += [(p, p.grad) for p in module._parameters.values() if p is not None]
        held, self._contents.modules = self._contents.modules, []
        return held

    def _put_back_attributes(self) -> None:
        """Let names stand for the objects that they stood for, and these hold what they held."""
        for own, values, length in self._attributes:
            # Nothing changes in most modules, and to see that is cheaper than to write it all.
            found = map(own.get, values, itertools.repeat(_MISSING))
            if len(own) == length and all(map(operator.is_, found, values.values())):
                continue
            for name in [name for name in own if name not in _OF_EVERY_MODULE and name not in values]:
                del own[name]
            own.update(values)
        self._contents.restore()


def _is_plain_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of its own: no parameter, nor computed from one (as old weight norm does)."""
    return isinstance(value, Tensor) and not value.requires_grad and not isinstance(value, nn.Parameter)


def seed_random_state(seed: int, devices: set[torch.device]) -> None:
    """Set the generators of Python, numpy and torch (CPU and the given CUDA devices) from a number.

    Args:
        seed: Any integer.
        devices: Devices of the model.
    """
    seed %= 2**63
    random.seed(seed)
    if "numpy.random" in sys.modules:  # if nobody imported it, the model does not draw from it
        sys.modules["numpy.random"].seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    for device in devices:
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            torch.cuda.default_generators[index].manual_seed(seed)
