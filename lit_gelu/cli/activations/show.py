"""``lit-gelu activations show``: everything that is known of each activation."""

import json

import jsonargparse

from lit_gelu import activations
from lit_gelu.cli.activations.tables import as_plain_data, details, selected
from lit_gelu.cli.options import add_import, add_json, command_parser
from lit_gelu.cli.terminal import console_for_output, write_text

EXAMPLES = """\
examples:
  lit-gelu activations show gelu
  lit-gelu activations show "swish(beta=1.5)" hard_swish
  lit-gelu activations show "gelu*" --json
"""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser."""
    parser = command_parser("activations show", EXAMPLES)
    add_import(parser)
    parser.add_argument("names", nargs="+", help="specs, or patterns over names")
    add_json(parser, beside_names=True)
    return parser


def run(arguments: jsonargparse.Namespace) -> int:
    """Run ``lit-gelu activations show``."""
    infos = [activations.info(spec) for spec in selected(arguments.names)]
    if arguments.json is not None:
        write_text(json.dumps([as_plain_data(info) for info in infos], indent=2), arguments.json)
    else:
        console_for_output().print(*(details(info) for info in infos))
    return 0
