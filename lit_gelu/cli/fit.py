"""LightningCLI with this package's tasks, data and callbacks: fit, validate, test, predict and choose."""

import pickle
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, cast

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities.exceptions import SIGTERMException

# LightningCLI finds a class by its short name (`--trainer.callbacks ActivationSwap`) once it is imported.
import lit_gelu.callbacks  # noqa: F401
from lit_gelu.activations import building_from_file
from lit_gelu.callbacks.checkpoint_file import no_larger_than, not_plain, read_checkpoint, texts_and_mappings
from lit_gelu.cli import choose
from lit_gelu.cli.commands import IMPORT, IMPORT_HELP, CommandParser, ExamplesHelpFormatter, import_modules
from lit_gelu.cli.loading import checked_arguments
from lit_gelu.cli.terminal import silence_known_warnings
from lit_gelu.data import DigitsData
from lit_gelu.errors import ArgumentError, CheckpointError, LitGeluError, UnsupportedRunError, message_of
from lit_gelu.files import is_file, is_special
from lit_gelu.surgery.swap import is_mark
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
  lit-gelu fit --config examples/mnist_gelu.yaml --seed_everything 1
  lit-gelu fit --import my_module --model MyNet --data MyData       your own, from the current folder
  lit-gelu fit --trainer.callbacks+ ExactResume     with checkpoints from which --ckpt_path goes on to the bit, also
                                                    after a swap: see examples/digits_relu_to_gelu.yaml
  lit-gelu fit --print_config > my.yaml             every option with its value, to edit and pass to --config
""",
    "validate": "examples:\n  lit-gelu validate --ckpt_path runs/digits_gelu/version_0/checkpoints/last.ckpt\n",
    "test": "examples:\n  lit-gelu test --ckpt_path runs/digits_gelu/version_0/checkpoints/last.ckpt\n",
    "predict": """\
Predictions go to the callbacks: add one of Lightning's BasePredictionWriter to trainer.callbacks to keep them.

examples:
  lit-gelu predict --ckpt_path last.ckpt --trainer.callbacks+ my_package.MyWriter
""",
    "choose": choose.EXAMPLES,
}


class NewFolderConfig(SaveConfigCallback):
    """Saves the configuration beside the logs, and says how to go on where a run's is there already."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Save ``config.yaml``; where another run's is there, refuse to fit, and leave it in a test."""
        try:
            super().setup(trainer, pl_module, stage)
        except RuntimeError as error:
            if stage == "fit":  # nothing goes on from a test
                raise ArgumentError(
                    f"{trainer.log_dir!r} holds a run already ({self.config_filename}), and nothing is overwritten. "
                    "Give another --trainer.default_root_dir, or a logger without a fixed version."
                ) from error


class FitParser(CommandParser, LightningArgumentParser):
    """LightningCLI's parser, which says mistakes without its usage of sixty lines."""


class LitGeluCLI(LightningCLI):
    """LightningCLI whose model and data have defaults; it takes the arguments, sub-command first."""

    def __init__(self, words: list[str]) -> None:
        self._of_caller: list[object] | None = None  # with --ckpt_path: what the caller's own configuration holds
        subcommand, *self._words = words
        try:
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
                # Defaults are arguments before all others. As defaults of the parser they would have arguments of their
                # own (keep, batch_size), and jsonargparse hands those on to another class that takes some of that name.
                args=[subcommand, *DEFAULTS, *self._words],
            )
        except (ValueError, ModuleNotFoundError) as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, LitGeluError | ModuleNotFoundError):
                cause = cause.__cause__  # jsonargparse lists the types that it tried
            raise cause if isinstance(cause, LitGeluError) else ArgumentError(message_of(cause or error)) from error

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return Lightning's sub-commands, and ``choose``, with the arguments that no option is made of."""
        return LightningCLI.subcommands() | {"choose": {"model", "datamodule"}}

    def choose(self, model: LightningModule, datamodule: LightningDataModule | None = None, **options: Any) -> None:  # noqa: ARG002
        """Compare activations in the model of the configuration, built anew for each run."""
        choose.run_choice(self.config.choose, self.config_init.choose, datamodule, options)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the option that LightningCLI does not have."""
        parser.add_argument(IMPORT, type=list[str], default=[], help=IMPORT_HELP)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse the arguments; Lightning's own method warns wherever ``sys.argv`` is not empty."""
        self.config = parser.parse_args(cast("list[str]", args))

    def before_instantiate_classes(self) -> None:
        """Import what ``import:`` in a configuration asks for: it may register activations."""
        import_modules(self.config[self.config.subcommand]["import"])

    def instantiate_classes(self) -> None:
        """Make the data, the model and the Trainer, from a checkpoint's arguments without importing what they name."""
        with ExitStack() as stack:
            if self._of_caller is not None:
                options = self.config[self.config.subcommand]
                path, cls = options.ckpt_path, options.model.class_path
                stack.enter_context(building_from_file(self._of_caller))
                stack.enter_context(no_larger_than(read_checkpoint(path), cls, repr(str(path))))
            super().instantiate_classes()

    def _parse_ckpt_path(self) -> None:
        """Take the model's arguments from the checkpoint, as LightningCLI does, but nothing that would be imported."""
        # It takes the place of a private method of LightningCLI (2.6), which has the parser import what the file names.
        subcommand = self.config.subcommand
        options = self.config[subcommand]
        path = options.get("ckpt_path")
        if subcommand not in BEGIN_ANEW and (path in {"best", "last", "hpc"} or not path):
            raise ArgumentError(
                f"--ckpt_path {path or 'was not given'}, and the weights of an untrained model are random. Give the "
                "path of the checkpoint that lit-gelu fit named."
            )
        if options.get("weights_only", True) is None:
            self.config[subcommand].weights_only = True  # Lightning's default lets a file from an address run programs
        if not path or not (is_file(path) or is_special(path)):
            return
        self._of_caller = texts_and_mappings(self.config.as_dict())
        arguments = checked_arguments(path, options.model.class_path, self._of_caller)
        if not arguments:
            return
        # Weights belong to the arguments that they were trained with, and the optimizer's state brings its learning
        # rate along. A configuration file may serve several runs, so that it may differ.
        names = [word.partition("=")[0] for word in self._words]
        asked = [name for name in names if name.startswith("--model.")]
        if "--model" in names and options.model.class_path != arguments["class_path"]:
            asked.append("--model")
        if asked:
            raise ArgumentError(
                f"{asked[0]} is not accepted beside --ckpt_path: a model is built as it was trained, by what {path!r} "
                "says. Leave it out. In Python load_from_checkpoint takes other arguments; another activation comes "
                "with the callback ActivationSwap."
            )
        self.config = self.parser.parse_object({subcommand: {"model": arguments}}, self.config)

    def _run_subcommand(self, subcommand: str) -> None:
        """Wait for `start`: what is raised before is a mistake in the configuration."""
        # A private method of LightningCLI (2.6): there is no other place around the Trainer's work.

    def start(self) -> None:
        """Run the sub-command."""
        try:
            with weights_explained(self.model) if self._get(self.config, "ckpt_path") else nullcontext():
                super()._run_subcommand(self.config.subcommand)
        except SystemExit:  # of SIGTERM or Ctrl-C
            if self.subcommand == "fit":
                self._say_checkpoint()
            raise

    def after_fit(self) -> None:
        """Say where the checkpoint and the logs are."""
        log_dir = self.trainer.log_dir  # broadcast: every rank has to ask
        if self.trainer.is_global_zero:
            self._say_checkpoint()
            sys.stdout.write(f"Logs: {log_dir}\n" if log_dir else "")

    def _say_checkpoint(self) -> None:
        callback = self.trainer.checkpoint_callback
        checkpoint = getattr(callback, "last_model_path", "") or getattr(callback, "best_model_path", "")
        if checkpoint and self.trainer.is_global_zero:
            sys.stdout.write(f"Checkpoint: {checkpoint}\n")


@contextmanager
def weights_explained(module: LightningModule) -> Iterator[None]:
    """Say where the weights of a checkpoint do not fit a module, which for torch is no mistake of the user's."""
    load = module.load_state_dict

    def load_state_dict(state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        if set(filter(is_mark, state_dict)) - module.state_dict().keys():
            raise CheckpointError(
                f"Activations of {type(module).__name__} were swapped before this checkpoint was saved. Give the "
                "ActivationSwap that it was trained with in --trainer.callbacks, or the configuration of that run."
            )
        try:
            return load(state_dict, *args, **kwargs)
        except RuntimeError as error:
            raise CheckpointError(f"{message_of(error)}. Give --model and its arguments as in training.") from error

    module.load_state_dict = load_state_dict  # type: ignore[method-assign]
    try:
        yield
    finally:
        del module.load_state_dict


def run(words: list[str]) -> int:
    """Run a sub-command of LightningCLI; what Lightning or a checkpoint's reader refuses is a `LitGeluError`."""
    silence_known_warnings()
    if words[0] != "fit":
        # ModelCheckpoint's note that its folder is another one now; it saves nothing in these commands.
        warnings.filterwarnings("ignore", message="The dirpath has changed from", category=UserWarning)
    try:
        LitGeluCLI(_with_imports(choose.with_lists(words))).start()
    except MisconfigurationException as error:
        raise UnsupportedRunError(str(error)) from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(not_plain("The checkpoint", error)) from error
    except SIGTERMException:  # a SystemExit without a code, which would be 0
        return EXIT_TERMINATED
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # else gloo's threads may abort a process that ends (PyTorch #190489)
    return 0


def _with_imports(words: list[str]) -> list[str]:
    """Import what ``--import`` names before LightningCLI parses: short names of classes are then known."""
    # In the form that adds to a list, every one counts.
    rest, rewritten = iter(words), list[str]()
    for word in rest:
        option, equals, name = word.partition("=")
        if option in {IMPORT, f"{IMPORT}+"}:
            name = name if equals else next(rest, "")
            import_modules([name])
            word = f"{IMPORT}+={name}"
        rewritten.append(word)
    return rewritten
