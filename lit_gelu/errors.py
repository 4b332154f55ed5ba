"""The errors that a caller can mend. Each message says what was given, what is accepted and the remedy."""


class LitGeluError(Exception):
    """A mistake that the caller can mend; the command line prints it without a stack trace."""

    def __str__(self) -> str:
        """Return the message as it was written (``KeyError`` would print its ``repr``)."""
        return str(self.args[0]) if self.args else ""
