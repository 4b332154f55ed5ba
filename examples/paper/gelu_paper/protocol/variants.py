"""A preset's experiments with other data, arithmetic, random numbers or fewer epochs than the paper's."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gelu_paper.errors import PaperArgumentError
from gelu_paper.protocol.experiments import TWEETS, Experiment
from gelu_paper.protocol.presets import preset


@dataclass(frozen=True)
class ProtocolVariant:
    """What differs from a preset; without arguments nothing does."""

    clusters: str | None = None  # file of word clusters in the place of the tweets' word vectors
    fused_optimizer: bool = False  # torch's Adam makes its step in one kernel
    noise: Literal["global", "keys"] = "global"  # keys: dropout and order of samples depend on the seed alone
    epochs: int | None = None  # after which runs end, where they are longer


def own_experiments(preset_name: str, variant: ProtocolVariant) -> dict[str, Experiment] | None:
    """Return a preset's experiments with what a variant asks for; ``None`` to leave all as it is."""
    if variant == ProtocolVariant():
        return None
    return {name: _changed(experiment, variant) for name, experiment in preset(preset_name).items()}


def check_variant(variant: ProtocolVariant, preset_name: str, names: Sequence[str]) -> None:
    """Refuse what would change nothing in the experiments that were asked for, and epochs of a schedule."""
    if variant == ProtocolVariant():
        return
    table = preset(preset_name)
    chosen, said = [table[name] for name in names], ", ".join(names)
    if variant.clusters is not None and not any(experiment.data == TWEETS.data for experiment in chosen):
        raise PaperArgumentError(f"--tweet-clusters: {said} have no tweets. Leave it out.")
    if variant.fused_optimizer and not any(experiment.has_fused_optimizer for experiment in chosen):
        raise PaperArgumentError(f"--fused-optimizer: {said} have no optimizer with a fused kernel. Leave it out.")
    if variant.noise == "keys" and not any(experiment.keyed for experiment in chosen):
        raise PaperArgumentError(f"--noise keys: {said} draw random numbers that have no keys. Leave it out.")
    if variant.epochs is not None:
        _check_epochs(variant.epochs, chosen)


def _check_epochs(epochs: int, chosen: Sequence[Experiment]) -> None:
    scheduled = [experiment.name for experiment in chosen if experiment.has_schedule]
    longest = max(experiment.epochs for experiment in chosen)
    if scheduled:
        raise PaperArgumentError(
            f"--epochs {epochs}: the schedules of {', '.join(scheduled)} end with the run, so that a shorter run is "
            "another one from its first step. Leave --epochs out, or name other experiments with --only."
        )
    if not 1 <= epochs < longest:
        raise PaperArgumentError(
            f"--epochs {epochs} given; accepted: 1 to {longest - 1}, as the longest of these runs has {longest}."
        )


def _changed(experiment: Experiment, variant: ProtocolVariant) -> Experiment:
    task, data = dict(experiment.task_args), dict(experiment.data_args)
    if variant.clusters is not None and experiment.data == TWEETS.data:
        data["clusters"] = variant.clusters
    if variant.noise == "keys":
        task |= {"noise": "keys"} if "noise" in experiment.keyed else {}
        data |= {"order": "seed"} if "order" in experiment.keyed else {}
    if variant.fused_optimizer and experiment.has_fused_optimizer:
        task["fused_optimizer"] = True
    is_shorter = variant.epochs is not None and variant.epochs < experiment.epochs and not experiment.has_schedule
    epochs = variant.epochs if is_shorter and variant.epochs is not None else experiment.epochs
    share = epochs / experiment.epochs
    return replace(
        experiment,
        task_args=task,
        data_args=data,
        epochs=epochs,
        training_flop=None if experiment.training_flop is None else experiment.training_flop * share,
        seconds=None if experiment.seconds is None else experiment.seconds * share,
    )
