"""``lit-gelu replicas extract``: take a member out of a group's checkpoint, as a checkpoint of its own."""

import sys
from pathlib import Path

import jsonargparse

from lit_gelu.cli.options import command_parser
from lit_gelu.files import write_atomically

DESCRIPTION = """\
Take a member out of a group's checkpoint, as a checkpoint of its own, or list the members.

The file that it writes is that of a single model: lit-gelu export, lit-gelu test and load_from_checkpoint take it, and
with the callback ExactResume its run goes on alone as it would have in the group.
"""
EXAMPLES = """\
examples:
  lit-gelu replicas extract group.ckpt                             number and key of every replica
  lit-gelu replicas extract group.ckpt 3                           group-KEY.ckpt, beside it
  lit-gelu replicas extract group.ckpt activation=gelu,seed=0 -o gelu.ckpt
"""


def build_parser() -> jsonargparse.ArgumentParser:
    """Return the parser."""
    parser = command_parser("replicas extract", EXAMPLES, DESCRIPTION)
    parser.add_argument("file", metavar="FILE", help="a checkpoint that a Trainer of a ReplicaGroup saved")
    parser.add_argument(
        "which", metavar="KEY", nargs="?", type=str | None, default=None, help="the replica's key or number"
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=str | None, default=None, help="the file to write")
    return parser


def run(arguments: jsonargparse.Namespace) -> int:
    """Run ``lit-gelu replicas extract``."""
    import torch

    from lit_gelu.callbacks.checkpoint_file import read_checkpoint
    from lit_gelu.replicas.stored.extraction import extracted
    from lit_gelu.replicas.stored.stored_group import StoredGroup

    source = Path(arguments.file)
    checkpoint = read_checkpoint(source)
    if arguments.which is None:
        record = StoredGroup.read(checkpoint)
        for number, (key, is_active) in enumerate(zip(record.keys, record.active, strict=True)):
            sys.stdout.write(f"{number:>3}  {key}{'' if is_active else '  (inactive)'}\n")
        return 0
    key, member = extracted(checkpoint, arguments.which)
    path = source.with_name(f"{source.stem}-{key}.ckpt") if arguments.output is None else Path(arguments.output)
    with write_atomically(path) as temporary:
        torch.save(member, temporary)
    sys.stdout.write(f"{path}\n")
    return 0
