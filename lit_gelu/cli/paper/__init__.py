"""``lit-gelu paper``: run the GELU paper's experiments, and draw its tables and figures."""

import sys

import jsonargparse

from lit_gelu.cli.terminal import command_parser

HELP = "run the GELU paper's experiments, and draw its tables and figures"
DESCRIPTION = """\
The GELU paper's protocol: grids of activations, learning rates and seeds, medians, tables and figures.

sub-commands (lit-gelu paper SUB-COMMAND --help):
  list       the experiments, how many runs they are, and what the paper found
  run        make the runs; a run that was stopped goes on where it was
  table      medians and spread, beside the paper's numbers
  figures    the paper's figures, from the runs
"""
EXAMPLES = """\
examples:
  lit-gelu paper list                          what the paper's protocol consists of
  lit-gelu paper run --preset quick            a short version of all of it, in a quarter of an hour
  lit-gelu paper table --preset quick
  lit-gelu paper figures --preset quick
  lit-gelu paper run --preset full --only mnist --arms gelu elu
"""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser of ``lit-gelu paper`` without a sub-command.

    Returns:
        The parser.
    """
    return command_parser("paper", DESCRIPTION, EXAMPLES)


def run(arguments: jsonargparse.Namespace) -> int:  # noqa: ARG001 - it has none
    """Say what there is.

    Args:
        arguments: What was parsed.

    Returns:
        The exit code.
    """
    sys.stdout.write(build_parser().format_help())
    return 0
