"""``lit-gelu activations list``: a table of the activations whose names match."""

import json

import jsonargparse

from lit_gelu import activations
from lit_gelu.cli.activations.tables import as_plain_data, overview, selected
from lit_gelu.cli.options import add_import, add_json, command_parser
from lit_gelu.cli.terminal import console_for_output, write_text

EXAMPLES = """\
examples:
  lit-gelu activations list
  lit-gelu activations list "*elu" "hard_*"
  lit-gelu activations list --json
"""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser."""
    parser = command_parser("activations list", EXAMPLES)
    add_import(parser)
    parser.add_argument("names", nargs="*", help="patterns over names, or specs; all by default")
    add_json(parser, beside_names=True)
    return parser


def run(arguments: jsonargparse.Namespace) -> int:
    """Run ``lit-gelu activations list``."""
    names = selected(arguments.names or ["*"])
    infos = [activations.info(name) for name in names]
    if arguments.json is not None:
        write_text(json.dumps([as_plain_data(info) for info in infos], indent=2), arguments.json)
    else:
        console_for_output().print(overview(names, infos))
    return 0
