"""Candidates trained one after another, each by an ordinary `Trainer.fit`."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from lit_gelu import activations
from lit_gelu.choose.candidates import ActivationCandidate, Build
from lit_gelu.choose.fitted_data import as_fitted
from lit_gelu.choose.own_generators import OwnGenerators
from lit_gelu.choose.run_files import TrainedRun, digest
from lit_gelu.data.seeded_order import SeededDataLoader
from lit_gelu.errors import LitGeluError
from lit_gelu.files import write_atomically
from lit_gelu.random_states import seeded

QUIET = {
    "devices": 1,  # a run that is shared by several is another one
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


@dataclass(frozen=True)
class Setup:
    """What all runs have in common.

    Args:
        build: A function of ``activation``.
        data: What they are trained on.
        trainer: Options of their Trainer.
        generators: Those of the data, as every run is to find them.
        tests: Whether a test follows the last epoch.
        tested_on: What the test's samples are told as; empty where runs are not kept.
    """

    build: Build
    data: LightningDataModule
    trainer: Mapping[str, Any]
    generators: OwnGenerators
    tests: bool = False
    tested_on: str = ""

    def new_trainer(self, *callbacks: Callback, **options: Any) -> Trainer:
        """Return a Trainer, with callbacks of its own beside copies of those that were given."""
        given = {**QUIET, **self.trainer, **options}
        own = given.pop("callbacks", None) or []
        copies = deepcopy(list(own) if isinstance(own, list | tuple) else [own])
        return Trainer(**given, callbacks=[*copies, *callbacks])


class EpochNotes(Callback):
    """Notes what a run logs in validation, and with which random numbers its epochs begin."""

    def __init__(self, run: TrainedRun) -> None:
        self.run = run
        self._validated = ""  # a digest of the parameters that were validated last

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Note the random numbers, those of loaders with generators of their own too."""
        self.run.orders.append(digest(torch.get_rng_state(), *_states_of_loaders(trainer)))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the figures of validation."""
        # Out of the pass's own results: what training logs may have the same name.
        results = trainer._results
        if results is not None and not trainer.sanity_checking:
            found = values_of(results, len(trainer.num_val_batches))
            epoch = trainer.current_epoch + (trainer.state.fn == TrainerFn.FITTING)
            self.run.add_epoch(epoch, {name: float(value) for name, value in found.items()})
            self._validated = digest(*initialised(pl_module.parameters()))

    def validate_the_end(self, trainer: Trainer, module: LightningModule, data: LightningDataModule) -> None:
        """Validate once more if what was validated last is not what the run ended with."""
        # So it is where not every epoch is validated, or within them, or where a callback has put averages in.
        if trainer.enable_validation and self._validated != digest(*initialised(module.parameters())):
            trainer.validate(module, datamodule=as_fitted(data, trainer), verbose=False)


def _states_of_loaders(trainer: Trainer) -> list[torch.Tensor]:
    """Return the states of the generators that training loaders have of their own, where an order comes from them."""
    loaders: list[Any] = tree_leaves(trainer.train_dataloader)
    own = [each.generator for each in loaders if not isinstance(each, SeededDataLoader) and hasattr(each, "generator")]
    return [generator.get_state() for generator in own if generator is not None]


def train_alone(setup: Setup, candidate: ActivationCandidate, seed: int, checkpoint: Path) -> TrainedRun:
    """Make a run; whatever goes wrong in it is noted, and does not go further."""
    run, start = TrainedRun(candidate.label, candidate.spec, seed), time.perf_counter()
    try:
        with seeded(seed):
            module = setup.build(activation=candidate.given)
            run.initial = initial_weights(module)
            setup.generators.put_back()
            notes = EpochNotes(run)
            trainer = setup.new_trainer(notes)
            trainer.fit(module, datamodule=setup.data)
            run.diverged = has_diverged(module)
            notes.validate_the_end(trainer, module, setup.data)
            save_checkpoint(checkpoint, trainer.save_checkpoint, module)
            if setup.tests:
                take_test(setup, run, module)
    except Exception as error:  # noqa: BLE001 - of a user's module; the others are to be compared all the same
        run.failure = said(error)
    run.seconds = time.perf_counter() - start
    return run


def take_test(setup: Setup, run: TrainedRun, module: LightningModule) -> None:
    """Note what a run's module logs in a test."""
    (found,) = setup.new_trainer(callbacks=None).test(module, datamodule=setup.data, verbose=False)
    run.test, run.tested_on = {name: float(value) for name, value in found.items()}, setup.tested_on


def has_diverged(module: nn.Module) -> bool:
    """Return whether a parameter is not finite: such a net may still guess right now and then."""
    return not all(bool(parameter.isfinite().all()) for parameter in initialised(module.parameters()))


def save_checkpoint(path: Path, save: Callable[[Path], Any], module: nn.Module) -> None:
    """Save a checkpoint, of the weights alone where the activation cannot be named in one."""
    try:
        with write_atomically(path) as temporary:
            save(temporary)
    except LitGeluError:
        weights = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
        with write_atomically(path) as temporary:
            torch.save({"state_dict": weights}, temporary)


def initial_weights(module: LightningModule) -> str:
    """Return a digest of a module's parameters, those of activations left out, and those that have no values yet."""
    registry = getattr(module, "registry", activations.registry)
    inside = tuple(f"{path}." for path, part in module.named_modules() if registry.entry_of(part) is not None)
    outside = (tensor for name, tensor in module.named_parameters() if not name.startswith(inside))
    return digest(*initialised(outside))


def values_of(results: Any, loaders: int) -> dict[str, Tensor]:
    """Return what a pass over loaders logged, of Lightning's own results of it."""
    found: dict[str, Tensor] = {}
    for loader in (*range(loaders), None):
        results.dataloader_idx = loader
        found |= results.metrics(on_step=False)["callback"]
    return found


def initialised(parameters: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield those parameters that have values: a `LazyLinear` is given them by its first batch."""
    return (parameter for parameter in parameters if not is_lazy(parameter))


def said(error: BaseException) -> str:
    """Return an error in one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
