"""What an export is asked for: one record, which `export_onnx` builds, a file keeps, and the command line offers."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal, Self, get_args

import numpy as np
import torch

from lit_gelu.errors import ArgumentError
from lit_gelu.export.inputs import require_readable
from lit_gelu.export.lowering.kernels import DEFAULT_OPSET, DTYPES, POLICIES, TARGETS, Target, checked_opset

Approximate = Literal["as_trained", "none", "exact", "tanh", "sigmoid"]
_DTYPE_NAMES: Mapping[object, str] = {
    None: "fp32", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", "float32": "fp32",
    "float16": "fp16", "bfloat16": "bf16",
}  # fmt: skip


def _option(default: Any, about: str, choices: Iterable[str] = ()) -> Any:
    """Return a field that says what `lit_gelu.cli.export` shows of an option."""
    return field(default=default, metadata={"about": about, "choices": tuple(choices)})


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What an export was asked for; `checked` gives it in canonical form. `export_onnx` says what each option means."""

    approximate: str = _option("as_trained", "form of every GELU", get_args(Approximate))
    lowering: str = _option("auto", "operators of the activations", ("auto", "native", "primitives", "contrib"))
    target: str = _option("portable", "the runtime it is for", TARGETS)
    dtype: str = _option("fp32", "of weights and activations", DTYPES)
    policy: str = _option("strict", "as accurate as PyTorch, or the fastest known", POLICIES)
    opset: int | None = _option(None, "version of the standard operators")
    keep_fp32: tuple[str, ...] = _option((), "operators, or patterns over names of modules, that stay in float32")
    io_dtype: str = _option("same", "of inputs and outputs of an fp16 or bf16 file", ("same", "fp32"))
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
    def checked(cls, **values: Any) -> Self:
        """Return options in canonical form; `ArgumentError` if one does not exist, or two do not fit each other."""
        values = {option.name: values.get(option.name, option.default) for option in cls.all()}
        if isinstance(values["dtype"], (str, torch.dtype, type(None))):  # what else is given may have no hash
            values["dtype"] = _DTYPE_NAMES.get(values["dtype"], values["dtype"])
        for option in cls.all():
            if option.metadata["choices"]:
                _require_choice(option.name, values[option.name], option.metadata["choices"])
        if values["approximate"] == "exact":
            values["approximate"] = "none"
        for name in ("keep_fp32", "labels"):
            values[name] = _texts(name, values[name])
        if not isinstance(values["softmax"], (bool, np.bool_)):  # a text such as "no" would be true
            raise ArgumentError(f"softmax={values['softmax']!r} is not accepted. Accepted: True, False.")
        values["softmax"] = bool(values["softmax"])
        values["dynamic_shapes"] = require_readable(values["dynamic_shapes"] or ())
        values["opset"] = checked_opset(values["opset"], values["target"])
        if values["lowering"] == "contrib" and values["target"] == "tensorrt":
            raise ArgumentError(
                "lowering='contrib' does not go with target='tensorrt', whose parser knows standard operators only. "
                "Use lowering='auto', or target='ort-cuda'."
            )
        if values["dtype"] == "fp32" and (values["keep_fp32"] or values["io_dtype"] != "same"):
            raise ArgumentError(
                "keep_fp32= and io_dtype= are for dtype='fp16' and 'bf16'; in an fp32 file everything is float32. "
                "Leave them out."
            )
        return cls(**values)

    @property
    def destination(self) -> Target:
        """What decides which operators activations become."""
        return Target(self.target, self.dtype, self.policy)

    @property
    def traced_opset(self) -> int:
        """The opset to trace with."""
        return DEFAULT_OPSET if self.opset is None else self.opset


def _texts(option: str, value: object) -> tuple[str, ...]:
    texts = tuple(value) if isinstance(value, Iterable) else (None,)
    if isinstance(value, str) or not all(isinstance(text, str) for text in texts):
        raise ArgumentError(f"{option}={value!r} is not accepted. Give a list of texts.")
    return texts


def _require_choice(option: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a value that does not exist; near values and the whole list are in the message."""
    choices = list(choices)
    if isinstance(value, str) and value in choices:
        return
    near = difflib.get_close_matches(str(value).lower(), choices, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ArgumentError(f"Unknown {option}={value!r}.{hint} Accepted: {', '.join(map(repr, choices))}.")
