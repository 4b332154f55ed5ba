"""``lit-gelu triton``: put an ONNX file into a model repository of Triton Inference Server."""

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from lit_gelu.cli.terminal import command_parser

HELP = "put an ONNX file into a model repository of Triton Inference Server"
EXAMPLES = """\
examples:
  lit-gelu triton model.onnx repository --device gpu
  lit-gelu triton model.onnx repository --device gpu --name digits --version 2
  lit-gelu triton model.onnx repository --device cpu --max_batch_size 64 --max_queue_delay_us 500 --warmup 1 64
  lit-gelu triton model.onnx repository --device gpu --version 2 --keep_config true     a config.pbtxt edited by hand
  tritonserver --model-repository=repository                                            then serves it
"""


def build_parser() -> ArgumentParser:
    """Return the command's parser.

    Returns:
        The parser.
    """
    parser = command_parser("triton", HELP, EXAMPLES)
    parser.add_argument("file", type=str, help="an ONNX file")
    parser.add_argument("repository", type=str, help="the repository's folder; it is made if it is not there")
    parser.add_argument("--device", type=str, required=True, help="where the server runs it: cpu or gpu")
    parser.add_argument("--name", type=str | None, default=None, help="the model's name; default: the file's")
    parser.add_argument("--version", type=int, default=1, help="the model's version, from 1 on")
    parser.add_argument(
        "--max_batch_size", type=int | None, default=None, help="default: 128 if the file has a batch, else 0, none"
    )
    parser.add_argument(
        "--preferred_batch_sizes", type=int, nargs="+", default=[], help="what the dynamic batcher tries to reach"
    )
    parser.add_argument("--max_queue_delay_us", type=int, default=0, help="how long it waits for more, microseconds")
    parser.add_argument("--instances", type=int, default=1, help="copies of the model that run at once")
    parser.add_argument("--warmup", type=int, nargs="+", default=[], help="batch sizes to run before the first request")
    parser.add_argument(
        "--tuning", type=bool, default=True, help="whether to take over what was tuned for this machine"
    )
    parser.add_argument(
        "--keep_config", type=bool, default=False, help="whether a config.pbtxt that is there stays as it is"
    )
    parser.add_argument("--overwrite", type=bool, default=False, help="whether to replace what is there")
    return parser


def run(arguments: Namespace) -> int:
    """Write the repository.

    Args:
        arguments: What `build_parser` parsed.

    Returns:
        0.
    """
    from lit_gelu.export.serving import write_triton_repository

    options = {name: value for name, value in vars(arguments).items() if name not in {"file", "repository"}}
    written = write_triton_repository(arguments.file, arguments.repository, **options)
    Console(soft_wrap=True, highlight=False, markup=False).print(str(written))
    return 0
