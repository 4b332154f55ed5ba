"""What can go wrong when a task is built or given data."""

from lit_gelu.errors import LitGeluError


class TaskArgumentError(LitGeluError, ValueError):
    """An argument of a task with a value that it does not take."""


class CheckpointMismatchError(LitGeluError, ValueError):
    """A checkpoint of a model with activations in other places."""


class TaskInputError(LitGeluError, ValueError, TypeError):
    """A batch whose shape or dtype the task's net does not take."""
