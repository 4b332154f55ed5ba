"""What can go wrong when a task is built or given data."""

from lit_gelu.errors import ArgumentError, CheckpointError

TaskArgumentError = TaskInputError = ArgumentError
CheckpointMismatchError = CheckpointError
