"""``lit-gelu inspect``: say what an ONNX file is: opset, sizes, activations, how it was made, proved and tuned."""

from jsonargparse import ArgumentParser, Namespace

from lit_gelu.cli.options import add_json, command_parser
from lit_gelu.cli.terminal import console_for_output, write_text

EXAMPLES = """\
examples:
  lit-gelu inspect model.onnx
  lit-gelu inspect elsewhere.onnx         of another exporter: its activations are recognised by their formulas
  lit-gelu inspect model.onnx --json
"""
ARGUMENTS = {"path": "FILE"}


def build_parser() -> ArgumentParser:
    """Return the command's parser."""
    parser = command_parser("inspect", EXAMPLES)
    parser.add_argument("file", type=str, help="an ONNX file, of lit-gelu or of another exporter")
    add_json(parser)
    return parser


def run(arguments: Namespace) -> int:
    """Say it; return 0."""
    from lit_gelu.export.inspection import inspect_onnx

    found = inspect_onnx(arguments.file)
    if arguments.json != "-":
        console_for_output(soft_wrap=True, highlight=False, markup=False).print(str(found))
    if arguments.json is not None:
        write_text(found.to_json(), arguments.json)
    return 0
