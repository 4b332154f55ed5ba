"""What an export is asked for: one record, which `export_onnx` builds, a file keeps, and the command line offers."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal, Self, get_args

import numpy as np
import torch

from lit_gelu.export.errors import ExportOptionError
from lit_gelu.export.lowering.kernels import DEFAULT_OPSET, DTYPES, POLICIES, TARGETS, Target, checked_opset
from lit_gelu.export.sizes import require_readable

Approximate = Literal["as_trained", "none", "exact", "tanh", "sigmoid"]
LoweringOption = Literal["auto", "native", "primitives", "contrib"]
IoDtype = Literal["same", "fp32"]
Layout = Literal["nchw", "nhwc"]


def _option(default: Any, about: str, choices: Iterable[str] = ()) -> Any:
    """Return a field that says what `lit_gelu.cli.export` shows of an option."""
    return field(default=default, metadata={"about": about, "choices": tuple(choices)})


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What an export was asked for; `checked` gives it in canonical form. `export_onnx` says what each option means."""

    approximate: str | Mapping[str, str] = _option("as_trained", "form of every GELU", get_args(Approximate))
    lowering: str = _option("auto", "operators of the activations", get_args(LoweringOption))
    target: str = _option("portable", "the runtime it is for", TARGETS)
    dtype: str = _option("fp32", "of weights and activations", DTYPES)
    policy: str = _option("strict", "as accurate as PyTorch, or the fastest known", POLICIES)
    opset: int | None = _option(None, "version of the standard operators")
    keep_fp32: tuple[str, ...] = _option((), "operators, or patterns over names of modules, that stay in float32")
    io_dtype: str = _option("same", "of inputs and outputs of an fp16 or bf16 file", get_args(IoDtype))
    layout: str = _option("nchw", "order of a convolution's dimensions, for ort-cuda", get_args(Layout))
    softmax: bool = _option(False, "whether the file ends with a softmax")
    labels: tuple[str, ...] = _option((), "names of the classes, in their order")
    dynamic_shapes: tuple[Any, ...] | Mapping[str, Any] = _option(
        (), "open sizes: INPUT:AXIS=NAME, sequence, image-size"
    )

    @classmethod
    def all(cls) -> tuple[Field[Any], ...]:
        """Return the options, with a name, a default, what it is ``about`` and its ``choices`` each."""
        return fields(ExportOptions)

    @classmethod
    def checked(cls, **given: Any) -> Self:
        """Return options in canonical form; `ExportOptionError` if one does not exist, or two do not fit each other."""
        for option in cls.all():
            if option.metadata["choices"] and option.name in given and option.name not in {"approximate", "dtype"}:
                _require_known(option.name, given[option.name], option.metadata["choices"])
        asked = {**{option.name: option.default for option in cls.all()}, **given}
        asked["softmax"] = _truth("softmax", asked["softmax"])
        for name, what in (("keep_fp32", "operators or patterns over names"), ("labels", "one for each class")):
            asked[name] = _texts(name, asked[name], what)
        asked["approximate"] = _forms(asked["approximate"])
        asked["dtype"] = _dtype(asked["dtype"])
        asked["dynamic_shapes"] = require_readable(asked["dynamic_shapes"]) if asked["dynamic_shapes"] else ()
        asked["opset"] = checked_opset(asked["opset"], asked["target"])
        if asked["lowering"] == "contrib" and asked["target"] == "tensorrt":
            raise ExportOptionError(
                "lowering='contrib' does not go with target='tensorrt', whose parser knows standard operators only. "
                "Use lowering='auto', or target='ort-cuda'."
            )
        keep = asked["keep_fp32"]
        if asked["dtype"] == "fp32" and (keep or asked["io_dtype"] != "same"):
            raise ExportOptionError(
                "keep_fp32= and io_dtype= are for dtype='fp16' and 'bf16'; in an fp32 file everything is float32. "
                "Leave them out."
            )
        if asked["layout"] == "nhwc" and (asked["target"] != "ort-cuda" or asked["dtype"] == "bf16"):
            raise ExportOptionError(
                f"layout='nhwc' does not go with target={asked['target']!r} and dtype={asked['dtype']!r}: only "
                "onnxruntime's CUDA provider knows it, and has no bfloat16 convolution in it. Use target='ort-cuda' "
                "with dtype='fp32' or 'fp16', or leave layout out."
            )
        return cls(**asked)

    @property
    def destination(self) -> Target:
        """What decides which operators activations become."""
        return Target(self.target, self.dtype, self.policy)

    @property
    def traced_opset(self) -> int:
        """The opset to trace with."""
        return DEFAULT_OPSET if self.opset is None else self.opset

    @property
    def recorded(self) -> dict[str, Any]:
        """The options as a file records them: forms of GELU by name as ``pattern=form``, joined by commas."""
        values = {**vars(self), "dynamic_shapes": self.dynamic_shapes or {}}
        if not isinstance(self.approximate, str):
            values["approximate"] = ", ".join(f"{pattern}={form}" for pattern, form in self.approximate.items())
        return values


def _truth(option: str, value: object) -> bool:
    """Return a Boolean as Python's; a text such as ``"no"`` would be true."""
    if not isinstance(value, (bool, np.bool_)):
        raise ExportOptionError(f"{option}={value!r} is not accepted. Accepted: True, False.")
    return bool(value)


def _texts(option: str, value: object, what: str) -> tuple[str, ...]:
    """Return a list of texts as a tuple."""
    if isinstance(value, str):
        raise ExportOptionError(f"{option}={value!r} is one text. Give a list of texts, {what}, such as [{value!r}].")
    texts = tuple(value) if isinstance(value, Iterable) else (None,)
    if not all(isinstance(text, str) for text in texts):
        raise ExportOptionError(f"{option}={value!r} is not accepted. Give a list of texts, {what}.")
    return texts


def _forms(approximate: str | Mapping[str, str]) -> str | Mapping[str, str]:
    """Return the form of every GELU, or forms by name pattern, in canonical form."""
    if not isinstance(approximate, Mapping):
        _require_known("approximate", approximate, get_args(Approximate))
        return "none" if approximate == "exact" else approximate
    for pattern, form in approximate.items():
        if not isinstance(pattern, str):
            raise ExportOptionError(
                f"approximate={dict(approximate)!r} names a site by {pattern!r}. Accepted: {{name pattern: form}}, "
                "such as {'encoder.*': 'tanh'}."
            )
        _require_known(f"approximate[{pattern!r}]", form, get_args(Approximate))
    if not approximate:
        raise ExportOptionError("approximate={} names no site. Use 'as_trained', or {name pattern: form}.")
    return {pattern: "none" if form == "exact" else form for pattern, form in approximate.items()}


def _require_known(option: str, value: object, known: Iterable[str]) -> None:
    """Refuse a value that does not exist; near values and the whole list are in the message."""
    known = list(known)
    if isinstance(value, str) and value in known:
        return
    near = difflib.get_close_matches(str(value).lower(), known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ExportOptionError(f"Unknown {option}={value!r}.{hint} Accepted: {', '.join(map(repr, known))}.")


def _dtype(dtype: torch.dtype | str | None) -> str:
    """Return the dtype's name."""
    names = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", None: "fp32"}
    aliases = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
    named = isinstance(dtype, (torch.dtype, type(None)))  # what else is given may have no hash
    name = aliases.get(dtype, dtype) if isinstance(dtype, str) else names.get(dtype, dtype) if named else dtype
    _require_known("dtype", str(name) if named else name, DTYPES)
    return str(name)
