"""What can go wrong when a task is built or given data."""

from lit_gelu.errors import ArgumentError
from lit_gelu.surgery.errors import CheckpointMismatchError as CheckpointMismatchError  # also of tasks

TaskArgumentError = TaskInputError = ArgumentError
