"""The options of an export, checked before any work is done."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from lit_gelu.export.errors import ExportOptionError
from lit_gelu.export.lowering.kernels import DEFAULT_OPSET, DTYPES, TARGETS
from lit_gelu.export.lowering.opsets import checked_opset
from lit_gelu.export.lowering.policy import POLICIES

Approximate = Literal["as_trained", "none", "exact", "tanh", "sigmoid"]
LoweringOption = Literal["auto", "native", "primitives", "contrib"]
IoDtype = Literal["same", "fp32"]


@dataclass(frozen=True)
class ExportOptions:
    """What an export was asked for, in canonical form.

    Args:
        approximate: Which form every GELU takes: ``as_trained``, ``none`` (exact), ``tanh`` or ``sigmoid``; or a form
            by name pattern.
        target: For which runtime.
        dtype: ``fp32``, ``fp16`` or ``bf16``.
        policy: Accuracy before speed, or the reverse.
        lowering: Which recipes of the lowering table were asked for.
        opset: Version of the standard operators; ``None`` for the solver's.
        keep_fp32: What stays in float32 beside the policy's own list.
        io_dtype: Of inputs and outputs: ``same`` as the file's, or ``fp32``.
    """

    approximate: str | Mapping[str, str]
    target: str
    dtype: str
    policy: str
    lowering: str
    opset: int | None
    keep_fp32: tuple[str, ...] = ()
    io_dtype: str = "same"

    @property
    def traced_opset(self) -> int:
        """The opset to trace with."""
        return DEFAULT_OPSET if self.opset is None else self.opset

    @property
    def approximate_text(self) -> str:
        """The form of every GELU as a file records it: ``pattern=form`` by commas where it depends on the name."""
        if isinstance(self.approximate, str):
            return self.approximate
        return ", ".join(f"{pattern}={form}" for pattern, form in self.approximate.items())


def checked_options(
    approximate: str | Mapping[str, str],
    target: str,
    dtype: torch.dtype | str | None,
    policy: str,
    lowering: str,
    opset: int | None,
    *,
    keep_fp32: Sequence[str] = (),
    io_dtype: str = "same",
) -> ExportOptions:
    """Check the options of `export_onnx`.

    Args:
        approximate: See `export_onnx`.
        target: See `export_onnx`.
        dtype: See `export_onnx`.
        policy: See `export_onnx`.
        lowering: See `export_onnx`.
        opset: See `export_onnx`.
        keep_fp32: See `export_onnx`.
        io_dtype: See `export_onnx`.

    Returns:
        The options in canonical form.

    Raises:
        ExportOptionError: If a value does not exist, or two do not fit each other; near values and the whole list are
            in the message.

    Example:
        >>> checked_options("exact", "portable", None, "strict", "auto", None).approximate
        'none'
    """
    _require_known("target", target, TARGETS)
    _require_known("policy", policy, POLICIES)
    _require_known("lowering", lowering, get_args(LoweringOption))
    _require_known("io_dtype", io_dtype, get_args(IoDtype))
    if lowering == "contrib" and target == "tensorrt":
        raise ExportOptionError(
            "lowering='contrib' does not go with target='tensorrt', whose parser knows standard operators only. Use "
            "lowering='auto', or target='ort-cuda'."
        )
    if isinstance(keep_fp32, str):
        raise ExportOptionError(f"keep_fp32={keep_fp32!r} is one text. Accepted: a list, such as [{keep_fp32!r}].")
    name = _dtype(dtype)
    if name == "fp32" and (keep_fp32 or io_dtype != "same"):
        raise ExportOptionError(
            "keep_fp32= and io_dtype= are for dtype='fp16' and 'bf16'; in an fp32 file everything is float32. Leave "
            "them out."
        )
    return ExportOptions(
        _forms(approximate), target, name, policy, lowering, checked_opset(opset, target), tuple(keep_fp32), io_dtype
    )


def _forms(approximate: str | Mapping[str, str]) -> str | Mapping[str, str]:
    """Return the form of every GELU, or forms by name pattern, in canonical form."""
    if not isinstance(approximate, Mapping):
        _require_known("approximate", approximate, get_args(Approximate))
        return "none" if approximate == "exact" else approximate
    for pattern, form in approximate.items():
        _require_known(f"approximate[{pattern!r}]", form, get_args(Approximate))
    if not approximate:
        raise ExportOptionError("approximate={} names no site. Use 'as_trained', or {name pattern: form}.")
    return {pattern: "none" if form == "exact" else form for pattern, form in approximate.items()}


def _require_known(option: str, value: object, known: Iterable[str]) -> None:
    """Refuse a value that does not exist."""
    known = list(known)
    if value in known:
        return
    near = difflib.get_close_matches(str(value).lower(), known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ExportOptionError(f"Unknown {option}={value!r}.{hint} Accepted: {', '.join(map(repr, known))}.")


def _dtype(dtype: torch.dtype | str | None) -> str:
    """Return the dtype's name."""
    names = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", None: "fp32"}
    aliases = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
    name = aliases.get(dtype, dtype) if isinstance(dtype, str) else names.get(dtype, str(dtype))
    _require_known("dtype", name, DTYPES)
    return name
