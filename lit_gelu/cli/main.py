"""The command ``lit-gelu``: finds the sub-command and turns a user's mistake into a message and an exit code.

Nothing heavy is imported here: ``lit-gelu --help`` answers at once, and ``lit-gelu activations`` needs no Lightning.
"""

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from lit_gelu.cli.own_modules import current_folder_on_path, import_early, import_modules
from lit_gelu.errors import LitGeluError

EXIT_FAILURE = 1
EXIT_MISTAKE = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it

TRAINER_COMMANDS = {
    "fit": "train a task: lit-gelu fit --model.activation gelu",
    "validate": "measure a checkpoint on the validation set",
    "test": "measure a checkpoint on the test set",
    "predict": "run a checkpoint on the prediction set",
}
COMMANDS = {
    "export": "write a checkpoint's model to an ONNX file",
    "parity": "prove that an ONNX file computes what the PyTorch model computes",
    "bench": "time an ONNX file beside PyTorch eager and torch.compile, in one run",
    "triton": "put an ONNX file into a model repository of Triton Inference Server",
    "doctor": "say what is wrong with this installation, and how to mend it",
    "curvature": "measure the activations' and the loss's curvature of a checkpoint, and draw it",
    "activations": "list the registered activations, describe, compare or plot them",
    "paper": "run the GELU paper's experiments, and draw its tables and figures",
    "demo": "train, swap, measure curvature, export and check parity in one go",
}
EXAMPLES = """\
examples:
  lit-gelu fit                                         train MNISTClassifier with GELU on the bundled digits
  lit-gelu fit --config examples/mnist_gelu.yaml       train as a configuration file says
  lit-gelu fit --model.activation "elu(alpha=0.5)" --trainer.max_epochs 5
  lit-gelu test --ckpt_path runs/digits_gelu/version_0/checkpoints/last.ckpt
  lit-gelu activations
  lit-gelu COMMAND --help                              options and examples of one command
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``lit-gelu``.

    Args:
        argv: The arguments after the command's name; ``None`` means ``sys.argv[1:]``.

    Returns:
        The exit code: 0 for success, 1 for a failed check (parity), 2 for a mistake that the user can mend, 130 after
        Ctrl-C. Anything else is a fault of the program and ends in a stack trace.
    """
    name, *arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        return _run_and_flush(name, arguments)
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
        return _exit_code(error)


def run(name: str, arguments: list[str]) -> int:
    """Run one sub-command.

    Args:
        name: The sub-command, ``--help`` or ``--version``.
        arguments: Its arguments.

    Returns:
        Its exit code.

    Raises:
        UnknownCommandError: If there is no such sub-command.
    """
    if name in {"-h", "--help", "help"}:
        sys.stdout.write(help_text())
        return 0
    if name in {"-V", "--version"}:
        sys.stdout.write(f"lit-gelu {version('lit-gelu')}\n")
        return 0
    if name in TRAINER_COMMANDS:
        return int(importlib.import_module("lit_gelu.cli.fit").run(import_early([name, *arguments])))
    if name in COMMANDS:
        module = importlib.import_module(f"lit_gelu.cli.{name}")
        if arguments and arguments[0] in getattr(module, "SUBCOMMANDS", ()):
            module = importlib.import_module(f"lit_gelu.cli.{name}_{arguments[0]}")
            arguments = arguments[1:]
        parsed = module.build_parser().parse_args(arguments)
        import_modules(parsed.get("import") or [])
        return int(module.run(parsed))
    near = difflib.get_close_matches(name, [*TRAINER_COMMANDS, *COMMANDS], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise UnknownCommandError(
        f"no such command.{hint} Commands: {', '.join([*TRAINER_COMMANDS, *COMMANDS])}. See lit-gelu --help."
    )


class UnknownCommandError(LitGeluError, ValueError):
    """A sub-command that does not exist."""


def help_text() -> str:
    """Return what ``lit-gelu --help`` prints.

    Returns:
        Usage, one line a command, examples.

    Example:
        >>> print(help_text().splitlines()[0])
        usage: lit-gelu [--help] [--version] COMMAND ...
    """
    rows = "\n".join(f"  {name:<12} {text}" for name, text in (TRAINER_COMMANDS | COMMANDS).items())
    return (
        "usage: lit-gelu [--help] [--version] COMMAND ...\n\n"
        "Activation functions for PyTorch Lightning: choose, swap, measure and export them to ONNX.\n\n"
        f"commands:\n{rows}\n\n{EXAMPLES}"
    )


def _run_and_flush(name: str, arguments: list[str]) -> int:
    """Run a sub-command and write out what it printed: a closed pipe shows here, and not at exit."""
    with current_folder_on_path():
        code = run(name, arguments)
    sys.stdout.flush()
    return code


def _exit_code(error: SystemExit) -> int:
    """Return the exit code that a `SystemExit` stands for."""
    # Lightning catches Ctrl-C itself to end a run in order, and then calls sys.exit(1) in its handler.
    if isinstance(error.__context__, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    sys.stderr.write(f"{error.code}\n")
    return EXIT_FAILURE
