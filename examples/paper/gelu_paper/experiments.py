"""The GELU paper's experiments as a table: what is trained, on what, how often, and how the result is taken.

Every row is the paper's protocol in full (Hendrycks and Gimpel 2016, arXiv 1606.08415, and the code that they
published). `preset("quick")` is a short version of it. Tasks and data sets are described in their classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from lit_gelu.errors import ArgumentError

Selection = Literal["best_validation", "last"]
Metric = Literal["test_error", "test_loss"]
LEARNING_RATE = "learning_rate"
PAPER_LEARNING_RATES = (1e-3, 1e-4, 1e-5)
PRESETS = {
    "full": "the paper's protocol",
    "quick": "every experiment, shortened to some minutes: not the paper's protocol",
}


@dataclass(frozen=True)
class Arm:
    """One of the things that an experiment compares."""

    activation: str  # canonical text, as records have it
    settings: Mapping[str, tuple[float, ...]] | None = None  # in place of the experiment's; None keeps those


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A grid of runs: arms x settings x learning rates x seeds; defaults are what most of the paper's have."""

    name: str  # the first part of every run's key
    title: str
    place: str  # figure, table or section of the paper
    task: str  # class path, as `data`
    data: str
    arms: Mapping[str, Arm]  # from label to arm, in the order of tables
    learning_rates: tuple[float, ...] = PAPER_LEARNING_RATES  # every one is run
    seeds: int = 5  # how many; they are 0, 1, ...
    epochs: int
    evaluations: int  # how many times an epoch both sets are gone through, evenly spaced, the last at its end
    # Where in a run its result is taken: at the evaluation with the lowest validation error, or at the end.
    selection: Selection = "best_validation"
    # What is chosen for each arm by the lowest median over seeds of the lowest validation error: "learning_rate", and
    # names of settings. What is not named is reported separately.
    tuned: tuple[str, ...] = (LEARNING_RATE,)
    metric: Metric = "test_error"  # what tables show, the median over seeds
    settings: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # from an argument of the task to values
    task_args: Mapping[str, Any] = field(default_factory=dict)
    data_args: Mapping[str, Any] = field(default_factory=dict)
    data_requires: Mapping[str, str] = field(default_factory=dict)  # of a property of the data, once prepared
    trainer_args: Mapping[str, Any] = field(default_factory=dict)
    has_schedule: bool = False  # whether a schedule ends with the run, so that a shorter run is another one
    learning_rate_from: str | None = None  # the experiment that tuned it; `learning_rates` is empty then
    robustness_levels: tuple[float, ...] = ()  # of noise that a run's net is measured at in the end
    robust_settings: Mapping[str, float] = field(default_factory=dict)  # that a run must have for that
    notes: str = ""  # what a reader must know: what the paper leaves open, what is ours


NOISE_LEVELS = tuple(step / 4 for step in range(13))  # 0, 0.25, ..., 3

# GELU in its tanh form, as in all of the paper's runs; SiLU where the authors' code had it.
_RELU, _ELU, _GELU, _SILU = Arm("relu"), Arm("elu"), Arm("gelu(approximate='tanh')"), Arm("silu")
_THREE = {"gelu": _GELU, "relu": _RELU, "elu": _ELU}
_FOUR = _THREE | {"silu": _SILU}
_MNIST_ARGS = {"keep": 1.0, "momentum": 0.9}  # written out, so that equal runs of two experiments are seen to be equal

MNIST = Experiment(
    name="mnist",
    title="MNIST classification",
    place="figure 2; under noise figure 3",
    task="lit_gelu.tasks.MNISTClassifier",
    data="lit_gelu.data.MNISTData",
    arms=_FOUR,
    settings={"keep": (1.0, 0.5)},
    epochs=50,
    evaluations=3,
    task_args=_MNIST_ARGS,
    data_args={"batch_size": 128},
    robustness_levels=NOISE_LEVELS,
    robust_settings={"keep": 1.0},
    notes="The paper prints no error, and not the learning rate of its curves: 1e-3 fits them. Noise (figure 3): "
    "uniform in [-a, a], per pixel, not clipped, nets of the last epoch without dropout; the paper says neither.",
)
AUTOENCODER = Experiment(
    name="autoencoder",
    title="MNIST autoencoder",
    place="figure 4",
    task="lit_gelu.tasks.MNISTAutoencoder",
    data="lit_gelu.data.MNISTData",
    arms=_FOUR,
    learning_rates=(1e-3, 1e-4),
    seeds=3,
    epochs=250,
    evaluations=6,
    selection="last",
    tuned=(),
    metric="test_loss",
    data_args={"batch_size": 64, "validation": 0},
    notes="Both learning rates are shown, none is chosen. 250 epochs as in the figure (the authors' code runs 500).",
)
TWEETS = Experiment(
    name="tweets",
    title="parts of speech of tweets",
    place="section 3.3",
    task="lit_gelu.tasks.TweetTagger",
    data="lit_gelu.data.TweetData",
    arms=_FOUR,
    epochs=30,
    evaluations=6,
    task_args={"keep": 0.8},
    data_args={"batch_size": 16},
    notes="Needs the authors' word vectors (embeddings-twitter.txt). Batch and epochs are in their code only.",
)
TIMIT = Experiment(
    name="timit",
    title="TIMIT frame classification",
    place="figure 5, section 3.4",
    task="lit_gelu.tasks.TIMITFrameClassifier",
    data="lit_gelu.data.TIMITData",
    arms=_THREE,
    epochs=30,
    evaluations=6,
    task_args={"keep": 0.5},
    data_args={"batch_size": 64},
    data_requires={"split": "core test"},  # and not the sample that NLTK distributes
    notes="Batches of 64 sentences, core test set. Needs the full corpus (LDC93S1).",
)
CIFAR10_SEARCH = Experiment(
    name="cifar10_search",
    title="CIFAR-10, choice of the learning rate",
    place="section 3.5",
    task="lit_gelu.tasks.CIFAR10ConvNet",
    data="lit_gelu.data.CIFAR10Data",
    arms=_THREE,
    seeds=1,
    epochs=200,
    evaluations=1,
    data_args={"batch_size": 100, "validation": 5000},
    has_schedule=True,
    notes="Trained on 45,000 images, 5,000 held out; the paper does not say how many seeds.",
)
CIFAR10 = replace(
    CIFAR10_SEARCH,
    name="cifar10",
    title="CIFAR-10, nine-layer convolutional net",
    place="figure 6, section 3.5",
    learning_rates=(),
    learning_rate_from="cifar10_search",
    seeds=3,
    selection="last",
    tuned=(),
    data_args={"batch_size": 100, "validation": 0},
    notes="Trained on all 50,000 images with the learning rate that the search chose for the arm.",
)
CIFAR100 = Experiment(
    name="cifar100",
    title="CIFAR-100, wide residual net 40-4",
    place="figure 7, section 3.5",
    task="lit_gelu.tasks.CIFAR100WideResNet",
    data="lit_gelu.data.CIFAR100Data",
    arms=_THREE,
    learning_rates=(0.1,),
    seeds=3,
    epochs=50,
    evaluations=1,
    selection="last",
    tuned=(),
    data_args={"batch_size": 128},
    has_schedule=True,
    notes="An epoch is 100,000 images, the set and its mirror image (781 steps), as in the authors' code.",
)


def _zero_identity_of(experiment: Experiment, task: str, task_args: Mapping[str, Any]) -> Experiment:
    """Return an experiment with the stochastic 0-I map in place of nonlinearity and dropout."""
    return replace(
        experiment,
        name=f"{experiment.name}_zero_identity",
        title=f"{task}, the 0-I map alone",
        place="section 2",
        arms={
            "zero_identity": Arm("zero_identity_map", settings={"keep": (1.0,)}),
            "relu": Arm("relu", settings={"keep": (1.0, 0.75, 0.5)}),
        },
        settings={},
        tuned=("learning_rate", "keep"),
        task_args=task_args,
        robustness_levels=(),
        robust_settings={},
        notes="The stochastic 0-I map trained with no other nonlinearity and no dropout, against ReLU whose dropout is "
        "tuned with the learning rate. The paper says it in one sentence; the numbers are in its ICLR submission.",
    )


MNIST_ZERO_IDENTITY = _zero_identity_of(MNIST, "MNIST", _MNIST_ARGS)
TWEETS_ZERO_IDENTITY = _zero_identity_of(TWEETS, "tweets", {})
TIMIT_ZERO_IDENTITY = _zero_identity_of(TIMIT, "TIMIT", {})
MOMENTUM = replace(
    MNIST,
    name="momentum",
    title="with and without momentum, MNIST",
    place="section 4, first practical tip",
    arms=_THREE,
    settings={"momentum": (0.9, 0.0)},
    robustness_levels=(),
    robust_settings={},
    notes="Ours: the paper advises momentum and shows no run without. Momentum is Adam's beta1.",
)
PHI_QUALITY = replace(
    MNIST,
    name="phi_quality",
    title="how well Phi is approximated, MNIST",
    place="section 4, second practical tip",
    arms={
        "gelu": Arm("gelu"),
        "gelu_tanh": _GELU,
        "gelu_sigmoid": Arm("gelu(approximate='sigmoid')"),
        "silu": _SILU,
    },
    learning_rates=(1e-3,),
    robustness_levels=(),
    robust_settings={},
    notes="Ours: exact Phi, tanh (largest error of the GELU 4.7e-4), sigmoid(1.702 x) (2.0e-2), sigmoid(x) (0.19). The "
    "paper says that the form matters and shows no run. At the one learning rate that mnist's validation error chooses "
    "for all of its arms.",
)

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        MNIST,
        AUTOENCODER,
        TWEETS,
        TIMIT,
        CIFAR10_SEARCH,
        CIFAR10,
        CIFAR100,
        MNIST_ZERO_IDENTITY,
        TWEETS_ZERO_IDENTITY,
        TIMIT_ZERO_IDENTITY,
        MOMENTUM,
        PHI_QUALITY,
    )
}

# What `quick` changes. Arguments of task, data and Trainer are added to those of the full experiment.
_QUICK_MNIST = {"learning_rates": (1e-3,), "seeds": 2, "epochs": 3}
_QUICK_TWEETS = {**_QUICK_MNIST, "data_args": {"clusters": "50mpaths2"}}
_QUICK_TIMIT = {
    "learning_rates": (1e-3,),
    "seeds": 2,
    "epochs": 6,
    "evaluations": 3,
    "task_args": {"width": 256},
    "data_args": {"batch_size": 8},
    "data_requires": {},
    "trainer_args": {"limit_train_batches": 12},  # an epoch of the sample, also where the full corpus is
}
_QUICK: Mapping[str, Mapping[str, Any]] = {
    "mnist": _QUICK_MNIST,
    "autoencoder": {"seeds": 2, "epochs": 2, "evaluations": 2, "trainer_args": {"limit_train_batches": 200}},
    "tweets": _QUICK_TWEETS,
    "timit": _QUICK_TIMIT,
    "cifar10": {
        "learning_rates": (1e-3,),
        "learning_rate_from": None,
        "seeds": 2,
        "epochs": 6,
        "task_args": {"channels": (16, 32), "epochs": 6},
        "data_args": {"batch_size": 50, "train_samples": 2000, "test_samples": 1000},
    },
    "cifar100": {
        "seeds": 2,
        "epochs": 3,
        "task_args": {"blocks_per_stage": 1, "width_factor": 1, "epochs": 3},
        "data_args": {"batch_size": 64, "train_samples": 1000, "test_samples": 500},
    },
    "mnist_zero_identity": _QUICK_MNIST,
    "tweets_zero_identity": _QUICK_TWEETS,
    "timit_zero_identity": _QUICK_TIMIT,
    "momentum": _QUICK_MNIST,
    "phi_quality": _QUICK_MNIST,
}


def preset(name: str) -> dict[str, Experiment]:
    """Return the experiments of a preset in the order of tables; ``quick`` has no ``cifar10_search``."""
    if name not in PRESETS:
        raise ArgumentError(f"There is no preset {name!r}. Accepted: {', '.join(PRESETS)}.")
    if name == "full":
        return dict(EXPERIMENTS)
    return {name: _with(EXPERIMENTS[name], changes) for name, changes in _QUICK.items()}


def variant(experiment: Experiment, *, clusters: str | None = None, epochs: int | None = None) -> Experiment:
    """Return an experiment with word clusters in the place of word vectors, or with runs that end earlier."""
    if clusters is not None and experiment.data == TWEETS.data:
        experiment = _with(experiment, {"data_args": {"clusters": clusters}})
    if epochs is None or epochs >= experiment.epochs:
        return experiment
    if experiment.has_schedule:
        raise ArgumentError(
            f"--epochs {epochs}: the schedule of {experiment.name} ends with the run, so that a shorter run is another "
            "one from its first step. Leave --epochs out, or name other experiments with --only."
        )
    return replace(experiment, epochs=epochs)


def _with(experiment: Experiment, changes: Mapping[str, Any]) -> Experiment:
    """Return an experiment with other values, arguments added to those that it has."""
    added = {
        name: {**getattr(experiment, name), **changes.get(name, {})}
        for name in ("task_args", "data_args", "trainer_args")
    }
    return replace(experiment, **{**changes, **added})
