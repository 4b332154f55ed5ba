"""What can go wrong when a task is built or given data."""

from lit_gelu.errors import LitGeluError
from lit_gelu.surgery.errors import CheckpointMismatchError as CheckpointMismatchError  # also of tasks


class TaskArgumentError(LitGeluError, ValueError):
    """An argument of a task with a value that it does not take."""


class TaskInputError(LitGeluError, ValueError, TypeError):
    """A batch whose shape or dtype the task's net does not take."""
