"""``lit-gelu parity``: prove that an ONNX file computes what the PyTorch model computes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from lit_gelu.cli.options import add_data, add_input_shape, add_json, add_model, add_providers, command_parser
from lit_gelu.cli.terminal import console_for_output, write_text
from lit_gelu.errors import LitGeluError

if TYPE_CHECKING:
    from torch import nn

    from lit_gelu.export.quantization import QuantizationReport

EXAMPLES = """\
exit code: 0 if every comparison passed, 1 if one failed, 2 for a mistake in the arguments

examples:
  lit-gelu parity model.onnx --ckpt last.ckpt
  lit-gelu parity model.onnx --ckpt last.ckpt --data DigitsData --json parity.json
  lit-gelu parity model.onnx --ckpt last.ckpt --data MNISTData --data-root data --html parity.html --markdown parity.md
  lit-gelu parity raw.onnx --ckpt last.ckpt --data MNISTData     its preprocessing too, if the file takes raw pixels
  lit-gelu parity model.onnx --ckpt last.ckpt --model my_module.MyNet --input-shape 3,32,32
  lit-gelu parity model.onnx --ckpt last.ckpt --providers CPUExecutionProvider
  lit-gelu parity model.onnx --ckpt last.ckpt --session-config optimization.enable_gelu_approximation=1
  lit-gelu parity model-int8.onnx --ckpt last.ckpt --data MNISTData --max-difference 0.002 --min-top1 0.99
"""
ARGUMENTS = {"input_sample": "--input-shape", "path": "FILE"}


class SessionConfigError(LitGeluError, ValueError):
    """A word of ``--session-config`` that is no entry."""


class UnfitOptionError(LitGeluError, ValueError):
    """An option that does not go with a file in int8, or with one that is not."""


def build_parser() -> ArgumentParser:
    """Return the command's parser."""
    parser = command_parser("parity", EXAMPLES)
    parser.add_argument("file", type=str, help="an ONNX file that lit-gelu wrote")
    parser.add_argument(
        "--ckpt",
        type=str,
        required=True,
        help="the Lightning checkpoint that it was exported from, or a class that always has the same weights",
    )
    add_model(parser)
    add_input_shape(parser)
    add_data(parser, "such as DigitsData or MNISTData, whose test data are compared too")
    parser.add_argument(
        "--tolerance", type=float, default=1e-5, help="what float32 arithmetic may cost, in units of the largest output"
    )
    add_providers(parser)
    parser.add_argument(
        "--session-config",
        type=str,
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="configuration entries of onnxruntime's session that the file will be run with",
    )
    parser.add_argument(
        "--max-difference",
        type=float | None,
        default=None,
        help="int8 files: how much worse the error rate may be; default: 0.01",
    )
    parser.add_argument(
        "--min-top1", type=float | None, default=None, help="int8 files: least share of rows with the same class"
    )
    add_json(parser)
    for name, what in {"markdown": "Markdown", "html": "a page"}.items():
        parser.add_argument(
            f"--{name}", type=str | None, default=None, metavar="FILE", help=f"where to write the report as {what}"
        )
    return parser


def run(arguments: Namespace) -> int:
    """Compare; return 0 if the file computes what the model computes, else 1."""
    from lit_gelu.cli.input_sample import sample_for
    from lit_gelu.cli.loading import load_data, load_model, require_same_weights
    from lit_gelu.export import check_parity
    from lit_gelu.export.quantization import is_quantized

    int8 = is_quantized(arguments.file)
    _require_kind(arguments, int8=int8)
    data = None if arguments.data is None else load_data(arguments.data, arguments.data_root)
    model = load_model(arguments.ckpt, arguments.model, sample_for(arguments.input_shape, data))
    require_same_weights(arguments.ckpt, model, arguments.file)
    if int8:
        report: Any = _check_int8(model, arguments, data)
    else:
        report = check_parity(
            model,
            arguments.file,
            data,
            _sample(arguments, model, data),
            tolerance=arguments.tolerance,
            providers=arguments.providers,
            session_config=_entries(arguments.session_config),
            strict=False,
        )
    if arguments.json != "-":
        console_for_output(highlight=False).print(report)
    for name in ("json", "markdown", "html"):
        if arguments[name] is not None:
            write_text(getattr(report, f"to_{name}")(), arguments[name])
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
    if arguments.data_root is not None and arguments.data is None:
        raise UnfitOptionError("--data-root is the folder of --data's files; give --data too.")
    wrong = ("html", "session_config") if int8 else ("max_difference", "min_top1")
    given = [name for name in wrong if arguments[name] not in (None, [])]
    if given:
        kind = (
            "in int8, for which it does not exist: --json and --markdown do" if int8 else "not in int8: see --tolerance"
        )
        raise UnfitOptionError(f"--{given[0].replace('_', '-')} was given, and {arguments.file!r} is {kind}.")


def _check_int8(model: "nn.Module", arguments: Namespace, data: Any) -> "QuantizationReport":
    """Compare a file in int8, by what it costs the task."""
    from lit_gelu.export.quantization import check_quantized
    from lit_gelu.export.quantization.acceptance import MAX_DIFFERENCE

    limit = MAX_DIFFERENCE if arguments.max_difference is None else arguments.max_difference
    return check_quantized(
        model,
        arguments.file,
        data,
        _sample(arguments, model, data),
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
            f"--session-config {wrong[0]!r} is no entry. Give key=value, such as "
            "optimization.enable_gelu_approximation=1."
        )
    return {key: value for key, _, value in pairs}
