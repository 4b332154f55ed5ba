"""What ``lit-gelu choose`` does with a configuration of ``lit-gelu fit``: its options, and the comparison."""

import inspect
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from functools import cache, partial, update_wrapper
from types import MethodType
from typing import Any, Literal

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, instantiate_class

from lit_gelu.choose import choose as compare
from lit_gelu.choose.training import log
from lit_gelu.cli.terminal import console_for_output
from lit_gelu.errors import ArgumentError

EXAMPLES = """\
Each activation is trained with the same seeds, and with the same weights and batches for each seed; all of them side by
side where that holds. A star marks a difference that is decided: its 95 % interval excludes 0, and a test over the
seeds, corrected for the number of pairs, agrees. Finished runs are kept in the output folder: the same command goes on
where it was interrupted.

examples:
  lit-gelu choose --activations gelu silu relu --trainer.max_epochs 3          MNISTClassifier on the bundled digits
  lit-gelu choose --config my.yaml --activations gelu silu relu --seeds 5      a configuration of lit-gelu fit
  lit-gelu choose --config my.yaml --activations gelu "elu(alpha=0.5)" --metric val_acc --baseline gelu
  lit-gelu choose --config my.yaml --activations gelu silu --until decided        seeds are added while they help
  lit-gelu choose --import mymod --model MyNet --data MyData --activations gelu relu --swap true
"""
_OF_ONE_RUN = ("logger", "log_every_n_steps", "enable_checkpointing", "default_root_dir", "callbacks")


class ChoosingTrainer(Trainer):
    """The Trainer's options."""

    # The text above heads these options in `lit-gelu fit --help`. LightningCLI makes the options of `lit-gelu choose`
    # of the arguments of the method.

    def choose(
        self,
        model: LightningModule,
        activations: list[str],
        datamodule: LightningDataModule | None = None,
        seeds: int | list[int] = 5,
        until: Literal["decided"] | None = None,
        max_seeds: int = 30,
        metric: str | None = None,
        mode: Literal["min", "max"] | None = None,
        baseline: str | None = None,
        swap: bool | str = False,
        together: bool = True,
        output: str = "runs/choose",
        ckpt_path: str | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Compare activations in a model.

        Args:
            model: The model.
            activations: What to compare, two or more: gelu silu "elu(alpha=0.5)"
            datamodule: The data.
            seeds: How many seeds, from 0 on, or which: [3, 8]; an interval needs five
            until: decided, to add seeds until the best, or the baseline, is told from all others, or that is futile
            max_seeds: The most seeds of --until decided
            metric: The logged figure that decides; default: val_error, or else val_loss
            mode: Whether less of it is better, or more; default: its name says which
            baseline: One of the activations, with which the others are compared too
            swap: true to exchange all activations of a model that takes none, or which sites: "encoder.*"; calls of
                functions only if the model has an example_input_array
            together: Whether to train all side by side where that holds
            output: The folder for results and finished runs
            ckpt_path: Of lit-gelu fit, so that its configurations are taken; null
            weights_only: The same
        """


def with_lists(words: Sequence[str]) -> list[str]:
    """Return arguments with the words behind ``--activations`` as one list, as LightningCLI reads it."""
    if "--activations" not in words:
        return list(words)
    place = words.index("--activations") + 1
    end = next((i for i, word in enumerate(words) if i >= place and word.startswith("-")), len(words))
    if end == place or words[place].startswith("["):
        return list(words)
    return [*words[: place - 1], f"--activations={json.dumps(words[place:end])}", *words[end:]]


def run_choice(config: Any, instances: Any, data: LightningDataModule | None, options: Mapping[str, Any]) -> None:
    """Compare, and print the result; ``instances`` is the configuration with what it describes made."""
    arguments = {name: value for name, value in options.items() if name not in {"output", "ckpt_path", "weights_only"}}
    if options["ckpt_path"] is not None or data is None:
        reason = "There are no data" if data is None else "--ckpt_path is not accepted: every run begins anew"
        raise ArgumentError(f"{reason}. Give --data, and no --ckpt_path.")
    defaults = {name: parameter.default for name, parameter in inspect.signature(Trainer).parameters.items()}
    pairs = instances.trainer.items()
    trainer = {n: v for n, v in pairs if n in defaults and n not in _OF_ONE_RUN and v != defaults[n]}
    trainer["max_epochs"] = config.trainer.max_epochs
    # A Trainer adds its own callbacks to the list that it got.
    everything, configured = (part.trainer.get("callbacks") or [] for part in (instances, config))
    if configured:
        count = len(configured) if isinstance(configured, list) else 1  # a single one need be no list
        trainer["callbacks"] = everything[:count] if isinstance(everything, list) else [everything]
    log.setLevel(logging.INFO)
    log.handlers = [logging.StreamHandler(sys.stdout)]
    choice = compare(
        model_builder(config, swap=bool(options["swap"])),
        arguments.pop("activations"),
        data,
        folder=options["output"],
        **arguments,
        **trainer,
    )
    console = console_for_output(soft_wrap=True)
    console.print(str(choice), highlight=False)
    console.print(f"{options['output']}: {', '.join(choice.files.values())}")


def model_builder(config: Any, *, swap: bool) -> partial[LightningModule]:
    """Return what builds the model of a configuration with another activation, with the optimizer that it names."""
    model = config.model
    arguments = model.init_args.as_dict() if "init_args" in model else {}
    if not swap and "activation" not in arguments:
        raise ArgumentError(
            f"{model.class_path} takes no argument activation=. Give --swap true: the activations that it has are "
            "then exchanged. Or let its constructor take one."
        )
    fixed = {name: value for name, value in arguments.items() if swap or name != "activation"}
    extra = dict(model.get("dict_kwargs") or {})  # that an opaque **kwargs of it takes
    # Without an optimizer of the configuration LightningCLI leaves the module's own as they are.
    named = ("optimizer", "lr_scheduler") if config.get("optimizer") else ()
    optimizers = {name: config[name].as_dict() for name in named if config.get(name)}
    return partial(_built, model.class_path, fixed, extra, **optimizers)


def _built(
    class_path: str,
    arguments: Mapping[str, Any],
    extra: Mapping[str, Any],
    activation: Any = None,
    **optimizers: Mapping[str, Any],
) -> LightningModule:
    init_args = dict(arguments) if activation is None else {**arguments, "activation": activation}
    parser = _parser_of_models()
    described = {"class_path": class_path, "init_args": init_args, "dict_kwargs": dict(extra)}
    parsed = parser.parse_object({"model": described})
    module: LightningModule = parser.instantiate_classes(parsed).model
    if optimizers:
        method = partial(_configured, parts=optimizers)
        update_wrapper(method, LightningCLI.configure_optimizers)  # by this Lightning takes it for an overridden one
        module.configure_optimizers = MethodType(method, module)  # type: ignore[method-assign] # as LightningCLI does
    return module


def _configured(module: LightningModule, parts: Mapping[str, Any]) -> Any:
    # It is made when the Trainer asks: a swap may have brought in other parameters by then.
    optimizer = instantiate_class(module.parameters(), dict(parts["optimizer"]))
    scheduler = instantiate_class(optimizer, dict(parts["lr_scheduler"])) if "lr_scheduler" in parts else None
    return LightningCLI.configure_optimizers(module, optimizer, scheduler)


@cache
def _parser_of_models() -> LightningArgumentParser:
    parser = LightningArgumentParser()
    parser.add_lightning_class_args(LightningModule, "model", subclass_mode=True)
    return parser
