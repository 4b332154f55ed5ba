"""``lit-gelu parity``: prove that an ONNX file computes what the PyTorch model computes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from lit_gelu.cli.options import add_input_shape, add_model, add_providers
from lit_gelu.cli.terminal import command_parser
from lit_gelu.errors import LitGeluError

if TYPE_CHECKING:
    from torch import nn

    from lit_gelu.export import ParityReport
    from lit_gelu.export.quantization import QuantizationReport

_FORMATS = {"json": "JSON", "markdown": "Markdown", "html": "a page with plots"}

HELP = "prove that an ONNX file computes what the PyTorch model computes"
EXAMPLES = """\
exit code: 0 if every comparison passed, 1 if one failed, 2 for a mistake in the arguments

examples:
  lit-gelu parity model.onnx --ckpt last.ckpt
  lit-gelu parity model.onnx --ckpt last.ckpt --data DigitsData --json parity.json
  lit-gelu parity model.onnx --ckpt last.ckpt --data MNISTData --data_root data --html parity.html --markdown parity.md
  lit-gelu parity raw.onnx --ckpt last.ckpt --data MNISTData     its preprocessing too, if the file takes raw pixels
  lit-gelu parity model.onnx --ckpt last.ckpt --model my_module.MyNet --input_shape 3,32,32
  lit-gelu parity model.onnx --ckpt last.ckpt --providers CPUExecutionProvider
  lit-gelu parity model.onnx --ckpt last.ckpt --session_config optimization.enable_gelu_approximation=1
  lit-gelu parity model-int8.onnx --ckpt last.ckpt --data MNISTData --max_difference 0.002 --min_top1 0.99
"""


class SessionConfigError(LitGeluError, ValueError):
    """A word of ``--session_config`` that is no entry."""


class Int8ArgumentError(LitGeluError, ValueError):
    """An option that does not go with a file in int8, or with one that is not."""


def build_parser() -> ArgumentParser:
    """Return the command's parser.

    Returns:
        The parser.
    """
    parser = command_parser("parity", HELP, EXAMPLES)
    parser.add_argument("file", type=str, help="an ONNX file that lit-gelu wrote")
    parser.add_argument(
        "--ckpt", type=str, required=True, help="the Lightning checkpoint that it was exported from, or a class"
    )
    add_model(parser)
    add_input_shape(parser)
    parser.add_argument("--data", type=str | None, default=None, help="a data module, such as DigitsData or MNISTData")
    parser.add_argument("--data_root", type=str | None, default=None, help="the data module's folder")
    parser.add_argument(
        "--tolerance", type=float, default=1e-5, help="what float32 arithmetic may cost, in units of the largest output"
    )
    add_providers(parser)
    parser.add_argument(
        "--session_config",
        type=str,
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="configuration entries of onnxruntime's session that the file will be run with",
    )
    parser.add_argument(
        "--max_difference",
        type=float | None,
        default=None,
        help="int8 files: how much worse the error rate may be; default: 0.01",
    )
    parser.add_argument(
        "--min_top1", type=float | None, default=None, help="int8 files: least share of rows with the same class"
    )
    for name, what in _FORMATS.items():
        parser.add_argument(f"--{name}", type=str | None, default=None, help=f"where to write the report as {what}")
    return parser


def run(arguments: Namespace) -> int:
    """Compare.

    Args:
        arguments: What `build_parser` parsed.

    Returns:
        0 if the file computes what the model computes, else 1.
    """
    from lit_gelu.cli.loading import load_data, load_model
    from lit_gelu.export import check_parity
    from lit_gelu.export.quantization import is_quantized
    from lit_gelu.files import write_atomically

    int8 = is_quantized(arguments.file)
    _require_kind(arguments, int8=int8)
    model = load_model(arguments.ckpt, arguments.model)
    data = None if arguments.data is None else load_data(arguments.data, arguments.data_root)
    report: ParityReport | QuantizationReport = (
        _check_int8(model, arguments, data)
        if int8
        else check_parity(
            model,
            arguments.file,
            data,
            _sample(arguments, model, data),
            tolerance=arguments.tolerance,
            providers=arguments.providers,
            session_config=_entries(arguments.session_config),
            strict=False,
        )
    )
    Console(highlight=False).print(report)
    for name in _FORMATS:
        path = getattr(arguments, name)
        if path is not None:
            with write_atomically(path) as temporary:
                temporary.write_text(getattr(report, f"to_{name}")().rstrip() + "\n", encoding="utf-8")
    return 0 if report.passed else 1


def _sample(arguments: Namespace, model: "nn.Module", data: Any) -> Any:
    """Return what to call the model with, if it does not say it itself."""
    from lit_gelu.cli.input_sample import input_sample
    from lit_gelu.export import OnnxPredictor

    if data is not None and not arguments.input_shape and getattr(model, "example_input_array", None) is None:
        file = OnnxPredictor(arguments.file, arguments.providers)
        if file.metadata.get("lit_gelu.preprocessing"):
            return None  # raw pixels, which the batches are not
    return input_sample(arguments.input_shape, model, data)


def _require_kind(arguments: Namespace, *, int8: bool) -> None:
    """Refuse options that the file has no use for."""
    wrong = ("html", "session_config") if int8 else ("max_difference", "min_top1")
    given = [name for name in wrong if getattr(arguments, name) not in (None, [])]
    if given:
        kind = (
            "in int8, for which it does not exist: --json and --markdown do" if int8 else "not in int8: see --tolerance"
        )
        raise Int8ArgumentError(f"--{given[0]} was given, and {arguments.file!r} is {kind}.")


def _check_int8(model: "nn.Module", arguments: Namespace, data: Any) -> "QuantizationReport":
    """Compare a file in int8, by what it costs the task."""
    from lit_gelu.export.quantization import check_quantized
    from lit_gelu.export.quantization.acceptance import MAX_DIFFERENCE

    limit = MAX_DIFFERENCE if arguments.max_difference is None else arguments.max_difference
    return check_quantized(
        model,
        arguments.file,
        data,
        max_difference=limit,
        min_top1=arguments.min_top1,
        providers=arguments.providers,
        strict=False,
    )


def _entries(words: Sequence[str]) -> dict[str, str]:
    """Take ``key=value`` apart."""
    pairs = [word.partition("=") for word in words]
    wrong = [key for key, equals, _ in pairs if not equals or not key]
    if wrong:
        raise SessionConfigError(
            f"--session_config {wrong[0]!r} is no entry. Give key=value, such as "
            "optimization.enable_gelu_approximation=1."
        )
    return {key: value for key, _, value in pairs}
