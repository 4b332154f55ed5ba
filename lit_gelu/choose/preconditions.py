"""What is found out before and after training: what a module logs, and whether all began alike."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.model_helpers import is_overridden

from lit_gelu.choose.candidates import ActivationCandidate, check_built_anew
from lit_gelu.choose.errors import ChoiceArgumentError
from lit_gelu.choose.metric import Stage
from lit_gelu.choose.one_by_one import Setup, said
from lit_gelu.choose.outcome import CandidateReport
from lit_gelu.choose.short_fit import names_in_validation
from lit_gelu.choose.verdict import listed
from lit_gelu.data import InMemoryDataModule
from lit_gelu.errors import shown
from lit_gelu.random_states import seeded


def check_seeds(seeds: int | Sequence[int]) -> list[int]:
    """Return the seeds; one alone has no spread, by which a difference could be told from chance."""
    given: Any = list(range(seeds)) if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ChoiceArgumentError(f"seeds={shown(seeds)} is not accepted. Give how many, or a list of whole numbers.")
    if not all(isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in given):
        raise ChoiceArgumentError(f"seeds={shown(seeds)} is not accepted. Give whole numbers from 0 on.")
    if len(set(given)) != len(given) or len(given) < 2:
        what = "has one twice" if len(given) > 1 else "has no spread: no interval is possible, and nothing is decided"
        raise ChoiceArgumentError(f"seeds={shown(seeds)} {what}. Give five seeds or more.")
    return list(given)


def logged_by(
    setup: Setup, candidates: Sequence[ActivationCandidate], seed: int, metric: str | None
) -> Mapping[Stage, Sequence[str]]:
    """Return the names of what is logged in validation and in a test, by one batch of each before any run is made.

    A test is tried only where validation has not the metric. A candidate whose training fails before the metric is
    logged stands back behind the others.

    Raises:
        ChoiceArgumentError: If no candidate can be built and measured.
    """
    failures, incomplete = [], None
    for candidate in candidates:
        try:
            found, is_complete = _logged(setup, candidate, seed, metric)
        except ChoiceArgumentError:
            raise
        except Exception as error:  # noqa: BLE001 - of a user's module; it is named if no candidate does better
            failures.append(f"{candidate.label}: {said(error)}")
        else:
            if is_complete:
                return found
            incomplete = incomplete or found
    if incomplete is not None:
        return incomplete
    raise ChoiceArgumentError(
        f"No candidate can be built and measured. {'; '.join(failures)}. Try build and one of them in a Trainer first."
    )


def _logged(
    setup: Setup, candidate: ActivationCandidate, seed: int, metric: str | None
) -> tuple[dict[Stage, list[str]], bool]:
    """Return the names, and whether they are all."""
    check_built_anew(setup.build, candidate)  # before a step is made that would change what they share
    found: dict[Stage, list[str]] = {"val": [], "test": []}
    is_complete = True
    with seeded(seed):
        module = setup.build(activation=candidate.given)
        if _has(setup.data, "val_dataloader") and setup.trainer.get("limit_val_batches") != 0:
            found["val"], is_complete = names_in_validation(setup, module, metric)
        if metric not in found["val"] and (metric or not found["val"]) and _has(setup.data, "test_dataloader"):
            trainer = setup.new_trainer(callbacks=None, limit_test_batches=1)
            for values in trainer.test(module, datamodule=setup.data, verbose=False):
                found["test"] += values
    return found, is_complete or metric in found["test"]


def _has(data: LightningDataModule, name: str) -> bool:
    return bool(is_overridden(name, data, LightningDataModule))  # by its class, or as from_datasets does, by itself


def check_equal_starts(candidates: Sequence[CandidateReport], data: LightningDataModule) -> list[str]:
    """Say which candidates did not begin with the weights of the others, or took other batches, at equal seeds."""
    is_drawn = not _is_ordered_by_seed(data)
    first, notes = candidates[0], []
    for candidate in candidates[1:]:
        pairs = [
            (one, other)
            for one, other in zip(first.runs, candidate.runs, strict=True)
            if one.initial and other.initial  # of runs that failed before, nothing is known
        ]
        if any(one.initial != other.initial for one, other in pairs):
            notes.append(
                f"{listed([first.label, candidate.label])} began with other weights at equal seeds: the module draws "
                "them depending on the activation, so that the pairs share less than they could."
            )
        epochs = min((min(len(one.orders), len(other.orders)) for one, other in pairs), default=0)
        parted = [n for n in range(epochs) if any(one.orders[n] != other.orders[n] for one, other in pairs)]
        if parted and is_drawn:
            notes.append(
                f"{listed([first.label, candidate.label])} have batches in another order from epoch {parted[0] + 1} "
                "on, because one of them draws random numbers that the other does not."
            )
    return notes


def _is_ordered_by_seed(data: LightningDataModule) -> bool:
    """Tell whether the order of training samples comes from the seed alone, whatever else a run draws."""
    loads_itself = type(data).train_dataloader is not InMemoryDataModule.train_dataloader
    return isinstance(data, InMemoryDataModule) and data.order == "seed" and not loads_itself
