"""The command ``lit-gelu``: finds the sub-command and turns a user's mistake into a message and an exit code.

Nothing heavy is imported here: ``lit-gelu --help`` answers at once, and ``lit-gelu activations`` needs no Lightning.
"""

import difflib
import gc
import importlib
import os
import sys
from collections.abc import Sequence

from lit_gelu.errors import ArgumentError, LitGeluError

EXIT_FAILURE = 1
EXIT_MISTAKE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it

EXAMPLES = """\
examples:
  lit-gelu fit                                         train MNISTClassifier with GELU (tanh form) on bundled digits
  lit-gelu fit --config examples/mnist_gelu.yaml       train as a configuration file says
  lit-gelu fit --model.activation "elu(alpha=0.5)" --trainer.max_epochs 5
  lit-gelu test --ckpt_path runs/digits_gelu/version_0/checkpoints/last.ckpt
  lit-gelu activations
  lit-gelu COMMAND --help                              options and examples of one command
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``lit-gelu`` and return its exit code: 1 for a failed check, 2 for a mistake that the user can mend."""
    from lit_gelu.cli.commands import current_folder_on_path

    name, *arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        with current_folder_on_path():
            code = run(name, arguments)
        sys.stdout.flush()  # a closed pipe shows here, and not at exit
    except BrokenPipeError:
        # Whoever read the output (`lit-gelu activations | head`) has seen enough; Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except (LitGeluError, OSError) as error:
        sys.stderr.write(f"lit-gelu {name}: {error}\n")
        return EXIT_MISTAKE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as error:
        # Lightning catches Ctrl-C itself to end a run in order, and then calls sys.exit(1) in its handler.
        if isinstance(error.__context__, KeyboardInterrupt):
            return EXIT_INTERRUPTED
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        sys.stderr.write(f"{error.code}\n")
        return EXIT_FAILURE
    return code


def require_files(words: Sequence[str]) -> None:
    """Refuse files that are not there before torch and Lightning are imported, which takes seconds."""
    for before, word in zip(["", *words], words, strict=False):
        option, equals, value = word.partition("=")
        option, path = (option, value) if equals else (before, word)
        is_read = option in {"", "--config", "--ckpt", "--ckpt_path"} and "://" not in path
        if is_read and path.endswith((".ckpt", ".onnx", ".yaml", ".yml")) and not os.path.exists(path):  # noqa: PTH110
            raise ArgumentError(f"There is no file {path[:300]!r}. Give the path of one.")


def run(name: str, arguments: list[str]) -> int:
    """Run one command, or ``--help`` or ``--version``, and return its exit code."""
    from lit_gelu.cli.commands import COMMANDS, LIGHTNING_COMMANDS, run_command, table

    if name in {"-h", "--help", "help"}:
        sys.stdout.write(
            "usage: lit-gelu [--help] [--version] COMMAND ...\n\n"
            "Activation functions for PyTorch Lightning: choose, swap, measure and export them to ONNX.\n\n"
            f"commands:\n{table()}\n\n{EXAMPLES}"
        )
        return 0
    if name in {"-V", "--version"}:
        from importlib.metadata import version

        sys.stdout.write(f"lit-gelu {version('lit-gelu')}\n")
        return 0
    if arguments and f"{name} {arguments[0]}" in COMMANDS:
        name, arguments = f"{name} {arguments[0]}", arguments[1:]
    if name not in COMMANDS:
        names = [name for name in COMMANDS if " " not in name]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ArgumentError(f"no such command.{hint} Commands: {', '.join(names)}. See lit-gelu --help.")
    require_files(arguments)
    gc.disable()  # imports make half a million objects that stay: looking through them takes a fifth of the time
    try:
        module = importlib.import_module(f"lit_gelu.cli.{'fit' if name in LIGHTNING_COMMANDS else name.split()[0]}")
    finally:
        gc.enable()
    return int(module.run([name, *arguments])) if name in LIGHTNING_COMMANDS else run_command(name, arguments)
