"""What a report says of a Trainer, its module and its optimizers, as plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.optim import SGD, Optimizer

from lit_gelu.callbacks.trainer_facts import callbacks_of
from lit_gelu.report import OptimizerSettings
from lit_gelu.report.setting_text import flat

_OF_TRAINER = (
    "max_epochs",
    "max_steps",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "precision",
    "num_devices",
    "num_nodes",
    "log_every_n_steps",
    "check_val_every_n_epoch",
    "val_check_interval",
)
_MOST_GROUPS = 8


def configuration_of(
    trainer: Trainer, pl_module: LightningModule, hyper_parameters: Mapping[str, Any]
) -> dict[str, dict[str, str]]:
    """Return the settings of a run as text, by group."""
    module = {
        "class": f"{type(pl_module).__module__}.{type(pl_module).__qualname__}",
        "trained parameters": f"{sum(p.numel() for p in pl_module.parameters() if p.requires_grad):,}",
    }
    data = getattr(trainer, "datamodule", None)
    values = {name: getattr(trainer, name, None) for name in _OF_TRAINER}
    groups = {
        "Module": module | _hyper_parameters(pl_module),
        "Data": {}
        if data is None
        else {"class": type(data).__name__, **flat(dict(getattr(data, "hparams", {}) or {}))},
        "Optimizers": _of_optimizers(trainer.optimizers),
        "Schedulers": {str(i): type(c.scheduler).__name__ for i, c in enumerate(trainer.lr_scheduler_configs)},
        "Trainer": {
            "accelerator": type(trainer.accelerator).__name__,
            "strategy": type(trainer.strategy).__name__,
            **flat({name: value for name, value in values.items() if value is not None}),
        },
        "Callbacks": {str(i): str(callback.state_key)[:400] for i, callback in enumerate(callbacks_of(trainer))},
        "Logged as hyper-parameters": _logged(hyper_parameters, [pl_module, data]),
    }
    return {name: group for name, group in groups.items() if group}


def _logged(hyper_parameters: Mapping[str, Any], owners: Sequence[Any]) -> dict[str, str]:
    """Return what was logged as hyper-parameters, but for those of the modules, and swaps, which stand elsewhere."""
    known = {name for owner in owners for name in _hyper_parameters(owner)}
    swap = "activation_swap/"
    return flat({name: v for name, v in hyper_parameters.items() if name not in known and not name.startswith(swap)})


def optimizers_of(optimizers: Sequence[Optimizer]) -> tuple[OptimizerSettings, ...]:
    """Return what decides about stability, of each optimizer."""
    return tuple(
        settings_of_groups(type(each).__name__, each.param_groups, plain=type(each) is SGD)
        for each in _real(optimizers)
    )


def _real(optimizers: Sequence[Optimizer]) -> list[Optimizer]:
    """Leave out the stand-in without groups that Lightning has where ``configure_optimizers`` returns ``None``."""
    return [optimizer for optimizer in optimizers if optimizer.param_groups]


def settings_of_groups(name: str, groups: Sequence[Mapping[str, Any]], *, plain: bool) -> OptimizerSettings:
    """Return the settings of an optimizer, of the values of all its groups."""
    each = [settings_of(name, group, plain=plain) for group in groups]
    if len(each) == 1:
        return each[0]
    alike = len({(one.momentum, one.nesterov) for one in each}) == 1  # the limit is known of one momentum alone
    return replace(
        each[0],
        weight_decay=max(one.weight_decay for one in each),
        plain=alike and all(one.plain for one in each),
        group_rates=tuple(one.learning_rate for one in each),
    )


def settings_of(name: str, group: Mapping[str, Any], *, plain: bool) -> OptimizerSettings:
    """Return the settings of an optimizer, of the values of its first group."""
    betas = group.get("betas")
    adaptive = isinstance(betas, Sequence) and bool(betas) and not isinstance(betas, str)
    undamped = _number(group.get("dampening")) == 0.0
    return OptimizerSettings(
        name=name,
        learning_rate=_number(group.get("lr")),
        momentum=_number(betas[0]) if adaptive and betas else _number(group.get("momentum")),
        nesterov=group.get("nesterov") is True,
        weight_decay=_number(group.get("weight_decay")),
        adaptive=adaptive,
        plain=plain and undamped,
    )


def rates_of(optimizers: Sequence[Optimizer]) -> dict[str, float]:
    """Return the learning rate of every group, by name: ``learning_rate/SGD``, or with the group's number behind."""
    rates: dict[str, float] = {}
    for i, optimizer in enumerate(optimizers):
        name = f"learning_rate/{type(optimizer).__name__}{f'_{i}' if len(optimizers) > 1 else ''}"
        groups = optimizer.param_groups[:_MOST_GROUPS]
        for j, group in enumerate(groups):
            rates[name if len(groups) == 1 else f"{name}/{j}"] = _number(group.get("lr"))
    return rates


def rates_are_at_hand(optimizers: Sequence[Optimizer]) -> bool:
    """Return whether learning rates can be read at every step: none is a tensor that a GPU would be waited for."""
    rates = (group.get("lr") for optimizer in optimizers for group in optimizer.param_groups[:_MOST_GROUPS])
    return all(not isinstance(rate, Tensor) or rate.device.type == "cpu" for rate in rates)


def _hyper_parameters(owner: Any) -> dict[str, str]:
    """Return what a module or data module saved with ``save_hyperparameters``, as text."""
    return flat(dict(getattr(owner, "hparams", {}) or {}))


def _of_optimizers(optimizers: Sequence[Optimizer]) -> dict[str, str]:
    """Return the options of every optimizer's groups."""
    found: dict[str, str] = {}
    for i, optimizer in enumerate(_real(optimizers)):
        found[f"{i}"] = type(optimizer).__name__
        for j, group in enumerate(optimizer.param_groups[:_MOST_GROUPS]):
            found |= flat({name: value for name, value in group.items() if name != "params"}, f"{i}.{j}")
    return found


def _number(value: Any) -> float:
    """Return a number, also of a tensor with one; 0 for anything else."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return 0.0
