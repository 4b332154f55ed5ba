"""``lit-gelu paper``: run the GELU paper's experiments, and draw its tables and figures."""

import sys

import jsonargparse

from lit_gelu.cli.options import command_parser

DESCRIPTION = """\
The GELU paper's protocol: grids of activations, learning rates and seeds, medians, tables and figures.
"""
EXAMPLES = """\
examples:
  lit-gelu paper list                          what the paper's protocol consists of
  lit-gelu paper run --preset quick            a short version of all of it, in a quarter of an hour
  lit-gelu paper table --preset quick
  lit-gelu paper figures --preset quick
  lit-gelu paper run --preset full --only mnist --arms gelu elu
  lit-gelu paper merge machine_a machine_b --results all
"""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser of ``lit-gelu paper`` without a sub-command."""
    return command_parser("paper", EXAMPLES, DESCRIPTION)


def run(arguments: jsonargparse.Namespace) -> int:  # noqa: ARG001 - it has none
    """Say what there is."""
    sys.stdout.write(build_parser().format_help())
    return 0
