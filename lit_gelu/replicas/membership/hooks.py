"""Refusing members with hooks that a group does not call: what they do would be left out in silence."""

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn

from lit_gelu.replicas.errors import NotReplicableError, ReplicaArgumentError
from lit_gelu.tasks import ActivationTask

_OF_TRAINING = (
    "on_fit_start", "on_fit_end", "on_train_start", "on_train_end", "on_train_epoch_start", "on_train_epoch_end",
    "on_train_batch_start", "on_train_batch_end", "on_before_zero_grad", "on_before_backward", "on_after_backward",
    "on_before_optimizer_step", "optimizer_step", "optimizer_zero_grad", "backward", "configure_gradient_clipping",
    "configure_callbacks", "configure_model", "prepare_data", "setup", "teardown",
)  # fmt: skip
# The modes that a pass changes and changes back, which a group does for each member as Lightning's own hooks do.
_OF_MODES = (
    "on_validation_model_eval", "on_validation_model_train", "on_validation_model_zero_grad", "on_test_model_eval",
    "on_test_model_train",
)  # fmt: skip
_OF_BATCHES = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
_OF_TASKS = frozenset({"on_fit_start"})  # looks at the activation's name alone, and a group calls it


def check_hooks(member: LightningModule) -> None:
    """Refuse a module whose hooks a group does not call.

    Raises:
        NotReplicableError: If it has such a hook, or steps its optimizers itself.
    """
    name = type(member).__name__
    if not member.automatic_optimization:
        raise NotReplicableError(
            f"{name} has automatic_optimization=False and steps its optimizers itself, which a group does for all its "
            "members. Train this module alone."
        )
    called = _OF_TASKS if isinstance(member, ActivationTask) else frozenset()
    for hook in (*_OF_TRAINING, *_OF_MODES, *_OF_BATCHES):
        if hook not in called and is_overridden(hook, member, LightningModule):
            raise NotReplicableError(
                f"{name} has a hook {hook}, which a group does not call for its members. Move what it does into "
                "training_step, validation_step, configure_optimizers or a callback of the group, or train this module "
                "alone."
            )


def check_parameters(module: nn.Module) -> None:
    """Refuse a module whose parameters have hooks: no gradient is accumulated in them, so that none would be called.

    Raises:
        NotReplicableError: If one of them has.
    """
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise NotReplicableError(
                f"The parameter {name!r} of {type(module).__name__} has a hook for its gradient, which a group does "
                "not call. Do what it does in the optimizer's step, or train this module alone."
            )


def check_data_hooks(data: LightningDataModule) -> None:
    """Refuse data whose training batches are not taken as a group takes them.

    Raises:
        ReplicaArgumentError: If they change batches, or have a training loader of their own.
    """
    for hook in _OF_BATCHES:
        if is_overridden(hook, data, LightningDataModule):
            raise ReplicaArgumentError(
                f"{type(data).__name__} has a hook {hook}, which a group does not call for its members' batches. Do "
                "what it does in load_train_and_val, or train the modules alone."
            )
