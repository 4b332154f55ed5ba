"""What running a model changes in it besides its output, and how it is put back."""

import collections
import enum
import operator
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.errors import ArgumentError
from lit_gelu.sandbox import equal

_NUMBERS_AND_TEXTS = (type(None), bool, int, float, complex, str, bytes)
UNCHANGING = frozenset({*_NUMBERS_AND_TEXTS, torch.dtype, torch.device, torch.Size, FunctionType, MethodType})
"""Types whose values cannot be changed in place; most attributes of modules are of one."""

LOOKED_INTO = 1_000
"""Elements of the largest container whose elements are looked into."""

_ARRAY_BYTES = 2**20
_CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)
_BAGS = (SimpleNamespace, collections.UserDict, collections.UserList)
_NOT_LOOKED_INTO = frozenset({
    *("torch", "torchmetrics", "torchvision", "lightning", "lightning_fabric", "lightning_utilities"),
    *("pytorch_lightning", "numpy"),
    *sys.stdlib_module_names,
})
"""Top-level packages whose classes are not taken for plain objects: what changes in theirs is not a model's state."""


class Contents:
    """What is in the containers and plain objects that can be reached from some values, so that it can be put back."""

    # Containers are dictionaries, lists, tuples, sets and deques; a plain object is one with a ``__dict__`` of a class
    # that is not Python's, torch's or Lightning's, such as a meter. Containers are followed wherever they are, plain
    # objects down to the containers in their ``__dict__``, not to further plain objects. Generators of random numbers
    # and numpy arrays up to 1 MiB are kept as well. Of modules and leaf tensors in containers only note is taken: the
    # values of these are the business of `WriteGuard`.

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.tensors: list[Tensor] = []
        self._restorers: list[Callable[[], object]] = []
        self._seen: set[int] = set()

    def keep(self, value: Any) -> None:
        """Take note of what is in a value, an attribute of a module."""
        pending = [(value, False)]
        while pending:
            value, in_object = pending.pop()
            if type(value) in UNCHANGING or id(value) in self._seen:
                continue
            if isinstance(value, nn.Module):
                self.modules.append(value)
            elif isinstance(value, Tensor):
                if value.is_leaf:
                    self._seen.add(id(value))
                    self.tensors.append(value)
            else:
                # In an object a plain object is not looked into; it may be an attribute of a module besides.
                if not in_object or isinstance(value, _CONTAINERS) or not _is_plain_object(value):
                    self._seen.add(id(value))
                if (restorer := _restorer(value)) is not None:
                    self._restorers.append(restorer)
                if isinstance(value, _CONTAINERS) and len(value) <= LOOKED_INTO:
                    pending += [(each, in_object) for each in (value.values() if isinstance(value, dict) else value)]
                if not in_object and _is_plain_object(value):
                    pending.append((value.__dict__, True))

    def restore(self) -> None:
        """Let everything hold what it held, in the very same containers."""
        for restore in self._restorers:
            restore()


def _refill(owner: Any, kept: Any) -> None:
    if isinstance(owner, dict):
        if not _identical(owner.keys(), kept.keys()):
            owner.clear()
        for key, value in kept.items():  # no more than needed: another thread may read it
            if key not in owner or owner[key] is not value:
                owner[key] = value
    elif isinstance(owner, set) or not _identical(owner, kept):
        owner.clear()
        owner.update(kept) if isinstance(owner, set) else owner.extend(kept)


def _restorer(value: Any) -> Callable[[], object] | None:
    """Return what puts back the content of a value that can be changed in place; ``None`` for one that cannot."""
    if isinstance(value, (dict, list, set, collections.deque)):
        return partial(_refill, value, dict(value) if isinstance(value, dict) else [*value])  # a copy() may fail
    if isinstance(value, torch.Generator):
        return partial(value.set_state, value.get_state())
    if isinstance(value, random.Random):  # noqa: S311 - the model's own, not ours
        return partial(value.setstate, value.getstate())
    if _is_numpy(value, "random", "RandomState"):
        return partial(value.set_state, value.get_state())
    if _is_numpy(value, "random", "Generator"):
        return partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    if _is_numpy(value, "", "ndarray") and value.flags.writeable and value.nbytes <= _ARRAY_BYTES:
        return partial(value.__setitem__, ..., value.copy())
    return None


def is_of_library(value: Any) -> bool:
    """Return whether a value's class is Python's, torch's, Lightning's, torchmetrics' or numpy's."""
    return type(value).__module__.partition(".")[0] in _NOT_LOOKED_INTO


def _is_plain_object(value: Any) -> bool:
    """Return whether a value is an object of the user's, or of a package of models, that holds its state in itself."""
    if isinstance(value, (type, enum.Enum)) or not isinstance(getattr(value, "__dict__", None), dict):
        return False
    return isinstance(value, _BAGS) or not is_of_library(value)


def _is_numpy(value: Any, part: str, name: str) -> bool:
    """Return whether a value is of a class of numpy's, which is not imported here."""
    module = sys.modules.get(f"numpy.{part}" if part else "numpy")
    return module is not None and isinstance(value, getattr(module, name))


def _identical(some: Any, others: Any) -> bool:
    """Return whether two collections hold the same objects in the same order."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


_OF_EVERY_MODULE = frozenset(nn.Module().__dict__)


class ModuleState:
    """The state of a model that a forward pass may change, kept so that any number of passes find the same."""

    # `rewind` puts **copies** of the buffers and of the tensors among the attributes in place of the originals, so that
    # what a pass changes in place (running means, the states of metrics) is the copy, and graphs of an earlier pass
    # keep theirs; other attributes get the value they had, and lists, dictionaries, sets and generators their contents.
    # `restore` puts the very originals back, which nothing has touched, and train/eval flags and ``.grad``.
    #
    # Modules that stand in plain lists and dictionaries (metrics often do) are included. What stands in containers and
    # plain objects is kept as `Contents` says, but for the values of tensors in them, and of parameters: `WriteGuard`
    # keeps these.

    def __init__(self, model: nn.Module) -> None:
        self.modules: list[nn.Module] = []
        self._flags: list[bool] = []
        self._buffers: list[dict[str, Tensor | None]] = []
        # The dictionary of each module, and what in it is neither parameter, buffer nor module.
        self._attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._contents = Contents()
        self._tensors: list[tuple[dict[str, Any], str, Tensor]] = []
        self._gradients: list[tuple[Tensor, Tensor | None]] = []
        seen: set[int] = set()
        pending = [model]
        while pending:  # once for all there is to know of a module: a walk costs as much as a small layer
            module = pending.pop()
            if id(module) not in seen:  # by identity: hashing a metric costs more than everything else here
                seen.add(id(module))
                pending += [child for child in module._modules.values() if child is not None]
                pending += self._keep(module)
        self.parameters = [parameter for parameter, _ in self._gradients]
        self.tensors = self._contents.tensors
        self.devices = {parameter.device for parameter, _ in self._gradients}
        self.devices |= {b.device for buffers in self._buffers for b in buffers.values() if b is not None}

    def rewind(self) -> None:
        """Let the next pass find what the first one found."""
        copies: dict[int, Tensor] = {}  # a buffer that two modules share stays shared
        for module, buffers in zip(self.modules, self._buffers, strict=True):
            if not buffers and not module._buffers:  # of TorchScript's modules the dictionary is another thing
                continue
            module._buffers.clear()
            for name, buffer in buffers.items():
                if buffer is not None and id(buffer) not in copies:
                    copies[id(buffer)] = buffer.detach().clone()
                module._buffers[name] = None if buffer is None else copies[id(buffer)]
        self._put_back_attributes()
        for attributes, name, tensor in self._tensors:
            attributes[name] = tensor.detach().clone()

    def restore(self) -> None:
        """Put everything back."""
        for module, flag, buffers in zip(self.modules, self._flags, self._buffers, strict=True):
            module.training = flag
            if buffers or module._buffers:
                module._buffers.clear()
                module._buffers.update(buffers)
        self._put_back_attributes()
        for parameter, gradient in self._gradients:
            parameter.grad = gradient

    def _keep(self, module: nn.Module) -> list[nn.Module]:
        """Take note of one module's state, and return the modules in its containers."""
        attributes = module.__dict__
        values = {name: value for name, value in attributes.items() if name not in _OF_EVERY_MODULE}
        guarded = len(self._contents.tensors)
        for name, value in values.items():
            if type(value) in UNCHANGING:
                continue
            if not isinstance(value, Tensor):
                self._contents.keep(value)
            elif not value.requires_grad and not isinstance(value, nn.Parameter):
                # Neither a parameter nor computed from one, as the old weight norm's are.
                self._tensors.append((attributes, name, value))
        if len(self._contents.tensors) > guarded and is_of_library(module):
            del self._contents.tensors[guarded:]  # a metric's defaults: nobody writes to them
        self.modules.append(module)
        self._flags.append(module.training)
        self._buffers.append(dict(module._buffers))
        self._attributes.append((attributes, values))
        self._gradients += [(p, p.grad) for p in module._parameters.values() if p is not None]
        held, self._contents.modules = self._contents.modules, []
        return held

    def _put_back_attributes(self) -> None:
        """Let names stand for the objects that they stood for, and these hold what they held."""
        for attributes, values in self._attributes:
            for name in [name for name in attributes if name not in _OF_EVERY_MODULE and name not in values]:
                del attributes[name]
            attributes.update(values)
        self._contents.restore()


COPIED_BYTES = 2**30
"""Up to which sum of their sizes tensors that are not trained are copied; a write to others is refused."""

_Kept = tuple[Tensor, Tensor, Tensor]
"""A tensor, the data that it stands for, and a copy of them."""


class WriteGuard:
    """Lets every call of a loss find frozen parameters and some other tensors as the first call found them."""

    # A training step may write to parameters: it averages the weights of a teacher (BYOL, MoCo, DINO), or clips some.
    # What is frozen is put back before each call and at the end. A write to a parameter that is **trained** makes the
    # loss another function than the one that is differentiated: it is put back at once and refused, unless it changes
    # no bit. Trained parameters are compared with where a call found them, since a caller may have moved them.

    def __init__(
        self, module: nn.Module, names: Mapping[str, Tensor], parameters: Sequence[Tensor], others: Sequence[Tensor]
    ) -> None:
        self._module, self._names = module, names  # for messages
        self._trained = [parameter for parameter in parameters if parameter.requires_grad]
        trained, size = set(map(id, self._trained)), 0
        self._kept: list[_Kept] = []
        self._watched: list[tuple[Tensor, int]] = []
        for tensor in (*parameters, *others):
            if id(tensor) not in trained and _can_be_written(tensor):
                size += tensor.nbytes
                if size <= COPIED_BYTES:
                    self._kept.append(_kept(tensor))
                else:
                    self._watched.append((tensor, tensor._version))

    @contextmanager
    def call(self) -> Iterator[None]:
        """Guard one call of the loss."""
        self.restore()
        before = [_kept(parameter) for parameter in self._trained if _can_be_written(parameter)]
        changed: list[Tensor] = []
        try:
            yield
        finally:
            changed = _put_back(before)
        self._refuse(changed, "writes to parameters that are trained", "They are put back.")
        written = [tensor for tensor, version in self._watched if tensor._version != version]
        self._refuse(written, "writes to frozen parameters that are too large to copy", "They could not be put back.")

    def restore(self) -> None:
        """Put back what was written."""
        _put_back(self._kept)

    def _refuse(self, tensors: Sequence[Tensor], what: str, state: str) -> None:
        if not tensors:
            return
        names = {id(parameter): name for name, parameter in self._names.items()}
        shown = [names.get(id(tensor), f"one of shape {tuple(tensor.shape)}") for tensor in tensors[:3]]
        more = f" and {len(tensors) - 3} more" if len(tensors) > 3 else ""
        raise ArgumentError(
            f"The training step of {type(self._module).__name__} {what}: {', '.join(shown)}{more}. A loss that moves "
            f"its own parameters has no derivatives that belong to them. {state} Define curvature_loss(self, batch) on "
            "the module: it returns the scalar loss and writes to no parameter. Or write to them elsewhere, e.g. in "
            "on_train_batch_start."
        )


def _kept(tensor: Tensor) -> _Kept:
    return tensor, tensor.data, tensor.detach().clone()


def _put_back(kept: Sequence[_Kept]) -> list[Tensor]:
    """Let tensors have the data and values that they had; return those that had others."""
    changed = []
    for tensor, data, copy in kept:
        if tensor.data_ptr() != data.data_ptr():
            tensor.data = data
            changed.append(tensor)
        if not equal(tensor.detach(), copy):
            with torch.no_grad():  # not by .data: a graph recorded before that needs what goes now must raise
                tensor.copy_(copy)
            changed.append(tensor)
        if tensor.grad_fn is not None:  # a result with a graph was added to it
            tensor.detach_()
    return list({id(tensor): tensor for tensor in changed}.values())


def _can_be_written(tensor: Tensor) -> bool:
    """Return whether a training step could write to a tensor: not to those of validation, made in inference mode."""
    return tensor.layout == torch.strided and tensor.device.type != "meta" and not tensor.is_inference()


def seed_random_state(seed: int, devices: set[torch.device]) -> None:
    """Set the generators of Python, numpy and torch (CPU and the given CUDA devices) from a number."""
    seed %= 2**63
    random.seed(seed)
    if "numpy.random" in sys.modules:  # if nobody imported it, the model does not draw from it
        sys.modules["numpy.random"].seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    for device in devices:
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            torch.cuda.default_generators[index].manual_seed(seed)
