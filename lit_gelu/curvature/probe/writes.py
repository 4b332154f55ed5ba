"""Undoing what a training step writes to parameters, and to tensors that stand in lists and objects."""

import itertools
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lit_gelu.errors import ArgumentError

_steady: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()
"""Modules whose loss was watched, and wrote to no parameter that is trained."""


COPIED_BYTES = 2**20
"""Up to which sum of their sizes tensors are copied beforehand: to watch every operation would take longer."""


class WriteGuard:
    """Lets every call of a loss find frozen parameters and some other tensors as the first call found them."""

    # A training step may write to parameters: it averages the weights of a teacher (BYOL, MoCo, DINO), or clips some.
    # To copy all of them in case it does would take as much memory as the model. So only 1 MiB of what is frozen is
    # copied beforehand. For the rest the first call for each batch is watched, operation by operation, and a tensor is
    # copied just before the first write to it. What was written is put back before the next call and at the end.
    #
    # A write to a parameter that is **trained** makes the loss another function than the one that is differentiated, so
    # it is refused, unless it changes no bit; it is put back, too. Watching takes some microseconds an operation.
    # Therefore, where nothing else needs it, a module is watched at its first event only: a write to a trained
    # parameter that begins later is refused without being put back, and one by ``.data`` is not seen then.

    def __init__(
        self, module: nn.Module, names: Mapping[str, Tensor], parameters: Sequence[Tensor], others: Sequence[Tensor]
    ) -> None:
        self._module = module
        self._names = names  # for messages; parameters may hold more, that can be reached from the module
        self._trained = [parameter for parameter in parameters if parameter.requires_grad]
        self._versions = [parameter._version for parameter in self._trained]
        trained = set(map(id, self._trained))
        self._restored = [t for t in (*parameters, *others) if id(t) not in trained and _can_be_written(t)]
        sizes = itertools.accumulate(tensor.nbytes for tensor in self._restored)
        self._copied = sum(size <= COPIED_BYTES for size in sizes)
        self._watches = self._copied < len(self._restored) or module not in _steady
        self._written: dict[int, Tensor] = {}
        self._touched: set[int] = set()
        self._met: set[int] = set()
        self._record: _WriteRecord | None = None

    @contextmanager
    def call(self, number: int) -> Iterator[None]:
        """Guard one call of the loss for a batch, by its number; refuse one that wrote to trained parameters."""
        record = self._record = self._record or self._new_record()
        record.put_back(self._written.values())
        if number in self._met or not self._watches:
            yield
        else:
            with self._watched(record):
                yield
        if number not in self._met:
            self._met.add(number)
            self._written |= {id(tensor): tensor for tensor in self._restored if record.is_changed(tensor)}
        versions = [parameter._version for parameter in self._trained]
        if self._versions != versions:
            moved = [p for p, old, new in zip(self._trained, self._versions, versions, strict=True) if old != new]
            self._versions = versions
            self._refuse(
                [parameter for parameter in moved if id(parameter) not in self._touched],
                "At its first event it did not, so they were not watched, and could not be put back.",
            )

    def restore(self) -> None:
        """Put back everything that was seen being written."""
        record, self._record = self._record, None
        if record is None:
            return
        if self._watches and self._met and not self._touched:
            _steady.add(self._module)
        changed = [tensor for tensor in self._restored if record.is_changed(tensor)]
        record.put_back([*changed, *self._written.values()])

    @contextmanager
    def _watched(self, record: "_WriteRecord") -> Iterator[None]:
        """Watch one call, and put back what it writes to trained parameters at once: a caller may have moved them."""
        changed: list[Tensor] = []
        try:
            with record:
                yield
        finally:
            changed = [parameter for parameter in self._trained if record.is_changed(parameter)]
            self._touched |= {id(parameter) for parameter in self._trained if record.is_written(parameter)}
            record.put_back(changed)
            record.forget(self._trained)
        self._refuse(changed, "They are put back.")

    def _new_record(self) -> "_WriteRecord":
        """Return what knows the tensors as they are now."""
        tensors = [*self._trained, *self._restored] if self._watches else self._restored
        return _WriteRecord(tensors, self._restored[: self._copied])

    def _refuse(self, changed: Sequence[Tensor], state: str) -> None:
        """Raise an error that names the parameters, if there are any."""
        if not changed:
            return
        names = {id(parameter): name for name, parameter in self._names.items()}
        shown = [names.get(id(p), f"one of shape {tuple(p.shape)}") for p in changed[:3]]
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise ArgumentError(
            f"The training step of {type(self._module).__name__} writes to parameters that are trained: "
            f"{', '.join(shown)}{more}. A loss that moves its own parameters has no derivatives that belong to them. "
            f"{state} Define curvature_loss(self, batch) on the module: it returns the scalar loss and writes to no "
            "parameter. Or write to them elsewhere, e.g. in on_train_batch_start."
        )


class _WriteRecord(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's __init_subclass__
    """While active, copies each of some tensors just before the first operation that writes to it."""

    # Operations on views and on ``.data`` are seen: a tensor is known by its storage. To be used as a context manager,
    # as often as one likes.

    supports_higher_order_operators = True

    def __init__(self, tensors: Iterable[Tensor], copied: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._owners: dict[int, list[Tensor]] = {}
        self._found: dict[int, Tensor] = {}  # by id, what was under a name before it was made to stand for other data
        self._copies = {id(tensor): tensor.detach().clone() for tensor in copied}
        for tensor in tensors:
            storage = _storage_of(tensor)
            if storage:
                self._owners.setdefault(storage, []).append(tensor)
                self._found[id(tensor)] = tensor.data

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for place, name in _written_arguments(func):
            written = args[place] if place < len(args) else kwargs.get(name)
            for tensor in written if isinstance(written, (list, tuple)) else [written]:
                if isinstance(tensor, Tensor):
                    for owner in self._owners.pop(_storage_of(tensor), ()):
                        if id(owner) not in self._copies:
                            self._copies[id(owner)] = owner.detach().clone()
        return func(*args, **kwargs)

    def is_written(self, tensor: Tensor) -> bool:
        """Return whether a tensor was written to, or stands for other data than it did."""
        return id(tensor) in self._copies or self._is_replaced(tensor)

    def is_changed(self, tensor: Tensor) -> bool:
        """Return whether its values are not what they were."""
        if not self.is_written(tensor):
            return False
        before = self._copies[id(tensor)] if id(tensor) in self._copies else self._found[id(tensor)]
        return not _equal(tensor.detach(), before)

    def put_back(self, tensors: Iterable[Tensor]) -> None:
        """Let tensors have the data and values that they had."""
        for tensor in tensors:
            if self._is_replaced(tensor):
                tensor.data = self._found[id(tensor)]
            if id(tensor) in self._copies:
                with torch.no_grad():  # not by .data: a graph recorded before that needs what goes now must raise
                    tensor.copy_(self._copies[id(tensor)])
                if tensor.grad_fn is not None:  # a result with a graph was added to it
                    tensor.detach_()

    def forget(self, tensors: Iterable[Tensor]) -> None:
        """Drop the copies of tensors, so that the next write to them is seen anew."""
        for tensor in tensors:
            if self._copies.pop(id(tensor), None) is not None:
                self._owners.setdefault(_storage_of(tensor), []).append(tensor)

    def _is_replaced(self, tensor: Tensor) -> bool:
        found = self._found.get(id(tensor))
        return found is not None and found.data_ptr() != tensor.data_ptr()


_written: dict[Any, list[tuple[int, str]]] = {}


def _written_arguments(func: Any) -> list[tuple[int, str]]:
    """Return place and name of the arguments that an operation writes to."""
    known = _written.get(func)
    if known is None:
        schema = getattr(func, "_schema", None)  # an operator of higher order has none
        arguments = [] if schema is None else schema.arguments
        known = _written[func] = [
            (place, argument.name)
            for place, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
    return known


def _can_be_written(tensor: Tensor) -> bool:
    """Return whether a training step could write to a tensor: not to those of validation, made in inference mode."""
    return tensor.layout == torch.strided and tensor.device.type != "meta" and not tensor.is_inference()


def _equal(some: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal, of the same shape, and not a number at the same places."""
    if torch.equal(some, other):
        return True
    alike = some.shape == other.shape and some.is_floating_point()
    return alike and torch.allclose(some, other, rtol=0, atol=0, equal_nan=True)


def _storage_of(tensor: Tensor) -> int:
    """Return the address of a tensor's data; 0 of one that has none, such as a sparse one."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError, ValueError):
        return 0
