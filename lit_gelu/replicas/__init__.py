"""Several runs of one net trained as one group: other activations, learning rates, dropout and seeds, the same bits."""

from lit_gelu.replicas.data.data_module import ReplicaDataModule
from lit_gelu.replicas.data.order import BatchOrder
from lit_gelu.replicas.errors import (
    DamagedGroupError,
    MembersDifferError,
    NotReplicableError,
    ReplicaArgumentError,
    ReplicaError,
)
from lit_gelu.replicas.executors import EagerExecutor
from lit_gelu.replicas.group import ReplicaGroup
from lit_gelu.replicas.membership.building import Member, build_members

__all__ = [
    "BatchOrder",
    "DamagedGroupError",
    "EagerExecutor",
    "Member",
    "MembersDifferError",
    "NotReplicableError",
    "ReplicaArgumentError",
    "ReplicaDataModule",
    "ReplicaError",
    "ReplicaGroup",
    "build_members",
]
