"""Building a configuration's module anew for every run of ``lit-gelu choose``, with the optimizer that it names."""

from collections.abc import Mapping
from functools import cache, partial, update_wrapper
from types import MethodType
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, instantiate_class

from lit_gelu.choose.kept_settings import ConfiguredBuild
from lit_gelu.errors import LitGeluError

OPTIMIZER, SCHEDULER = "optimizer", "lr_scheduler"  # LightningCLI's own options


class ChooseCommandError(LitGeluError, ValueError):
    """A configuration that activations cannot be compared with."""


def model_builder(config: Any, *, swap: bool) -> ConfiguredBuild:
    """Return what builds the model of a configuration with another activation.

    Args:
        config: The configuration of the sub-command, parsed.
        swap: Whether the activations of the model are exchanged, so that it takes none.

    Raises:
        ChooseCommandError: If the model takes no activation.
    """
    model = config.model
    arguments = model.init_args.as_dict() if "init_args" in model else {}
    if not swap and "activation" not in arguments:
        raise ChooseCommandError(
            f"{model.class_path} takes no argument activation=. Give --swap true: the activations that it has are "
            "then exchanged. Or let its constructor take one."
        )
    fixed = {name: value for name, value in arguments.items() if swap or name != "activation"}
    # As arguments of the builder, optimizers are among the settings that runs in a folder have in common.
    return ConfiguredBuild(_built, model.class_path, fixed, **_optimizers(config))


def unused_scheduler(config: Any) -> list[str]:
    """Name a scheduler that has no optimizer: LightningCLI leaves the module's own as they are then."""
    return [f"{SCHEDULER} without {OPTIMIZER}"] if config.get(SCHEDULER) and not config.get(OPTIMIZER) else []


def _optimizers(config: Any) -> dict[str, Any]:
    """Return the optimizer of a configuration, and its scheduler, in the place of the module's own."""
    if not config.get(OPTIMIZER):
        return {}
    return {name: config[name].as_dict() for name in (OPTIMIZER, SCHEDULER) if config.get(name)}


def _built(
    class_path: str, arguments: Mapping[str, Any], activation: Any = None, **optimizers: Mapping[str, Any]
) -> LightningModule:
    given = dict(arguments) if activation is None else {**arguments, "activation": activation}
    parser = _parser_of_models()
    parsed = parser.parse_object({"model": {"class_path": class_path, "init_args": given}})
    module: LightningModule = parser.instantiate_classes(parsed).model
    if optimizers:
        made = partial(_configured, given=optimizers)
        # By this Lightning takes the method for an overridden one.
        update_wrapper(made, LightningCLI.configure_optimizers)
        module.configure_optimizers = MethodType(made, module)  # type: ignore[method-assign] # as LightningCLI does
    return module


def _configured(module: LightningModule, given: Mapping[str, Any]) -> Any:
    """Make what LightningCLI makes."""
    # It is made when the Trainer asks: a swap may have brought in other parameters by then.
    optimizer = instantiate_class(module.parameters(), dict(given[OPTIMIZER]))
    scheduler = instantiate_class(optimizer, dict(given[SCHEDULER])) if SCHEDULER in given else None
    return LightningCLI.configure_optimizers(module, optimizer, scheduler)


@cache
def _parser_of_models() -> LightningArgumentParser:
    parser = LightningArgumentParser()
    parser.add_lightning_class_args(LightningModule, "model", subclass_mode=True)
    return parser
