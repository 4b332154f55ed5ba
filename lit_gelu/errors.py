"""The errors that a caller can mend. Each message says what was given, what is accepted and the remedy."""

import reprlib
from typing import Any

from lit_gelu.display import printable, printable_lines

_LONGEST_MESSAGE = 1500  # characters


class LitGeluError(Exception):
    """A mistake that the caller can mend; the command line prints it without a stack trace."""

    def __str__(self) -> str:
        """Return the message (``KeyError`` would print its ``repr``), with nothing in it that a terminal would obey."""
        return printable_lines(str(self.args[0])) if self.args else ""


class ArgumentError(LitGeluError, ValueError, TypeError):
    """An argument, an option or a setting with a value that is not accepted."""


class SpecError(LitGeluError, ValueError):
    """A text, mapping or value that does not name an activation, or a name that cannot be registered."""


class UnknownActivationError(LitGeluError, KeyError, ValueError):
    """A name that nobody registered; the message suggests near names and lists all."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name  # as it was given


class SwapError(LitGeluError, ValueError):
    """A swap that cannot be made; nothing was changed."""


class CheckpointError(LitGeluError, ValueError):
    """A checkpoint that is damaged, or of a model, a group or a run other than the one it is loaded into."""


class UnsupportedRunError(LitGeluError, RuntimeError):
    """A model, Trainer, strategy, optimizer or data that what was asked for cannot work with."""


class DataError(LitGeluError, ValueError):
    """A data set that is missing or damaged."""


class ExportError(LitGeluError, RuntimeError):
    """The module cannot be written as an ONNX graph; the exporter's own error is chained as the cause."""


class ModelFileError(LitGeluError, ValueError):
    """A file is missing, is no ONNX model, is damaged, or was not written by lit-gelu where that is needed."""


class ModelInputError(LitGeluError, ValueError):
    """An input does not fit the module or the file: its name, shape or dtype."""


class ProviderError(LitGeluError, RuntimeError):
    """An execution provider does not exist in this installation or did not take the model."""


class ParityError(LitGeluError, AssertionError):
    """The file does not compute what the module computes.

    Args:
        message: Which comparisons failed, by how much, and what to look at.
        report: The `ParityReport`: all comparisons, those that passed too.
    """

    def __init__(self, message: str, report: Any) -> None:
        super().__init__(message)
        self.report = report

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes it anew in another process."""
        return type(self), (self.args[0], self.report)


class AuditError(LitGeluError, ValueError):
    """Two artefacts compute other activations; or, without a report, nothing can be said of what one computes.

    Args:
        message: What differs, or why nothing can be said.
        report: The `AuditReport`, if there is one.
    """

    def __init__(self, message: str, report: Any = None) -> None:
        super().__init__(message)
        self.report = report

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes it anew in another process."""
        return type(self), (self.args[0], self.report)


class MissingExtraError(LitGeluError, ImportError):
    """A library that only some parts of lit-gelu need, and that is not installed."""


class _Short(reprlib.Repr):
    """``repr`` of bounded length, whatever it is given: what files hold may be of any size and depth."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 160
        self.maxlong, self.maxlevel = 60, 3

    def repr_int(self, x: int, level: int) -> str:
        """Return a number, or how long it is: Python refuses to print very long ones."""
        return super().repr_int(x, level) if x.bit_length() < 4096 else f"<an integer of {x.bit_length()} bits>"


_SHORT = _Short()


def shown(value: object) -> str:
    """Return ``repr(value)`` for a message: at most a few hundred characters, the middle left out of what is long."""
    return _SHORT.repr(value)


def message_of(error: BaseException) -> str:
    """Return what another library says of a failure, for a message of ours: the middle left out of what is long."""
    # Such a message may repeat what a file holds, which is of any size, or fail at it: repr has limits of depth.
    try:
        text = printable(" ".join(str(error).split()).rstrip(".")) or type(error).__name__
    except (RecursionError, ValueError):
        return type(error).__name__
    left_out = len(text) - _LONGEST_MESSAGE
    if left_out <= 0:
        return text
    half = _LONGEST_MESSAGE // 2
    return f"{text[:half]} [{left_out} characters left out] {text[-half:]}"
