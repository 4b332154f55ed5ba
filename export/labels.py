"""Names of the classes that a file's first output stands for."""

from collections.abc import Sequence

from lit_gelu.export.errors import ExportOptionError
from lit_gelu.export.trial import Trial


def checked_labels(labels: Sequence[str], trial: Trial, *, softmax: bool) -> tuple[str, ...]:
    """Check labels, and that the first output has a dimension for them and for a softmax.

    Args:
        labels: One name for each place along the last dimension; empty for none.
        trial: A run of the module.
        softmax: Whether the first output goes through a softmax.

    Returns:
        The labels.

    Raises:
        ExportOptionError: If they are not texts, not as many as the output has values, or the output has no dimension
            of values beside the batch, or no real numbers.

    Example:
        >>> import torch
        >>> checked_labels(["cat", "dog"], Trial((), ("output",), (torch.zeros(3, 2),)), softmax=False)
        ('cat', 'dog')
    """
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise ExportOptionError(f"labels={labels!r} is not accepted. Give a list of texts, one for each class.")
    if not labels and not softmax:
        return ()
    name, output = trial.names[0], trial.outputs[0]
    if output.ndim < 2 or not output.is_floating_point():
        raise ExportOptionError(
            f"labels= and softmax= need a first output [batch, ..., classes] of real numbers; {name!r} is "
            f"{output.dtype} of shape {list(output.shape)}. Leave them out, or let forward return the logits first."
        )
    if labels and len(labels) != output.shape[-1]:
        raise ExportOptionError(
            f"labels= has {len(labels)} names, and the last dimension of {name!r} has {output.shape[-1]} values. Give "
            "one name for each."
        )
    return tuple(labels)
