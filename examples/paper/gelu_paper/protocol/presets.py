"""The protocol in full, a short version that a laptop runs in a quarter of an hour, and departures from the paper's."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from gelu_paper.errors import PaperArgumentError
from gelu_paper.protocol.experiments import EXPERIMENTS, Experiment

PRESETS = {
    "full": "the paper's protocol",
    "quick": "every experiment, shortened to some minutes on two cores: not the paper's protocol",
}

_MNIST = {"learning_rates": (1e-3,), "seeds": 2, "epochs": 3, "seconds": 12.0}
_TWEETS = {"learning_rates": (1e-3,), "seeds": 2, "epochs": 3, "data_args": {"clusters": "50mpaths2"}, "seconds": 9.0}
_TIMIT = {
    "learning_rates": (1e-3,),
    "seeds": 2,
    "epochs": 6,
    "evaluations": 3,
    "task_args": {"width": 256},
    "data_args": {"batch_size": 8},
    "data_requires": {},
    "trainer_args": {"limit_train_batches": 12},  # an epoch of the sample, also where the full corpus is
    "seconds": 10.0,
}
# What differs from the full protocol. Arguments of task, data and Trainer are added to those of the full experiment.
_QUICK: Mapping[str, Mapping[str, Any]] = {
    "mnist": _MNIST,
    "autoencoder": {
        "seeds": 2,
        "epochs": 2,
        "evaluations": 2,
        "trainer_args": {"limit_train_batches": 200},
        "seconds": 20.0,
    },
    "tweets": _TWEETS,
    "timit": _TIMIT,
    "cifar10": {
        "learning_rates": (1e-3,),
        "learning_rate_from": None,
        "seeds": 2,
        "epochs": 6,
        "task_args": {"channels": (16, 32), "epochs": 6},
        "data_args": {"batch_size": 50, "train_samples": 2000, "test_samples": 1000},
        "seconds": 27.0,
    },
    "cifar100": {
        "seeds": 2,
        "epochs": 3,
        "task_args": {"blocks_per_stage": 1, "width_factor": 1, "epochs": 3},
        "data_args": {"batch_size": 64, "train_samples": 1000, "test_samples": 500},
        "seconds": 15.0,
    },
    "mnist_zero_identity": _MNIST,
    "tweets_zero_identity": _TWEETS,
    "timit_zero_identity": _TIMIT,
    "momentum": _MNIST,
    "phi_quality": _MNIST,
}
_MERGED = ("task_args", "data_args", "trainer_args")
_NOT_PROTOCOL = ("seconds", "training_flop", "notes")


def preset(name: str) -> dict[str, Experiment]:
    """Return the experiments of a preset in the order of tables; ``quick`` has no ``cifar10_search``."""
    if name == "full":
        return dict(EXPERIMENTS)
    if name == "quick":
        return {name: _shortened(EXPERIMENTS[name], changes) for name, changes in _QUICK.items()}
    raise PaperArgumentError(f"There is no preset {name!r}. Accepted: {', '.join(PRESETS)}.")


def departures(experiment: Experiment) -> list[str]:
    """Say how an experiment differs from the paper's protocol, one text for each difference."""
    full = EXPERIMENTS[experiment.name]
    found: list[str] = []
    for part in fields(Experiment):
        given, paper = getattr(experiment, part.name), getattr(full, part.name)
        if given == paper or part.name in _NOT_PROTOCOL:
            continue
        if part.name in _MERGED:
            found += [
                f"{name} {value} (full: {paper.get(name, 'not given')})"
                for name, value in given.items()
                if paper.get(name) != value
            ]
        else:
            found.append(f"{part.name} {_text(given)} (full: {_text(paper)})")
    return found


def _shortened(experiment: Experiment, changes: Mapping[str, Any]) -> Experiment:
    merged = {name: {**getattr(experiment, name), **changes.get(name, {})} for name in _MERGED}
    return replace(experiment, **{**changes, **merged, "training_flop": None})


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items()) or "none"
    if isinstance(value, tuple):
        return ", ".join(str(item) for item in value) or "none"
    return "none" if value is None else str(value)
