"""The protocol's table says what the paper says, and names things that exist."""

import importlib

import pytest

from gelu_paper.cells import expand
from gelu_paper.experiments import EXPERIMENTS, preset, variant
from gelu_paper.published import CURVES, NUMBERS
from gelu_paper.request import Request
from lit_gelu import activations
from lit_gelu.errors import ArgumentError

# From the paper's sections 3.1 to 3.5 and its ICLR submission: epochs, seeds, batch size, learning rates.
PAPER = {
    "mnist": (50, 5, 128, (1e-3, 1e-4, 1e-5)),
    "autoencoder": (250, 3, 64, (1e-3, 1e-4)),
    "tweets": (30, 5, 16, (1e-3, 1e-4, 1e-5)),
    "timit": (30, 5, 64, (1e-3, 1e-4, 1e-5)),
    "cifar10_search": (200, 1, 100, (1e-3, 1e-4, 1e-5)),
    "cifar10": (200, 3, 100, ()),
    "cifar100": (50, 3, 128, (0.1,)),
}
# Arms x settings x learning rates x seeds, by hand.
RUNS = {
    "mnist": 4 * 2 * 3 * 5,
    "autoencoder": 4 * 2 * 3,
    "tweets": 4 * 3 * 5,
    "timit": 3 * 3 * 5,
    "cifar10_search": 3 * 3,
    "cifar100": 3 * 3,
    "mnist_zero_identity": (1 + 3) * 3 * 5,
    "momentum": 3 * 2 * 3 * 5,
    "phi_quality": 4 * 2 * 5,
}


@pytest.mark.parametrize("name", PAPER)
def test_the_protocol_is_the_papers(name):
    experiment = EXPERIMENTS[name]
    protocol = experiment.epochs, experiment.seeds, experiment.data_args["batch_size"], experiment.learning_rates
    assert protocol == PAPER[name]


@pytest.mark.parametrize("name", RUNS)
def test_how_many_runs_an_experiment_has(name):
    cells = expand(EXPERIMENTS[name], "full")
    assert len(cells) == len({cell.key for cell in cells}) == RUNS[name]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_classes_exist_and_take_their_arguments(name):
    experiment = EXPERIMENTS[name]
    cell = expand(experiment, "full", learning_rates=dict.fromkeys(experiment.arms, 1e-3))[0]
    for part in ("model", "data"):
        module, _, kind = cell.config[part]["class_path"].rpartition(".")
        arguments = dict(cell.config[part]["init_args"])
        if part == "model" and name.startswith("timit"):
            arguments["width"] = 8  # 17 million weights otherwise
        getattr(importlib.import_module(module), kind)(**arguments)


def test_activations_are_named_as_records_name_them():
    specs = {arm.activation for experiment in EXPERIMENTS.values() for arm in experiment.arms.values()}
    assert {str(activations.spec_of(activations.create(spec))) for spec in specs} == specs


def test_what_was_published_belongs_to_arms():
    for one in (*NUMBERS, *CURVES):
        assert one.arm in EXPERIMENTS[one.experiment].arms


def test_quick_shortens_every_experiment_and_names_it():
    quick = preset("quick")
    assert quick.keys() == EXPERIMENTS.keys() - {"cifar10_search"}
    assert all(experiment.epochs < EXPERIMENTS[name].epochs for name, experiment in quick.items())


def test_runs_of_two_experiments_that_are_the_same_are_seen_to_be():
    of_mnist = {cell.fingerprint for cell in expand(EXPERIMENTS["mnist"], "full")}
    form = expand(EXPERIMENTS["phi_quality"], "full", arms=["gelu_tanh"])
    assert {cell.fingerprint for cell in form} <= of_mnist
    other = expand(EXPERIMENTS["phi_quality"], "full", arms=["gelu"])
    assert not {cell.fingerprint for cell in other} & of_mnist


def test_a_shorter_run_of_a_net_with_a_schedule_is_refused():
    assert variant(EXPERIMENTS["mnist"], epochs=5).epochs == 5
    assert variant(EXPERIMENTS["mnist"], epochs=500).epochs == 50
    with pytest.raises(ArgumentError):
        variant(EXPERIMENTS["cifar100"], epochs=5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"only": ("mnits",)},
        {"arms": ("gleu",)},
        {"only": ("mnist",), "seeds": (5,)},
        {"seeds": (-1,)},
        {"preset": "slow"},
        {"epochs": 0},
    ],
    ids=str,
)
def test_what_there_is_not_is_refused(wrong):
    with pytest.raises(ArgumentError):
        Request(**{"preset": "full", **wrong}).experiments()


def test_a_search_comes_before_what_it_is_for_and_with_all_its_seeds():
    request = Request("full", ("cifar10",), ("gelu",), seeds=(2,))
    search, main = request.experiments()
    assert (search.name, main.name) == ("cifar10_search", "cifar10")
    assert {cell.seed for cell in request.cells(search)} == {0}
    assert {cell.seed for cell in request.cells(main, {"gelu": 1e-4})} == {2}
    assert request.cells(main) == []
