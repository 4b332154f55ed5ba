"""``lit-gelu parity``: does an ONNX file compute what the PyTorch model computes?"""

from collections.abc import Sequence

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from lit_gelu.cli.terminal import ExamplesHelpFormatter
from lit_gelu.errors import LitGeluError

_FORMATS = {"json": "JSON", "markdown": "Markdown", "html": "a page with plots"}

HELP = "prove that an ONNX file computes what the PyTorch model computes"
EXAMPLES = """\
exit code: 0 if every comparison passed, 1 if one failed, 2 for a mistake in the arguments

examples:
  lit-gelu parity model.onnx --ckpt last.ckpt
  lit-gelu parity model.onnx --ckpt last.ckpt --data DigitsData --json parity.json
  lit-gelu parity model.onnx --ckpt last.ckpt --data MNISTData --data_root data --html parity.html --markdown parity.md
  lit-gelu parity raw.onnx --ckpt last.ckpt --data MNISTData     its preprocessing too, if the file takes raw pixels
  lit-gelu parity model.onnx --ckpt last.ckpt --model my_package.MyModule --providers CPUExecutionProvider
  lit-gelu parity model.onnx --ckpt last.ckpt --session_config optimization.enable_gelu_approximation=1
"""


class SessionConfigError(LitGeluError, ValueError):
    """A word of ``--session_config`` that is no entry."""


def build_parser() -> ArgumentParser:
    """Return the command's parser.

    Returns:
        The parser.
    """
    parser = ArgumentParser(
        prog="lit-gelu parity", description=HELP, epilog=EXAMPLES, formatter_class=ExamplesHelpFormatter
    )
    parser.add_argument("file", type=str, help="an ONNX file that lit-gelu wrote")
    parser.add_argument(
        "--ckpt", type=str, required=True, help="the Lightning checkpoint that it was exported from, or a class"
    )
    parser.add_argument(
        "--model", type=str | None, default=None, help="the model's class, if the checkpoint does not record it"
    )
    parser.add_argument("--data", type=str | None, default=None, help="a data module, such as DigitsData or MNISTData")
    parser.add_argument("--data_root", type=str | None, default=None, help="the data module's folder")
    parser.add_argument(
        "--tolerance", type=float, default=1e-5, help="what float32 arithmetic may cost, in units of the largest output"
    )
    parser.add_argument(
        "--providers",
        type=str,
        nargs="+",
        default=None,
        help="onnxruntime's execution providers; default: CUDA, or the CPU",
    )
    parser.add_argument(
        "--session_config",
        type=str,
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="configuration entries of onnxruntime's session that the file will be run with",
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
    from lit_gelu.files import write_atomically

    model = load_model(arguments.ckpt, arguments.model)
    data = None if arguments.data is None else load_data(arguments.data, arguments.data_root)
    report = check_parity(
        model,
        arguments.file,
        data,
        tolerance=arguments.tolerance,
        providers=arguments.providers,
        session_config=_entries(arguments.session_config),
        strict=False,
    )
    Console(highlight=False).print(report)
    for name in _FORMATS:
        path = getattr(arguments, name)
        if path is not None:
            with write_atomically(path) as temporary:
                temporary.write_text(getattr(report, f"to_{name}")().rstrip() + "\n", encoding="utf-8")
    return 0 if report.passed else 1


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
