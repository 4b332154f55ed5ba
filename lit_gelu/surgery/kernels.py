"""Which of torch's operators are activations, and from the arguments of one to its spec."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch._ops import OpOverload, OpOverloadPacket

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.errors import LitGeluError

Arguments = Mapping[str, Any]
_SELU_SCALE = 1.0507009873554805


def _elu(given: Arguments) -> ActivationSpec | None:
    if math.isclose(given["scale"], _SELU_SCALE, rel_tol=1e-6):
        return ActivationSpec("selu")
    if given["scale"] == 1:
        return ActivationSpec.of("elu", alpha=float(given["alpha"]))
    return None


def _hard_tanh(given: Arguments) -> ActivationSpec | None:
    return ActivationSpec("relu6") if (given["min_val"], given["max_val"]) == (0, 6) else None


def _fused(given: Arguments) -> ActivationSpec | None:
    return ActivationSpec("gelu" if given["use_gelu"] else "relu")


def _softmax(given: Arguments) -> ActivationSpec | None:
    return ActivationSpec("aten.softmax", (("dim", given["dim"]),), opaque=True)


def _prelu(given: Arguments) -> ActivationSpec | None:
    return ActivationSpec.of("prelu", num_parameters=given["weight"].numel())


def _plain(name: str, *arguments: str) -> Callable[[Arguments], ActivationSpec | None]:
    return lambda given: ActivationSpec.of(name, **{key: given[key] for key in arguments})


_SPECS: Mapping[str, Callable[[Arguments], ActivationSpec | None]] = {
    "_addmm_activation": _fused,
    "_prelu_kernel": _plain("prelu"),
    "_safe_softmax": _softmax,
    "_softmax": _softmax,
    "_transformer_encoder_layer_fwd": _fused,
    "celu": lambda given: ActivationSpec.of("celu", alpha=float(given["alpha"])),
    "elu": _elu,
    "gelu": _plain("gelu", "approximate"),
    "hardsigmoid": _plain("hard_sigmoid"),
    "hardswish": _plain("hard_swish"),
    "hardtanh": _hard_tanh,
    "leaky_relu": lambda given: ActivationSpec.of("leaky_relu", negative_slope=float(given["negative_slope"])),
    "log_sigmoid": _plain("log_sigmoid"),
    "log_sigmoid_forward": _plain("log_sigmoid"),
    "mish": _plain("mish"),
    "prelu": _prelu,
    "relu": _plain("relu"),
    "relu6": _plain("relu6"),
    "selu": _plain("selu"),
    "sigmoid": _plain("sigmoid"),
    "silu": _plain("silu"),
    "softmax": _softmax,
    "softplus": lambda given: ActivationSpec.of(
        "softplus", beta=float(given["beta"]), threshold=float(given["threshold"])
    ),
    "tanh": _plain("tanh"),
}

# Of several inputs, results or steps: no call of another activation could stand there.
_NO_SITES = frozenset({"_addmm_activation", "_transformer_encoder_layer_fwd", "log_sigmoid_forward", "_prelu_kernel"})

# These hide sigmoids and tanhs, or ReLUs, that are never called by themselves.
RECURRENT = frozenset({
    "_cudnn_rnn",
    "_thnn_fused_gru_cell",
    "_thnn_fused_lstm_cell",
    "miopen_rnn",
    "mkldnn_rnn_layer",
})


def kernel_name(operator: Any) -> str:
    """Return the name of an operator of torch, without its overload and the underscore of those in place.

    Args:
        operator: An ``torch._ops.OpOverload``.

    Returns:
        The name, such as ``"relu"``; empty if it is not one of ``aten``'s.

    Example:
        >>> import torch
        >>> kernel_name(torch.ops.aten.relu_.default)
        'relu'
    """
    namespace, _, name = str(operator.name()).partition("::")
    return name.partition(".")[0].rstrip("_") if namespace == "aten" else ""


def kernel_spec(
    operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], registry: ActivationRegistry
) -> ActivationSpec | None:
    """Return what an operator computes, if it is an activation.

    Args:
        operator: A ``torch._ops.OpOverload``.
        args: Its arguments.
        kwargs: Its keyword arguments.
        registry: Where the names are looked up.

    Returns:
        The canonical spec, ``None`` if it is none.

    Example:
        >>> import torch
        >>> from lit_gelu.activations import registry
        >>> str(kernel_spec(torch.ops.aten.gelu.default, (torch.ones(1),), {"approximate": "tanh"}, registry))
        "gelu(approximate='tanh')"
    """
    read = _SPECS.get(kernel_name(operator))
    if read is None:
        return None
    schema = operator._schema.arguments
    given = {row.name: row.default_value for row in schema if row.has_default_value()}
    spec = read(given | {row.name: value for row, value in zip(schema, args, strict=False)} | dict(kwargs))
    if spec is None or spec.opaque:
        return spec
    try:
        return registry.resolve(spec)
    except LitGeluError:
        return None  # a registry without it


def operator_spec(
    operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], registry: ActivationRegistry
) -> ActivationSpec | None:
    """Return what a call such as ``torch.ops.aten.gelu(x)`` computes, if it is an activation of its first argument.

    Args:
        operator: Anything that is called.
        args: Its arguments.
        kwargs: Its keyword arguments.
        registry: Where the names are looked up.

    Returns:
        The canonical spec, with ``inplace=True`` if it overwrites its input; ``None`` if it is none.

    Example:
        >>> import torch
        >>> from lit_gelu.activations import registry
        >>> str(operator_spec(torch.ops.aten.hardtanh, (torch.ones(1), 0, 6), {}, registry))
        'relu6'
    """
    untyped: Any = operator  # torch declares no types of these methods
    if isinstance(operator, OpOverloadPacket):
        untyped = getattr(operator, untyped.overloads()[0])
    if not isinstance(untyped, OpOverload) or kernel_name(untyped) in _NO_SITES or "out" in kwargs:
        return None
    spec = kernel_spec(untyped, args, kwargs, registry)
    overwrites = str(untyped._schema.name).partition(".")[0].endswith("_")
    return spec if spec is None or spec.opaque or not overwrites else registry.resolve(spec, inplace=True)
