"""What stands in the place of torch's functions in a step under `torch.vmap`: each computes as a run alone would."""

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from lit_gelu.replicas.errors import NotReplicableError
from lit_gelu.replicas.forward.hidden import NO_VMAP
from lit_gelu.replicas.forward.rules import (
    WHOLE_VECTORS,
    CrossEntropyUnderVmap,
    DropoutRule,
    EachUnderVmap,
    LinearUnderVmap,
    RuleUnderVmap,
)
from lit_gelu.replicas.forward.under_vmap import mapped_call
from lit_gelu.replicas.randomness.streams import Streams


def drop(inputs: Tensor, rule: DropoutRule, inplace: bool) -> Tensor:
    """Return what dropout makes of a replica's inputs, and put it there if it is to be in place."""
    outputs: Tensor = mapped_call(RuleUnderVmap, inputs, rule)
    return inputs.copy_(outputs) if inplace else outputs


# What torch adds up in another order for a batch of replicas.
_EACH = frozenset({
    functional.batch_norm, functional.group_norm, functional.instance_norm, functional.layer_norm,
    functional.binary_cross_entropy, functional.binary_cross_entropy_with_logits,
})  # fmt: skip

# Functions of each element whose last ones, behind the whole vectors, torch computes by another formula.
_EACH_BUT_WHOLE_VECTORS = frozenset({
    functional.gelu, functional.silu, functional.mish, functional.elu, functional.celu, functional.selu,
    functional.softplus, functional.logsigmoid, functional.sigmoid, functional.tanh, torch.sigmoid, torch.tanh,
    Tensor.sigmoid, Tensor.tanh, torch.exp, Tensor.exp, torch.erf, Tensor.erf,
})  # fmt: skip


# The arguments of a cross-entropy for which there is a rule: torch gives all of them to what stands in its place.
_USUAL_LOSS = {
    "weight": None, "size_average": None, "ignore_index": -100, "reduce": None, "reduction": "mean",
    "label_smoothing": 0.0,
}  # fmt: skip


class RulesForFunctions(TorchFunctionMode):
    """Puts our rules in the place of torch's functions, whoever calls them."""

    def __init__(self, streams: Streams) -> None:
        super().__init__()
        self.streams = streams

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        rule = _RULES.get(func)
        if rule is not None:
            return rule(self, func, args, given)
        if func in _EACH_BUT_WHOLE_VECTORS and args and args[0].numel() % WHOLE_VECTORS:
            return _each(func, args, given)
        return func(*args, **given)


def _open(function: FunctionType) -> FunctionType:
    """Return a function of torch's that does not ask what stands in its place, so that the functions in it do."""
    names = {**function.__globals__, "has_torch_function": lambda _: False}
    opened = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    opened.__kwdefaults__ = function.__kwdefaults__
    return opened


_multi_head_attention = _open(functional.multi_head_attention_forward)  # type: ignore[arg-type] # a function
# Where the options of embeddings are among their arguments.
_OF_EMBEDDINGS: Mapping[Any, Mapping[str, int]] = {
    functional.embedding: {"padding_idx": 2, "max_norm": 3, "sparse": 6},
    functional.embedding_bag: {"padding_idx": 10, "max_norm": 3, "sparse": 7},
}


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002 - torch's names
    outputs: Tensor = mapped_call(LinearUnderVmap, input, weight, bias)
    return outputs


def _each(function: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor:
    """Call a function replica by replica, with named tensors among the others: only there are their replicas known."""

    def call(*values: Any) -> Tensor:
        outputs: Tensor = function(*values[: len(given)], **dict(zip(named, values[len(given) :], strict=True)))
        return outputs

    outputs: Tensor = mapped_call(EachUnderVmap, call, *given, *named.values())
    return outputs


def _embedding(function: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
    """Look up rows; torch.vmap makes one table of all replicas', and takes an option that names a row for the first."""

    def option(name: str) -> Any:  # to bind a signature takes as long as the function
        place = _OF_EMBEDDINGS[function][name]
        return args[place] if len(args) > place else given.get(name)

    if option("sparse"):
        raise NotReplicableError(f"An embedding has sparse=True, and its gradient has no place in a stack. {NO_VMAP}")
    is_plain = option("padding_idx") is None and option("max_norm") is None
    if function is functional.embedding and is_plain:
        return function(*args, **given)
    return _each(function, args, given)  # torch.vmap has no rule for bags


def _with_rules_inside(mode: RulesForFunctions, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
    with mode:
        return _multi_head_attention(*args, **given)


def _attention(function: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Tensor:
    """Call attention replica by replica, unless it drops something: that torch.vmap refuses."""
    chance = args[4] if len(args) > 4 else given.get("dropout_p", 0.0)
    outputs: Tensor = function(*args, **given) if chance else _each(function, args, given)
    return outputs


def _dropout(streams: Streams, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
    if not training or p == 0:
        return input
    return drop(input, DropoutRule([p] * len(streams.generators), streams), inplace)


def _cross_entropy(input: Tensor, target: Tensor, *args: Any, **given: Any) -> Tensor:  # noqa: A002 - torch's names
    is_usual = not args and all(
        (given[name] is usual or given[name] == usual) for name, usual in _USUAL_LOSS.items() if name in given
    )
    if not is_usual or input.ndim != 2 or target.ndim != 1:
        outputs: Tensor = _weighted(functional.cross_entropy, (input, target, *args), given)
    else:
        outputs = mapped_call(CrossEntropyUnderVmap, input, target)
    return outputs


def _weighted(function: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Any:
    """Call a loss; the weights of classes are added up in another order for a batch of replicas."""
    weight = args[2] if len(args) > 2 else given.get("weight")
    return function(*args, **given) if weight is None else _each(function, args, given)


# For every function what is called in its place, with what stands there, the function and its arguments.
_RULES: Mapping[Any, Callable[[RulesForFunctions, Any, tuple[Any, ...], Mapping[str, Any]], Any]] = {
    functional.linear: lambda _, __, args, given: _linear(*args, **given),
    functional.dropout: lambda mode, _, args, given: _dropout(mode.streams, *args, **given),
    functional.cross_entropy: lambda _, __, args, given: _cross_entropy(*args, **given),
    functional.nll_loss: lambda _, function, args, given: _weighted(function, args, given),
    functional.multi_head_attention_forward: lambda mode, _, args, given: _with_rules_inside(mode, args, given),
    functional.scaled_dot_product_attention: lambda _, function, args, given: _attention(function, args, given),
    **dict.fromkeys(_OF_EMBEDDINGS, lambda _, function, args, given: _embedding(function, args, given)),
    **dict.fromkeys(_EACH, lambda _, function, args, given: _each(function, args, given)),
}
