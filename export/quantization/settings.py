"""How a file is quantised: options, checked before any work is done, and what onnxruntime's quantizer is told."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnxruntime.quantization import CalibrationMethod, QuantType

from lit_gelu.export.errors import ExportOptionError
from lit_gelu.export.lowering.kernels import TARGETS
from lit_gelu.numbers_given import is_count, is_number

METHODS: Mapping[str, CalibrationMethod] = {
    "minmax": CalibrationMethod.MinMax,
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
}
"""How the range of a value is found: the whole range, the one with the least information lost, or 99.999 % of it."""

SYMMETRIC_TARGETS = frozenset({"ort-cuda", "tensorrt"})
"""Runtimes whose int8 is symmetric about 0, of activations too; the others take unsigned activations."""


def _is_list_of_texts(value: object) -> bool:
    texts = value if isinstance(value, Iterable) and not isinstance(value, str) else [None]
    return all(isinstance(text, str) for text in texts)


@dataclass(frozen=True)
class QuantizationSettings:
    """What a quantisation was asked for, in canonical form."""

    # A value x is stored as q = clip(round(x / s) + z) and read as s (q - z). Weights are int8 with z = 0 and one s a
    # channel; activations have one s and z each: uint8, or int8 with z = 0. Biases are int32 with the product of both
    # scales.

    target: str  # for which runtime, as `lit_gelu.export.export_onnx` takes it
    method: str  # how ranges of activations are found: a key of `METHODS`
    samples: int  # rows of data to calibrate on
    seed: int  # of the order in which the data are drawn
    per_channel: bool = True  # whether weights have a scale for each output channel, or one for all
    reduce_range: bool = False  # whether weights take 7 bits
    float_layers: Sequence[str] = ()  # patterns over names of layers and activation sites that stay in float32
    # What the file may differ by from the float file on the calibration data before layers are left in float; None:
    # whatever comes out.
    max_difference: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is not accepted."""
        for option, value, known in (("target", self.target, TARGETS), ("method", self.method, METHODS)):
            if not isinstance(value, str) or value not in known:
                near = difflib.get_close_matches(str(value).lower(), list(known), n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise ExportOptionError(f"Unknown {option}={value!r}.{hint} Accepted: {', '.join(map(repr, known))}.")
        if not is_count(self.samples, 1):
            raise ExportOptionError(
                f"samples={self.samples!r} is not accepted: give the number of rows to calibrate on, such as 512."
            )
        if not is_count(self.seed, -(2**63)):  # the smallest that torch takes
            raise ExportOptionError(f"seed={self.seed!r} is not accepted: give a whole number.")
        for option, truth in (("per_channel", self.per_channel), ("reduce_range", self.reduce_range)):
            if not isinstance(truth, (bool, np.bool_)):
                raise ExportOptionError(f"{option}={truth!r} is not accepted. Accepted: True, False.")
        if not _is_list_of_texts(self.float_layers):
            raise ExportOptionError(
                f"float_layers={self.float_layers!r} is not accepted: give a list of patterns, such as ['head']."
            )
        if self.max_difference is not None and not (is_number(self.max_difference) and 0 <= self.max_difference <= 1):
            raise ExportOptionError(
                f"max_difference={self.max_difference!r} is not accepted: give a share from 0 to 1, such as 0.01, or "
                "None."
            )
        object.__setattr__(self, "float_layers", tuple(self.float_layers))

    @property
    def symmetric(self) -> bool:
        """Whether activations are int8 with zero point 0; else they are uint8."""
        return self.target in SYMMETRIC_TARGETS

    @property
    def bounded(self) -> bool:
        """Whether weights take ranges in which 16-bit sums hold; not for TensorRT, whose sums have 32 bits."""
        return self.target != "tensorrt"

    @property
    def activation_type(self) -> QuantType:
        """The type of activations."""
        return QuantType.QInt8 if self.symmetric else QuantType.QUInt8

    def quantizer_options(self) -> dict[str, Any]:
        """Return the ``extra_options`` of onnxruntime's quantizer."""
        # Results of matrix products stay in float32: onnxruntime's int8 kernels give that at no cost, and neither an
        # activation's input nor logits, whose ties would change classes, lose bits. Results of convolutions on the CPU
        # do not: its int8 convolution gives int8 only. TensorRT wants no int8 results and no int32 biases.
        outputs = ["Gemm", "MatMul"]
        if self.symmetric:
            outputs += ["Conv", "ConvTranspose"]
        return {
            "ActivationSymmetric": self.symmetric,
            "WeightSymmetric": True,
            "QuantizeBias": self.target != "tensorrt",
            "OpTypesToExcludeOutputQuantization": outputs,
        }
