"""The protocol in full, a short version that a laptop runs in a quarter of an hour, and departures from the paper's."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from lit_gelu.paper.errors import PaperArgumentError
from lit_gelu.paper.protocol.experiments import EXPERIMENTS, Experiment
from lit_gelu.paper.records.run_record import RunRecord

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


QUICK = "quick: not the paper's protocol"
# How `TIMITData` describes the full corpus with its standard core test; everything else is another set.
_FULL_TIMIT = "TIMIT, full corpus, standard core test"
_FLOAT32 = ("32-true", "32", 32)


def labels_of(records: Iterable[RunRecord]) -> list[str]:
    """Say wherever numbers of runs are shown that protocol, data or arithmetic are not the paper's; `QUICK` first."""
    given = list(records)
    quick = [QUICK] if any(record.preset != "full" for record in given) else []
    return list(dict.fromkeys([*quick, *(text for record in given for text in _labels(record))]))


def _labels(record: RunRecord) -> Iterator[str]:
    """Yield what a run's configuration says, and what its data module said that it found."""
    data: Mapping[str, Any] = record.config.get("data", {})
    name = str(data.get("class_path", "")).rpartition(".")[2]
    arguments = data.get("init_args", {})
    if name == "TweetData" and arguments.get("clusters"):
        yield "substitute data: bit paths of word clusters, not the paper's word vectors"
    corpus = str(record.data.get("corpus", "a corpus that the record does not name"))
    if name == "TIMITData" and not corpus.startswith(_FULL_TIMIT):
        found = "NLTK's sample of TIMIT, not the corpus" if "sample" in corpus else corpus.partition(":")[0]
        yield f"substitute data: {found}"
    if name.startswith("CIFAR") and record.data.get("arrays") is not None:
        yield f"images from {record.data['arrays']}, which need not be the whole of CIFAR"
    if name == "DigitsData":
        yield "substitute data: scikit-learn's digits, not MNIST"
    for argument, part in (("train_samples", "training"), ("test_samples", "test")):
        if arguments.get(argument) is not None:
            yield f"only the first {arguments[argument]} {part} samples"
    yield from _shorter(record)
    precision = record.config.get("trainer", {}).get("precision", _FLOAT32[0])
    if precision not in _FLOAT32:
        yield f"precision {precision}, not 32 bit"
    if record.config.get("model", {}).get("init_args", {}).get("noise") == "keys":
        yield "random numbers by key (--noise keys)"
    elif arguments.get("order") == "seed":
        yield "order of samples by seed (--noise keys)"


def _shorter(record: RunRecord) -> Iterator[str]:
    """Yield what has to be said of a run that ended before the protocol's end; ``quick`` says so itself."""
    epochs = record.config.get("trainer", {}).get("max_epochs")
    if record.preset == "full" and record.experiment in EXPERIMENTS and epochs is not None:
        full = EXPERIMENTS[record.experiment].epochs
        if epochs < full:
            yield f"ended after {epochs} of {full} epochs"
