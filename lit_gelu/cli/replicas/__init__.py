"""``lit-gelu replicas``: members out of the checkpoint of a group."""

import sys

import jsonargparse

from lit_gelu.cli.options import command_parser

DESCRIPTION = """\
Runs that were trained as one group (lit_gelu.replicas.ReplicaGroup) share a checkpoint. Members are taken out here.
"""
EXAMPLES = """\
examples:
  lit-gelu replicas extract group.ckpt                 the keys of its replicas
  lit-gelu replicas extract group.ckpt 3 -o gelu.ckpt
  lit-gelu export gelu.ckpt
"""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser of ``lit-gelu replicas`` without a sub-command."""
    return command_parser("replicas", EXAMPLES, DESCRIPTION)


def run(arguments: jsonargparse.Namespace) -> int:  # noqa: ARG001 - it has none
    """Say what there is."""
    sys.stdout.write(build_parser().format_help())
    return 0
