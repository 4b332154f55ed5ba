"""What a swap changes: changes that can be taken back exactly, edits of a class, and a key in the state_dict."""

import ast
import contextlib
import functools
import inspect
import itertools
import pickle
import re
import types
import weakref
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lit_gelu.activations import ActivationSpec
from lit_gelu.activations.naming.forms import NOT_OF_THE_FUNCTION
from lit_gelu.errors import SwapError
from lit_gelu.surgery import source
from lit_gelu.surgery.source import CallPlace, wrapped_functions


@dataclass
class SetChild:
    """Sets a child module: in the place of another, of an attribute that is no module, or a new one at the end."""

    parent: nn.Module
    name: str
    module: nn.Module
    _before: nn.Module | None = field(default=None, init=False)
    _attributes: dict[str, Any] | None = field(default=None, init=False)

    def make(self) -> None:
        """Make the change."""
        self._before = self.parent._modules.get(self.name)
        if self.name in vars(self.parent):
            self._attributes = dict(vars(self.parent))
        setattr(self.parent, self.name, self.module)
        if isinstance(self.parent, nn.TransformerDecoderLayer) and self.name == "activation":
            # Copies that find none in the layer's dictionary put F.relu there; see `recognition.hidden_modules`.
            vars(self.parent)[self.name] = self.module

    def stands(self) -> bool:
        """Say whether the model is still as the change left it."""
        return self.parent._modules.get(self.name) is self.module

    def revert(self) -> None:
        """Put back what was there before."""
        vars(self.parent).pop(self.name, None)
        if self._before is not None:
            setattr(self.parent, self.name, self._before)
        else:
            self.parent._modules.pop(self.name, None)
        if self._attributes is not None:  # the order of attributes comes back too
            now = vars(self.parent)
            later = {key: value for key, value in now.items() if key not in self._attributes}
            kept = {key: now.get(key, value) for key, value in self._attributes.items()}
            now.clear()
            now.update(kept | later)


@dataclass
class SetAttribute:
    """Sets an attribute that is no module: the class, a bound method of it, a flag."""

    target: nn.Module
    name: str
    value: Any
    _before: Any = field(default=None, init=False)

    def make(self) -> None:
        """Make the change."""
        self._before = getattr(self.target, self.name)
        setattr(self.target, self.name, self.value)

    def stands(self) -> bool:
        """Say whether the model is still as the change left it."""
        return self.name != "__class__" or type(self.target) is self.value  # the others follow from the class

    def revert(self) -> None:
        """Put back what was there before."""
        setattr(self.target, self.name, self._before)


Change = SetChild | SetAttribute


@contextlib.contextmanager
def in_effect(changes: Sequence[Change]) -> Iterator[contextlib.ExitStack]:
    """Make changes in order, and take them back on leaving or if one fails, unless ``pop_all`` is called."""
    with contextlib.ExitStack() as stack:
        for change in changes:
            change.make()
            stack.callback(change.revert)
        yield stack


def revert_all(changes: Sequence[Change]) -> None:
    """Take changes back, the last first; `SwapError`, and nothing is done, if one of them stands no more."""
    for change in changes:
        if not change.stands():
            what = f"{change.name!r}" if isinstance(change, SetChild) else "a module"
            raise SwapError(f"Cannot undo: {what} has been given something else since. Undo the later swap first.")
    for change in reversed(changes):
        change.revert()


def share_hooks(source: nn.Module, target: nn.Module) -> None:
    """Give a module the very dictionaries of another's hooks, so that a handle's ``remove`` works for both."""
    for attribute in vars(nn.Module()):
        if "forward_" in attribute or "backward_" in attribute:  # those of a state_dict are each module's own
            setattr(target, attribute, getattr(source, attribute))


# A module's class with some calls in its methods replaced by calls of child modules of its own. The class is exchanged
# for a subclass whose methods are compiled again from their source, with the one expression changed: ``F.gelu(x)``
# becomes ``self.gelu_call(x)``. Nothing is intercepted, so ``state_dict``, ``torch.compile`` and exporters see an
# ordinary child. A ``forward`` in the instance's dictionary would be dropped by pickle without a word.
_EDITS = "_lit_gelu_edits"  # the attribute of such a class


@dataclass(frozen=True)
class Edit:
    """A call expression that calls a child instead; a probed one stays, and its input goes through the child first."""

    place: CallPlace
    child: str
    name: str | None  # of the site that the call was, relative to the module; ``None`` of a probed one


def edits_of(module: nn.Module) -> list[Edit]:
    """Return what was changed in the class of a module, what was changed last first."""
    return [edit for cls in type(module).__mro__ for edit in cls.__dict__.get(_EDITS, ())]


_FRESH: weakref.WeakValueDictionary[Any, type[nn.Module]] = weakref.WeakValueDictionary()  # by class and edits


def edited_class(cls: type[nn.Module], edits: tuple[Edit, ...]) -> type[nn.Module]:
    """Return the subclass, of the same name, in which calls go to children; the same one for the same edits."""
    if cls.__module__ == parametrize.__name__:
        raise SwapError(
            f"{cls.__name__} is the class that torch.nn.utils.parametrize made for it, to which it goes back when the "
            "parametrization is removed. Swap first, then parametrize"
        )
    cached = _FRESH.get((cls, edits))
    if cached is not None:
        return cached
    namespace: dict[str, Any] = {
        name: _rewritten(cls, name, [edit for edit in edits if edit.place.method == name])
        for name in dict.fromkeys(edit.place.method for edit in edits)
    }
    namespace |= {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    namespace |= {_EDITS: edits, "__reduce_ex__": _reduce}
    edited: type[nn.Module] = types.new_class(cls.__name__, (cls,), exec_body=lambda body: body.update(namespace))
    _FRESH[cls, edits] = edited
    return edited


def _rewritten(cls: type, name: str, edits: Sequence[Edit]) -> Callable[..., Any]:
    """Compile a method again, with its calls replaced, or raise `SwapError` if it has been changed."""
    outermost = inspect.getattr_static(cls, name)
    chain = list(wrapped_functions(outermost))
    if not chain:
        raise SwapError(f"{cls.__qualname__}.{name} is no function")
    code = chain[-1].__code__
    first = code.co_firstlineno
    replacements = []
    for edit in sorted(edits, key=lambda edit: edit.place.argument[1]):  # of nested ones the inner first
        place = edit.place
        node = source.call_at(code, (place.end[0] + first, place.end[1]))
        if ast.unparse(node) != place.text:
            raise SwapError(f"{cls.__qualname__}.{name} has been changed: {place.text!r} is not where it was")
        begin, stop = ((line + first, column) for line, column in place.argument)
        span = (begin, stop) if edit.name is None else source.span_of(node)
        replacements.append((span, (begin, stop), f"self.{edit.child}"))
    changed = source.with_calls_replaced(code, replacements)
    cells = dict(zip(code.co_freevars, chain[-1].__closure__ or (), strict=True))
    new = _like(chain[-1], changed, tuple(cells[variable] for variable in changed.co_freevars))
    for wrapper, inner in reversed(list(itertools.pairwise(chain))):
        holds = [cell.cell_contents is inner for cell in wrapper.__closure__ or ()]
        if not any(holds):
            raise SwapError(f"{inner.__qualname__} is decorated in a way that cannot be taken apart")
        closure = zip(wrapper.__closure__ or (), holds, strict=True)
        cells_of_wrapper = tuple(types.CellType(new) if hold else cell for cell, hold in closure)
        wrapping = _like(wrapper, wrapper.__code__, cells_of_wrapper)
        wrapping.__dict__["__wrapped__"] = new
        new = wrapping
    return new


def _like(function: types.FunctionType, code: types.CodeType, cells: tuple[types.CellType, ...]) -> types.FunctionType:
    """Return a function with other code and variables that it closes over, and everything else as it was."""
    new = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, cells or None)
    new.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(new, function)
    del new.__dict__["__wrapped__"]
    return new


def _reduce(self: nn.Module, protocol: Any) -> Any:
    """Pickle and copy a module by its class as it was written and the edits, which are made again."""
    layers = [cls for cls in type(self).__mro__ if _EDITS in cls.__dict__]
    original = layers[-1].__mro__[1]
    reduce: Any = original.__reduce_ex__
    reduced = reduce(self, protocol)
    if not isinstance(reduced, tuple) or getattr(reduced[0], "__name__", "") != "__newobj__":
        raise pickle.PicklingError(
            f"{original.__qualname__} has its own way to be pickled, and calls in it were swapped. Save its "
            "state_dict, or undo the swap first."
        )
    edits = tuple(layer.__dict__[_EDITS] for layer in reversed(layers))
    return (_build, (original, edits, *reduced[1][1:]), *reduced[2:])


def _build(original: type[nn.Module], layers: tuple[tuple[Edit, ...], ...], *args: Any) -> nn.Module:
    """Make an empty module of an edited class: what pickle and copy call."""
    edited: type[nn.Module] = functools.reduce(edited_class, layers, original)
    return edited.__new__(edited, *args)


# An activation without parameters leaves no trace in a `state_dict`, so every new one adds a key with an empty
# tensor: `load_state_dict(strict=True)` of a model without the swap fails with it. Its name is all that torch's
# error shows (and not that of `_extra_state`), so it names the activation, what puts it in, and what takes the key out
# for a model that has the activation by itself. A model with the same swap takes the key, and weights that lack it. The
# module has the tensor as an attribute too, where `torch.distributed.checkpoint` and `torch.func.functional_call` look
# keys up.
_KEY = "_lit_gelu_swap_key"  # the attribute that holds the key
_LOADER = "__needs_ActivationSwap_or_lit_gelu_callbacks_load_from_checkpoint_or_lit_gelu_surgery_without_marks"
_LONGEST = 100  # characters of the activation in a key

_Weights = TypeVar("_Weights", bound=MutableMapping[str, Any])


def mark(module: nn.Module, spec: ActivationSpec) -> None:
    """Have a module that a swap puts in say so, by its canonical spec, in its ``state_dict``."""
    before = vars(module).pop(_KEY, None)
    vars(module).pop(str(before), None)
    parts = [spec.name]
    for name, value in spec.kwargs:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name not in NOT_OF_THE_FUNCTION:
            parts += [name, f"{value:.12g}" if number else str(value)]
    words = re.sub(r"[^0-9A-Za-z]+", "_", "_".join(parts).replace("-", "_minus_")).strip("_")
    key = f"swapped_to_{words[:_LONGEST]}{_LOADER}"
    vars(module)[_KEY] = key
    vars(module)[key] = torch.empty(0)
    if before is None:
        untyped: Any = module
        untyped.register_state_dict_post_hook(_write)
        untyped.register_load_state_dict_pre_hook(_take)


def without_marks(state_dict: _Weights) -> _Weights:
    """Return a ``state_dict`` with the keys of swaps deleted: plain weights, for a model with these activations.

    Example:
        >>> from lit_gelu import surgery
        >>> model, same = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Sequential(nn.Linear(2, 2), nn.GELU())
        >>> _ = surgery.swap(model, {nn.ReLU: "gelu"})
        >>> same.load_state_dict(without_marks(model.state_dict()))
        <All keys matched successfully>
    """
    for key in [key for key in state_dict if is_mark(key)]:
        del state_dict[key]
    return state_dict


def is_mark(key: str) -> bool:
    """Say whether a key of a ``state_dict`` is that of a swap."""
    return key.endswith(_LOADER) and key.rpartition(".")[2].startswith("swapped_to_")


def _write(module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Any) -> None:  # noqa: ARG001
    """Add the key; a hook's signature."""
    key: str = vars(module)[_KEY]
    empty: Tensor = vars(module)[key]
    state_dict[prefix + key] = empty


def _take(module: nn.Module, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:  # noqa: ARG001
    """Take the own key out; another one stays and is refused as unexpected."""
    state_dict.pop(prefix + vars(module)[_KEY], None)
