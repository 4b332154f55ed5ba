"""What an int8 file says of its quantisation: the entry ``lit_gelu_int8`` of its metadata."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import onnx

from lit_gelu.export.errors import ModelFileError
from lit_gelu.export.metadata import PREFIX
from lit_gelu.export.runtime.model_file import INT8_RECORD
from lit_gelu.files import parse_json

KEY = INT8_RECORD  # beside the entries lit_gelu.*, so that releases that know nothing of it still read those
DTYPE = "int8"


@dataclass(frozen=True)
class QuantizationRecord:
    """How a file was quantised.

    Args:
        target: For which runtime.
        method: How ranges were found.
        rows: Rows of data that it was calibrated on.
        seed: Of the order in which they were drawn.
        activations: ``uint8``, or ``int8`` with zero point 0.
        per_channel: Whether weights have a scale for each output channel.
        reduce_range: Whether weights take 7 bits.
        layers: The layers in int8.
        float_layers: The layers that were left in float32.
        difference: What the file differs by from the float file on the calibration data: the share of rows whose
            largest logit is another one, or the root of the noise's share of the output's energy.
        float_bytes: Size of the float file.
        onnxruntime: The version that quantised.
        bounded: Whether no input makes a sum of two products leave 16 bits, so that processors without VNNI compute
            what others do.
    """

    target: str
    method: str
    rows: int
    seed: int
    activations: str
    per_channel: bool
    reduce_range: bool
    layers: tuple[str, ...]
    float_layers: tuple[str, ...]
    difference: float
    float_bytes: int
    onnxruntime: str
    bounded: bool = False

    def __str__(self) -> str:
        """Return one line for a person."""
        layers = f"{len(self.layers)} {'layer' if len(self.layers) == 1 else 'layers'} in int8"
        kept = f", {len(self.float_layers)} in float32 ({', '.join(self.float_layers)})" if self.float_layers else ""
        weights = f"int8 weights{' of 7 bits' if self.reduce_range else ''}"
        weights += " with a scale a channel" if self.per_channel else ""
        weights += ", bounded for 16-bit sums" if self.bounded and not self.reduce_range else ""
        return (
            f"{layers}{kept}; {self.activations} activations, {weights}; {self.method} over {self.rows} rows, seed "
            f"{self.seed}; target {self.target}"
        )

    def to_text(self) -> str:
        """Return the record as a file stores it: JSON."""
        return json.dumps(asdict(self), sort_keys=True)


def read_record(properties: Mapping[str, str], file: str) -> QuantizationRecord:
    """Return what a file says of its quantisation."""
    try:
        plain = parse_json(properties[KEY])
        return QuantizationRecord(**{
            **plain,
            "layers": tuple(plain["layers"]),
            "float_layers": tuple(plain["float_layers"]),
        })
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{file} does not say how it was quantised ({KEY}). Write it with "
            "lit_gelu.export.quantization.quantize_onnx; a float file is compared by lit_gelu.export.check_parity."
        ) from error


def is_quantized(path: str | os.PathLike[str]) -> bool:
    """Return whether `quantize_onnx` wrote a file.

    Args:
        path: The file.

    Returns:
        Whether its metadata say so; not for what is missing, damaged or no model: whoever opens it says that.

    Example:
        >>> is_quantized("there is no such file.onnx")
        False
    """
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception:  # noqa: BLE001 - missing, unreadable, damaged, foreign: opening it says which
        return False
    return any(entry.key == f"{PREFIX}dtype" and entry.value == DTYPE for entry in model.metadata_props)
