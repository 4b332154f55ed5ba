"""``lit-gelu triton``: put an ONNX file into a model repository of Triton Inference Server."""

from jsonargparse import ArgumentParser, Namespace

from lit_gelu.cli.options import add_flag, command_parser
from lit_gelu.cli.terminal import console_for_output

EXAMPLES = """\
examples:
  lit-gelu triton model.onnx repository --device gpu
  lit-gelu triton model.onnx repository --device gpu --name digits --version 2
  lit-gelu triton model.onnx repository --device cpu --max-batch-size 64 --max-queue-delay-us 500 --warmup 1 64
  tritonserver --model-repository=repository                                       then serves it
"""


def build_parser() -> ArgumentParser:
    """Return the command's parser."""
    parser = command_parser("triton", EXAMPLES)
    parser.add_argument("file", type=str, help="an ONNX file")
    parser.add_argument("repository", type=str, help="the repository's folder; it is made if it is not there")
    parser.add_argument("--device", choices=("cpu", "gpu"), required=True, help="where the server runs it")
    parser.add_argument("--name", type=str | None, default=None, help="the model's name; default: the file's")
    parser.add_argument("--version", type=int, default=1, help="the model's version, from 1 on")
    parser.add_argument(
        "--max-batch-size", type=int | None, default=None, help="in rows; default: 128 if the file has a batch, else 0"
    )
    parser.add_argument("--max-queue-delay-us", type=int, default=0, help="how long it waits for more, microseconds")
    parser.add_argument("--instances", type=int, default=1, help="copies of the model that run at once")
    parser.add_argument("--warmup", type=int, nargs="+", default=[], metavar="ROWS", help="batch sizes to run first")
    add_flag(parser, "--tuning", "take over what was tuned for this machine", default=True)
    add_flag(parser, "--overwrite", "replace a version and a configuration that are there")
    return parser


def run(arguments: Namespace) -> int:
    """Write the repository; return 0."""
    from lit_gelu.export.serving import write_triton_repository

    options = {name: value for name, value in vars(arguments).items() if name not in {"file", "repository"}}
    written = write_triton_repository(arguments.file, arguments.repository, **options)
    console_for_output(soft_wrap=True, highlight=False, markup=False).print(str(written))
    return 0
