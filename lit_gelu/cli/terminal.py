"""How the commands look in a terminal: help texts, and no warnings that a user could not mend."""

import sys
import warnings

import jsonargparse
from rich.console import Console

_PIPE_WIDTH = 160


class ExamplesHelpFormatter(jsonargparse.DefaultHelpFormatter):
    r"""Keeps the line breaks of texts that have them, so that examples stay one a line.

    Example:
        >>> parser = jsonargparse.ArgumentParser(epilog="one\ntwo", formatter_class=ExamplesHelpFormatter)
        >>> parser.format_help().splitlines()[-2:]
        ['one', 'two']
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text.strip():
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)


def command_parser(command: str, description: str, examples: str) -> jsonargparse.ArgumentParser:
    r"""Return the parser of a command, without arguments so far.

    Args:
        command: The words after ``lit-gelu``.
        description: What it does.
        examples: What stands below its options in the help.

    Returns:
        The parser.

    Example:
        >>> command_parser("doctor", "say what is wrong", "example:\n  lit-gelu doctor").prog
        'lit-gelu doctor'
    """
    return jsonargparse.ArgumentParser(
        prog=f"lit-gelu {command}", description=description, epilog=examples, formatter_class=ExamplesHelpFormatter
    )


def console_for_output() -> Console:
    """Return a console on standard output; into a pipe or a file, tables are as wide as they need to be.

    Returns:
        The console.
    """
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def silence_known_warnings() -> None:
    """Turn off warnings about the versions of torch and Lightning working together: the user could not mend them."""
    # torch 2.15 deprecates a pytree name that lightning 2.6 uses.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"lightning\.pytorch\.utilities\._pytree")
