"""``lit-gelu export --int8 true``: a second file, in int8, calibrated and measured on a data module."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from lit_gelu.errors import LitGeluError

if TYPE_CHECKING:
    from torch import nn


_DEFAULTS: dict[str, Any] = {
    "calibration": "minmax",
    "calibration_samples": 512,
    "reduce_range": False,
    "float_layers": [],
    "max_difference": None,
}


class Int8ArgumentError(LitGeluError, ValueError):
    """Options of a file in int8 that do not go together."""


def add_int8_arguments(parser: ArgumentParser) -> None:
    """Add the options of files in int8.

    Args:
        parser: Of ``lit-gelu export``.
    """
    parser.add_argument(
        "--int8", type=bool, default=False, help="whether to write each file in int8 too: NAME-int8.onnx"
    )
    parser.add_argument(
        "--calibration",
        type=str,
        default="minmax",
        help="int8: how ranges are found: minmax, entropy, percentile",
    )
    parser.add_argument(
        "--calibration_samples",
        type=int,
        default=512,
        help="int8: rows of training data to calibrate on",
    )
    parser.add_argument(
        "--reduce_range", type=bool, default=False, help="int8: 7-bit weights, for runtimes that add in another order"
    )
    parser.add_argument(
        "--float_layers",
        type=str,
        nargs="+",
        default=[],
        help="int8: layers that stay in float32, such as output 'head.*'",
    )
    parser.add_argument(
        "--max_difference",
        type=float | None,
        default=None,
        help="int8: how much worse the error rate may be; given, costly layers stay in float32 for it; default: 0.01",
    )


def require_int8_arguments(arguments: Namespace) -> None:
    """Refuse options that do not go together, before any work is done.

    Args:
        arguments: What `build_parser` parsed.

    Raises:
        Int8ArgumentError: If int8 is wanted without data or of another dtype, or its options are given without it.
    """
    if arguments.int8 and arguments.data is None:
        raise Int8ArgumentError("--int8 is calibrated on data: name a data module, such as --data MNISTData.")
    if arguments.int8 and arguments.dtype not in {"fp32", "float32"}:
        raise Int8ArgumentError(f"--int8 files are made of float32 ones: leave out --dtype {arguments.dtype}.")
    given = [name for name, default in _DEFAULTS.items() if getattr(arguments, name) != default]
    if given and not arguments.int8:
        raise Int8ArgumentError(f"--{given[0]} is of --int8. Give --int8 true, or leave it out.")


def write_int8(
    arguments: Namespace, model: "nn.Module", path: Path, data: Any, preprocessing: "nn.Module | None", console: Console
) -> bool:
    """Write a file in int8 too, and compare it with PyTorch if that is asked for.

    Args:
        arguments: What the command's parser parsed.
        model: The model.
        path: Its float32 file.
        data: A data module.
        preprocessing: What is a part of the file.
        console: Where to say what was found.

    Returns:
        Whether it costs no more than it may.
    """
    from lit_gelu.export.proof import record_parity
    from lit_gelu.export.quantization import check_quantized, quantize_onnx
    from lit_gelu.export.quantization.acceptance import MAX_DIFFERENCE

    output = path.with_name(f"{path.stem}-int8.onnx")
    limit = arguments.max_difference
    result = quantize_onnx(
        path,
        output,
        data,
        method=arguments.calibration,
        samples=arguments.calibration_samples,
        reduce_range=arguments.reduce_range,
        float_layers=arguments.float_layers,
        max_difference=limit,
    )
    console.print(str(result))
    if not arguments.check:
        return True
    limit = MAX_DIFFERENCE if limit is None else limit
    report = check_quantized(model, output, data, max_difference=limit, strict=False, preprocessing=preprocessing)
    record_parity(output, report.proof())
    console.print(f"  {report.summary()}")
    return report.passed
