"""The errors that a caller can mend. Each message says what was given, what is accepted and the remedy."""

import reprlib

_LONGEST_MESSAGE = 1500  # characters


class LitGeluError(Exception):
    """A mistake that the caller can mend; the command line prints it without a stack trace."""

    def __str__(self) -> str:
        """Return the message as it was written (``KeyError`` would print its ``repr``)."""
        return str(self.args[0]) if self.args else ""


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
        text = str(error).rstrip(".")
    except (RecursionError, ValueError):
        return type(error).__name__
    left_out = len(text) - _LONGEST_MESSAGE
    if left_out <= 0:
        return text
    half = _LONGEST_MESSAGE // 2
    return f"{text[:half]} [{left_out} characters left out] {text[-half:]}"
