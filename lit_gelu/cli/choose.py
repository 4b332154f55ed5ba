"""What ``lit-gelu choose`` does with a configuration of ``lit-gelu fit``: its options, and the comparison."""

import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from rich.table import Table

from lit_gelu.choose import ActivationChoice
from lit_gelu.choose import choose as compare
from lit_gelu.choose.samples_text import is_told_whole
from lit_gelu.choose.unused_callbacks import is_unused, not_used, without_unused
from lit_gelu.cli.model_builder import ChooseCommandError, model_builder, unused_scheduler
from lit_gelu.cli.terminal import console_for_output

EXAMPLES = """\
Each activation is trained with the same seeds, and with the same weights and batches for each seed; all of them side by
side where that holds. A star marks a difference that is decided: its 95 % interval excludes 0, and a test over the
seeds, corrected for the number of pairs, agrees. Finished runs are kept in the output folder: the same command goes on
where it was interrupted.

examples:
  lit-gelu choose --activations gelu silu relu --trainer.max_epochs 3          MNISTClassifier on the bundled digits
  lit-gelu choose --config my.yaml --activations gelu silu relu --seeds 5      a configuration of lit-gelu fit
  lit-gelu choose --config my.yaml --activations gelu "elu(alpha=0.5)" --metric val_acc --baseline gelu
  lit-gelu choose --import mymod --model MyNet --data MyData --activations gelu relu --swap true
"""
OF_LISTS = ("--activations", "--seeds")
_OF_ONE_RUN = ("logger", "log_every_n_steps", "enable_checkpointing", "default_root_dir", "max_epochs", "callbacks")


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
        metric: str | None = None,
        mode: Literal["min", "max"] | None = None,
        baseline: str | None = None,
        swap: bool | str = False,
        together: bool = True,
        measure: bool = True,
        output: str = "runs/choose",
        ckpt_path: str | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Compare activations in a model.

        Args:
            model: The model.
            activations: What to compare, two or more: gelu silu "elu(alpha=0.5)"
            datamodule: The data.
            seeds: How many seeds, from 0 on, or which; an interval needs five
            metric: The logged figure that decides; default: val_error, or else val_loss
            mode: Whether less of it is better, or more; default: its name says which
            baseline: One of the activations, with which the others are compared too
            swap: true to exchange all activations of a model that takes none, or which sites: "encoder.*"; calls of
                functions only if the model has an example_input_array
            together: Whether to train all side by side where that holds
            measure: Whether to measure time, memory, latency and curvature, and to export the best module
            output: The folder for results and finished runs
            ckpt_path: Of lit-gelu fit, so that its configurations are taken; null
            weights_only: The same
        """


def gathered(arguments: Sequence[str]) -> list[str]:
    """Return arguments with the words behind an option that takes several as one list, as LightningCLI reads it."""
    words, found = list(arguments), list[str]()
    while words:
        word = words.pop(0)
        values = []
        while word in OF_LISTS and words and not words[0].startswith("--"):
            values.append(words.pop(0))
        if len(values) > 1 or (values and word == OF_LISTS[0] and not values[0].startswith("[")):
            listed = f"[{', '.join(values)}]" if word == "--seeds" else json.dumps(values)
            found.append(f"{word}={listed}")
        else:
            found += [word, *values]
    return found


def run_choice(
    config: Any, made: Any, data: LightningDataModule | None, options: Mapping[str, Any]
) -> ActivationChoice:
    """Compare, and print what was found.

    Args:
        config: The configuration of the sub-command, parsed.
        made: The same with what it describes instantiated.
        data: Its data module.
        options: Arguments of `ChoosingTrainer.choose`.

    Returns:
        What was found.

    Raises:
        ChooseCommandError: If the configuration cannot be used.
    """
    given = dict(options)
    output, swap = given.pop("output"), given.pop("swap")
    del given["weights_only"]  # of how a checkpoint is read
    if given.pop("ckpt_path") is not None:
        raise ChooseCommandError("--ckpt_path is not accepted: every run begins anew. Leave it out.")
    if data is None:
        raise ChooseCommandError("There are no data. Give --data.")
    trainer, left_out = trainer_options(config.trainer, made.trainer)
    console = console_for_output()
    for line in not_used(left_out + unused_scheduler(config)):
        console.print(line, soft_wrap=True)
    found = compare(
        model_builder(config, swap=bool(swap)),
        given.pop("activations"),
        data,
        swap=swap,
        max_epochs=config.trainer.max_epochs,
        trainer=trainer,
        folder=output,
        settings=given_settings(config, made.trainer, data),
        say=lambda line: console.print(line, soft_wrap=True, markup=False),
        **given,
    )
    console.print(_table(found))
    for line in (*found.verdict, *found.notes, found.trained):
        console.print(line, soft_wrap=True, markup=False)
    console.print(f"{output}: {', '.join(found.files.values())}", soft_wrap=True, markup=False)
    sys.stdout.flush()
    return found


def _table(found: ActivationChoice) -> Table:
    table = Table(title=f"{found.metric.name}, medians of {len(found.seeds)} seeds", title_justify="left")
    for number, head in enumerate(found.header):
        table.add_column(head, justify="right" if number else "left")
    for row in found.rows:
        table.add_row(*(cell.replace("[", r"\[") for cell in row))
    return table


def trainer_options(config: Any, made: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the options of every run's Trainer, and what of the configuration is meant for one run alone."""
    usual = {name: parameter.default for name, parameter in inspect.signature(Trainer).parameters.items()}
    given = {name: value for name, value in made.items() if name in usual and value != usual[name]}
    # A Trainer adds its own callbacks to the list that it was given.
    callbacks = list(made.get("callbacks") or [])[: len(config.get("callbacks") or [])]
    options = {name: value for name, value in given.items() if name not in _OF_ONE_RUN}
    options, left_out = without_unused(options | ({"callbacks": callbacks} if callbacks else {}))
    return options, [*(["trainer.logger"] if config.get("logger") else []), *left_out]


def given_settings(config: Any, made: Any, data: LightningDataModule) -> dict[str, Any]:
    """Return the configuration of data and Trainer, which kept runs must have in common; the builder has the model's.

    That of data in memory is left out, of which all samples are compared: where their files are may change.
    """
    plain = config.trainer.as_dict()
    trainer = {name: value for name, value in plain.items() if name not in _OF_ONE_RUN}
    callbacks = list(zip(plain.get("callbacks") or [], made.get("callbacks") or [], strict=False))
    options = trainer | {"callbacks": [each for _, each in callbacks]}
    trainer["callbacks"] = [given for given, each in callbacks if not is_unused(each, options)]
    whole = is_told_whole(data) or "data" not in config
    return {"trainer": trainer} | ({} if whole else {"data": config.data.as_dict()})
