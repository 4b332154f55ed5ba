"""``lit-gelu completion``: print the script that completes this command in a shell."""

import argparse
import importlib
import sys
from collections.abc import Mapping
from typing import cast

from jsonargparse import ArgumentParser, Namespace, capture_parser

from lit_gelu.cli.commands import COMMANDS, FIT, summary
from lit_gelu.cli.options import command_parser
from lit_gelu.extras import need

EXAMPLES = """\
It takes a few seconds: write it into a file once, and again after an update.

examples:
  lit-gelu completion bash > ~/.local/share/bash-completion/completions/lit-gelu
  lit-gelu completion zsh > ~/.zfunc/_lit-gelu              in .zshrc: fpath+=~/.zfunc; autoload -Uz compinit; compinit
  lit-gelu completion tcsh > ~/.lit-gelu.tcsh               in .tcshrc: source ~/.lit-gelu.tcsh
"""
SHELLS = ("bash", "zsh", "tcsh")
_FILES = ("source", "file", "ckpt", "ckpt_path", "config")  # files, whose metavar does not say so


def build_parser() -> ArgumentParser:
    """Return the command's parser."""
    parser = command_parser("completion", EXAMPLES)
    parser.add_argument("shell", choices=SHELLS, help="which shell")
    return parser


def run(arguments: Namespace) -> int:
    """Print the script; return 0."""
    shtab = need("shtab", extra="completion", what="lit-gelu completion")
    sys.stdout.write(shtab.complete(root_parser(), arguments.shell) + "\n")
    return 0


def root_parser() -> argparse.ArgumentParser:
    """Return one parser with all commands and their options; it describes them, and is not for parsing."""
    root = argparse.ArgumentParser("lit-gelu")
    root.add_argument("-V", "--version", action="store_true", help="print the version")
    groups = {"": root.add_subparsers()}
    of_lightning = _parsers_of_lightning()
    for name, module in COMMANDS.items():
        options = of_lightning[name] if module == FIT else importlib.import_module(module).build_parser()
        for action in options._actions:  # of argparse, which offers no other way to ask
            _say_what_completes(action)
        parents = [options]
        if any(other.startswith(f"{name} ") for other in COMMANDS):
            before = argparse.ArgumentParser(add_help=False)  # sub-commands come before the command's own words
            groups[name] = before.add_subparsers()
            parents.insert(0, before)
        group, _, last = name.rpartition(" ")
        groups[group].add_parser(last, parents=parents, add_help=False, help=summary(name))
    return root


def _parsers_of_lightning() -> Mapping[str, argparse.ArgumentParser]:
    """Return the parsers of LightningCLI's sub-commands by name."""
    from lit_gelu.cli.fit import LitGeluCLI

    parser = capture_parser(LitGeluCLI, ["fit"])
    found = next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return cast("Mapping[str, argparse.ArgumentParser]", found)


def _say_what_completes(action: argparse.Action) -> None:
    """Tell shtab what the values of an option are, as far as its name and metavar say that."""
    import shtab

    shown = action.metavar if isinstance(action.metavar, str) else ""
    if shown.startswith("{"):
        action.choices = shown[1:-1].split(",")
    elif shown.startswith("FILE") or action.dest in _FILES:
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    elif shown == "FOLDER":
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
