"""``lit-gelu activations list``: a table of the activations whose names match."""

import json
import sys

import jsonargparse

from lit_gelu import activations
from lit_gelu.cli.activations.tables import as_plain_data, overview, selected
from lit_gelu.cli.options import add_import
from lit_gelu.cli.terminal import command_parser, console_for_output

HELP = "a table of the activations whose names match"
EXAMPLES = """\
examples:
  lit-gelu activations list
  lit-gelu activations list "*elu" "hard_*"
  lit-gelu activations list --json
"""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser.

    Returns:
        The parser.
    """
    parser = command_parser("activations list", HELP, EXAMPLES)
    add_import(parser)
    parser.add_argument("names", nargs="*", help="patterns over names, or specs; all by default")
    parser.add_argument("--json", action="store_true", help="print plain data instead of a table")
    return parser


def run(arguments: jsonargparse.Namespace) -> int:
    """Run ``lit-gelu activations list``.

    Args:
        arguments: What was parsed.

    Returns:
        The exit code.
    """
    names = selected(arguments.names or ["*"])
    infos = [activations.info(name) for name in names]
    if arguments.json:
        sys.stdout.write(json.dumps([as_plain_data(info) for info in infos], indent=2) + "\n")
    else:
        console_for_output().print(overview(names, infos))
    return 0
