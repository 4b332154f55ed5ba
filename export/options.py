"""The options of an export, checked before any work is done."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from lit_gelu.errors import NotAvailableYetError
from lit_gelu.export.errors import ExportOptionError
from lit_gelu.export.lowering_table import Lowering

Approximate = Literal["as_trained", "none", "exact", "tanh", "sigmoid"]
Target = Literal["portable", "ort-cpu", "ort-cuda", "tensorrt"]
Policy = Literal["strict", "fast"]
LoweringOption = Literal["auto", "native", "primitives", "contrib"]

OPSET = 20  # the first with a Gelu operator, and the last that every common runtime reads


@dataclass(frozen=True)
class ExportOptions:
    """What an export was asked for, in canonical form.

    Args:
        approximate: Which form every GELU takes: ``as_trained``, ``none`` (exact), ``tanh`` or ``sigmoid``.
        target: For which runtime.
        dtype: ``fp32``.
        policy: Accuracy before speed, or the reverse.
        lowering: Which recipes of the lowering table were asked for.
        opset: Version of the standard operators.
    """

    approximate: str
    target: str
    dtype: str
    policy: str
    lowering: str
    opset: int

    @property
    def recipes(self) -> Lowering:
        """The lowering that is applied: ``auto`` is ``native`` for a portable file."""
        return "native" if self.lowering == "auto" else self.lowering  # type: ignore[return-value]


def checked_options(
    approximate: str, target: str, dtype: torch.dtype | str | None, policy: str, lowering: str, opset: int | None
) -> ExportOptions:
    """Check the options of `export_onnx`.

    Args:
        approximate: See `export_onnx`.
        target: See `export_onnx`.
        dtype: See `export_onnx`.
        policy: See `export_onnx`.
        lowering: See `export_onnx`.
        opset: See `export_onnx`.

    Returns:
        The options in canonical form.

    Raises:
        ExportOptionError: If a value does not exist; near values and the whole list are in the message.
        NotAvailableYetError: If a value exists, but not in this release.

    Example:
        >>> checked_options("exact", "portable", None, "strict", "auto", None).approximate
        'none'
    """
    _require_known("approximate", approximate, get_args(Approximate))
    _require_known("target", target, get_args(Target))
    _require_known("policy", policy, get_args(Policy))
    _require_known("lowering", lowering, get_args(LoweringOption))
    if target != "portable":
        raise NotAvailableYetError(f"not available yet: target={target!r}. Use target='portable'.")
    if policy != "strict":
        raise NotAvailableYetError(f"not available yet: policy={policy!r}. Use policy='strict'.")
    return ExportOptions(
        "none" if approximate == "exact" else approximate, target, _dtype(dtype), policy, lowering, _opset(opset)
    )


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
    _require_known("dtype", name, ["fp32", "fp16", "bf16"])
    if name != "fp32":
        raise NotAvailableYetError(f"not available yet: dtype={name!r}. Use dtype='fp32'.")
    return name


def _opset(opset: int | None) -> int:
    """Return the opset."""
    if opset is None or (opset == OPSET and not isinstance(opset, bool)):
        return OPSET
    if not isinstance(opset, int) or isinstance(opset, bool) or opset < 1:
        raise ExportOptionError(f"opset={opset!r} is no operator-set version. Accepted: {OPSET}.")
    raise NotAvailableYetError(f"not available yet: opset={opset}. Use opset={OPSET}.")
