"""What can go wrong when several runs are trained as one group."""

from torch import Tensor

from lit_gelu.errors import LitGeluError


class ReplicaError(LitGeluError):
    """Something because of which a replica would not be its run alone; every error of this package is one."""


class ReplicaArgumentError(ReplicaError, ValueError):
    """A value that a function of this package does not take."""


class MembersDifferError(ReplicaError, ValueError):
    """Members that differ in more than activation, dropout, seed and what their optimizers read."""


class NotReplicableError(ReplicaError, RuntimeError):
    """A net or a training step that cannot be computed for all replicas at once."""


class DamagedGroupError(ReplicaError, ValueError):
    """A checkpoint of a group that is damaged."""


def unknown_labels(labels: Tensor, classes: int) -> ReplicaArgumentError:
    """Return the error for labels that are no classes of a net."""
    return ReplicaArgumentError(
        f"The labels are {int(labels.min())} to {int(labels.max())}, and the net has {classes} classes. Number the "
        "classes from 0, or give a net with as many as there are."
    )
