"""LightningCLI with this package's tasks, data and callbacks.

``lit-gelu fit``: train a task: lit-gelu fit --model.activation gelu.
``lit-gelu validate``: measure a checkpoint on the validation set.
``lit-gelu test``: measure a checkpoint on the test set.
``lit-gelu predict``: run a checkpoint on the prediction set.
``lit-gelu choose``: which activation for a model: lit-gelu choose --activations gelu silu relu.
"""

import pickle
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities.exceptions import SIGTERMException

# LightningCLI finds a class by its short name (`--trainer.callbacks ActivationSwap`) once it is imported.
import lit_gelu.callbacks  # noqa: F401
from lit_gelu.activations import UnknownActivationError, building_from_file
from lit_gelu.callbacks.checkpoint_file import not_plain, texts_and_mappings
from lit_gelu.cli import choose, own_modules
from lit_gelu.cli.given_arguments import (
    CLASS,
    arguments_of,
    readable_twice,
    require_those_of_checkpoint,
    written_options,
)
from lit_gelu.cli.loading import checked_arguments, unregistered
from lit_gelu.cli.mistakes import PlainErrors
from lit_gelu.cli.model_builder import unused_scheduler
from lit_gelu.cli.options import ExamplesHelpFormatter
from lit_gelu.cli.swapped_checkpoint import swaps_restored
from lit_gelu.cli.terminal import silence_known_warnings
from lit_gelu.data import DigitsData
from lit_gelu.errors import LitGeluError
from lit_gelu.extras import MissingExtraError, need
from lit_gelu.files import is_file
from lit_gelu.tasks import MNISTClassifier

DEFAULT_MODEL = f"lit_gelu.tasks.{MNISTClassifier.__name__}"
DEFAULTS = (f"--model={DEFAULT_MODEL}", f"--data=lit_gelu.data.{DigitsData.__name__}")
TRAINER = {"max_epochs": 20, "log_every_n_steps": 10, "default_root_dir": "runs"}
BEGIN_ANEW = {"fit", "choose"}  # sub-commands that need no checkpoint
EXIT_TERMINATED = 143  # 128 + SIGTERM, as shells report it

EXAMPLES = {
    "fit": """\
examples:
  lit-gelu fit                                      MNISTClassifier with GELU (tanh form) on the bundled digits
  lit-gelu fit --model.activation relu --trainer.max_epochs 5
  lit-gelu fit --model.activation "leaky_relu(negative_slope=0.2)" --data MNISTData --data.download true
  lit-gelu fit --model MNISTClassifier --model.keep 0.5 --data DigitsData --data.batch_size 64
  lit-gelu fit --config examples/mnist_gelu.yaml --seed_everything 1
  lit-gelu fit --import my_module --model MyNet --data MyData       your own, from the current folder
  lit-gelu fit --trainer.callbacks+ ExactResume     with checkpoints from which --ckpt_path goes on to the bit, also
                                                    after a swap: see examples/digits_relu_to_gelu.yaml
  lit-gelu fit --trainer.callbacks+ FusedActivations --trainer.precision bf16-mixed         activations by torch.compile
  lit-gelu fit --print_config > my.yaml             every option with its value, to edit and pass to --config
""",
    "validate": """\
examples:
  lit-gelu validate --ckpt_path runs/digits_gelu/version_0/checkpoints/last.ckpt
  lit-gelu validate --model my_package.Pretrained --without_ckpt true       the model as its class makes it
""",
    "test": """\
examples:
  lit-gelu test --ckpt_path runs/digits_gelu/version_0/checkpoints/last.ckpt
  lit-gelu test --config examples/mnist_gelu.yaml --ckpt_path runs/mnist_gelu/version_0/checkpoints/last.ckpt
""",
    "predict": """\
Predictions go to the callbacks: add one of Lightning's BasePredictionWriter to trainer.callbacks to keep them.

examples:
  lit-gelu predict --ckpt_path last.ckpt --trainer.callbacks+ my_package.MyWriter
""",
    "choose": choose.EXAMPLES,
}


class RunError(LitGeluError):
    """A configuration that Lightning refuses."""


class NewFolderConfig(SaveConfigCallback):
    """Saves the configuration beside the logs, and says how to go on where a run's is there already."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Save ``config.yaml``; refuse a folder that holds another run's."""
        try:
            super().setup(trainer, pl_module, stage)
        except RuntimeError as error:
            if "to NOT exist" not in str(error):  # Lightning raises no class of its own for this one
                raise
            raise RunError(
                f"{trainer.log_dir!r} holds a run already ({self.config_filename}), and nothing is overwritten. Give "
                "another --trainer.default_root_dir, or a logger without a fixed version."
            ) from error


class FitParser(PlainErrors, LightningArgumentParser):
    """LightningCLI's parser, which says mistakes in a sentence."""


class LitGeluCLI(LightningCLI):
    """LightningCLI whose model and data have defaults; it takes the arguments, sub-command first."""

    def __init__(self, args: list[str]) -> None:
        self._given: list[object] | None = None  # with --ckpt_path: what the caller's own configuration holds
        subcommand, *given = args
        # Defaults are arguments before all others. As defaults of the parser they would have arguments of their own
        # (keep, batch_size), and jsonargparse hands those on to another class that takes some of the same name.
        self._words = [subcommand, *DEFAULTS, *readable_twice(given)]
        super().__init__(
            parser_class=FitParser,
            trainer_class=choose.ChoosingTrainer,
            save_config_callback=NewFolderConfig,
            trainer_defaults=dict(TRAINER),
            seed_everything_default=0,  # the same command gives the same run
            parser_kwargs={
                "prog": "lit-gelu",
                "formatter_class": ExamplesHelpFormatter,  # the sub-commands' parsers take it over
                **{name: {"epilog": text} for name, text in EXAMPLES.items()},
            },
            args=self._words,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return Lightning's sub-commands, and ``choose``, with the arguments that no option is made of."""
        return LightningCLI.subcommands() | {"choose": {"model", "datamodule"}}

    def choose(self, model: LightningModule, datamodule: LightningDataModule | None = None, **options: Any) -> None:  # noqa: ARG002
        """Compare activations in the model of the configuration, built anew for each run."""
        choose.run_choice(self.config.choose, self.config_init.choose, datamodule, options)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the options that LightningCLI does not have."""
        parser.add_argument(own_modules.OPTION, type=list[str], default=[], help=own_modules.HELP)
        parser.add_argument(
            "--without_ckpt",
            type=bool,
            default=False,
            help="validate, test, predict: whether to take the model as its class makes it, without --ckpt_path",
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse the arguments; Lightning's own method warns wherever ``sys.argv`` is not empty."""
        self.config = parser.parse_args(cast("list[str]", args))

    def _set_seed(self) -> None:
        """Seed the generators; what they do not take is a mistake of the command line."""
        try:
            super()._set_seed()
        except ValueError as error:
            raise RunError(f"--seed_everything: {error}. Give an integer in that range.") from error

    def before_instantiate_classes(self) -> None:
        """Import what ``--import``, or ``import:`` in a configuration, asks for: it may register activations."""
        own_modules.import_modules(self.config[self.config.subcommand]["import"])
        if self.config.subcommand == "fit" and unused_scheduler(self.config.fit):
            raise RunError(
                "--lr_scheduler was given without --optimizer, and LightningCLI would leave it out: the module's own "
                "optimizer has the scheduler that configure_optimizers gives it. Give --optimizer, too."
            )

    def instantiate_classes(self) -> None:
        """Make the data, the model and the Trainer; a mistake in their arguments is raised as it was written."""
        try:
            with nullcontext() if self._given is None else building_from_file(self._given):
                super().instantiate_classes()
        except ValueError as error:
            mistake = _mistake_behind(error)
            if mistake is None:
                raise
            raise self._of_checkpoint(mistake) from None

    def _of_checkpoint(self, mistake: LitGeluError) -> LitGeluError:
        """Return a mistake as one of the checkpoint, if that and not the configuration names an unknown activation."""
        if self._given is None or not isinstance(mistake, UnknownActivationError):
            return mistake
        name, path = mistake.name, self.config[self.config.subcommand].ckpt_path
        return mistake if any(name in str(given) for given in self._given) else unregistered(mistake, repr(str(path)))

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Make the Trainer; it raises plain errors for values that it does not take."""
        try:
            return super().instantiate_trainer(**kwargs)
        except (ValueError, TypeError, ImportError) as error:
            raise RunError(f"the Trainer does not accept its configuration: {error}") from error

    def _parse_ckpt_path(self) -> None:
        """Take the model's arguments from the checkpoint, as LightningCLI does, but nothing that would be imported."""
        subcommand = self.config.subcommand
        options = self.config[subcommand]
        path = options.get("ckpt_path")
        if subcommand not in BEGIN_ANEW and not path and not options.without_ckpt:
            raise RunError(
                "no --ckpt_path was given, and the weights of an untrained model are random. Give the checkpoint that "
                "lit-gelu fit named, or --without_ckpt true for a model that needs none."
            )
        if options.get("weights_only", True) is None:
            self.config[subcommand].weights_only = True  # Lightning's default lets a file from an address run programs
        if not path or not is_file(path):
            return
        self._given = texts_and_mappings(self.config.as_dict())
        found = checked_arguments(path, options.model.class_path, self._given)
        if found:
            asked = arguments_of(options.model)
            self.config = self.parser.parse_object({subcommand: {"model": found}}, self.config)
            self._compare_given(asked, str(path))

    def _compare_given(self, asked: Mapping[str, Any], path: str) -> None:
        """Refuse options of the model that differ from its checkpoint; warn of a configuration that does."""
        subcommand = self.config.subcommand
        # Without defaults, an argument that is a class of its own lacks those that were not given.
        names = arguments_of(self.parser.parse_args(self._words, defaults=False)[subcommand].model)
        given = {name: asked[name] for name in names if name in asked}
        written = written_options(self._words[1 + len(DEFAULTS) :])
        if given[CLASS] == DEFAULT_MODEL and CLASS not in written:
            del given[CLASS]  # as far as one can see, only the default
        require_those_of_checkpoint(given, arguments_of(self.config[subcommand].model), written, path)

    def _run_subcommand(self, subcommand: str) -> None:
        try:
            with _checkpoint_required(subcommand), self._checkpoint_fits():
                super()._run_subcommand(subcommand)
        except SystemExit:  # of SIGTERM or Ctrl-C
            if subcommand == "fit":
                self._say_checkpoint()
            raise

    def _checkpoint_fits(self) -> AbstractContextManager[None]:
        """Let the model take a checkpoint in which activations were swapped, and say where one does not fit."""
        return swaps_restored(self.model) if self._get(self.config, "ckpt_path") else nullcontext()

    def after_fit(self) -> None:
        """Say where the checkpoint and the logs are."""
        log_dir = self.trainer.log_dir  # broadcast: every rank has to ask
        if not self.trainer.is_global_zero:
            return
        self._say_checkpoint()
        if log_dir:
            sys.stdout.write(f"Logs: {log_dir}\n")

    def _say_checkpoint(self) -> None:
        """Say where the last checkpoint is, or the best one where there is no last."""
        callback = self.trainer.checkpoint_callback
        checkpoint = getattr(callback, "last_model_path", "") or getattr(callback, "best_model_path", "")
        if checkpoint and self.trainer.is_global_zero:
            sys.stdout.write(f"Checkpoint: {checkpoint}\n")


@contextmanager
def _checkpoint_required(subcommand: str) -> Iterator[None]:
    """Refuse ``--ckpt_path last`` that finds no checkpoint, where Lightning warns and goes on, and ``best``."""
    if subcommand in BEGIN_ANEW:
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=r".*No checkpoint will be loaded")
        try:
            yield
        except ValueError as error:
            if 'ckpt_path="best")' not in str(error):
                raise
            raise RunError("--ckpt_path best has no fit before it in this command. Give the path of one.") from error
        except UserWarning as warning:
            if "No checkpoint will be loaded" not in str(warning):  # where all warnings are errors
                raise
            raise RunError("--ckpt_path last finds no checkpoint. Give the path of one.") from warning


def _mistake_behind(error: BaseException) -> LitGeluError | None:
    """Return the error of this package that jsonargparse wrapped in the list of the types that it tried."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, LitGeluError):
        if isinstance(cause, ModuleNotFoundError):
            return _missing_library(cause)
        cause = cause.__cause__
    return cause


def _missing_library(error: ModuleNotFoundError) -> LitGeluError:
    """Return what to say of a library that a class of the configuration, such as a logger, does not find."""
    text = " ".join(str(error).split())
    try:
        if "tensorboard" in text:
            need("tensorboard", extra="tensorboard", what="TensorBoardLogger")
    except MissingExtraError as missing:
        return missing
    return RunError(f"a class of the configuration cannot be made: {text}")


def run(arguments: list[str]) -> int:
    """Run a sub-command of LightningCLI; what Lightning or a checkpoint's reader refuses is a `RunError`."""
    silence_known_warnings()
    if arguments[0] != "fit":
        # ModelCheckpoint's note that its folder is another one now; it saves nothing in these commands.
        warnings.filterwarnings("ignore", message="The dirpath has changed from", category=UserWarning)
    try:
        LitGeluCLI(choose.gathered(arguments))
    except MisconfigurationException as error:
        raise RunError(str(error)) from error
    except pickle.UnpicklingError as error:
        raise RunError(not_plain("The checkpoint", error)) from error
    except SIGTERMException:  # a SystemExit without a code, which would be 0
        return EXIT_TERMINATED
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # else gloo's threads may abort a process that ends (PyTorch #190489)
    return 0
