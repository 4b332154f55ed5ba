"""The table of experiments: the paper's numbers of runs, and classes that take the arguments."""

import inspect
import itertools
import json

import pytest

from gelu_paper.errors import OtherConfigurationError, PaperArgumentError
from gelu_paper.planning import RunRequest
from gelu_paper.protocol.cells import (
    Cell,
    check_same_configuration,
    data_name,
    expand,
    fingerprint,
    identical_cells,
)
from gelu_paper.protocol.experiments import EXPERIMENTS, NOISE_LEVELS
from gelu_paper.protocol.presets import PRESETS, departures, preset
from gelu_paper.records.run_record import RunRecord, RunResult
from gelu_paper.training.cell_training import build, build_data, import_class

RATES = dict.fromkeys(("gelu", "relu", "elu"), 1e-3)
# Arms x seeds x learning rates x settings of the paper and its submission, with ReLU, ELU and GELU alone.
PUBLISHED_RUNS = {
    "mnist": 3 * 5 * 3 * 2,
    "autoencoder": 3 * 3 * 2,
    "tweets": 3 * 5 * 3,
    "timit": 3 * 5 * 3,
    "cifar10_search": 3 * 3,
    "cifar10": 3 * 3,
    "cifar100": 3 * 3,
    "mnist_zero_identity": 5 * 3 + 5 * 3 * 3,
    "tweets_zero_identity": 5 * 3 + 5 * 3 * 3,
    "timit_zero_identity": 5 * 3 + 5 * 3 * 3,
}


def cells_of(name: str, preset_name: str = "full", **filters) -> list[Cell]:
    return expand(preset(preset_name)[name], preset_name, learning_rates=RATES, **filters)


def all_cells(preset_name: str) -> list[Cell]:
    return [cell for name in preset(preset_name) for cell in cells_of(name, preset_name)]


def record_of(cell: Cell, **changed) -> RunRecord:
    facts = {name: getattr(cell, name) for name in ("key", "preset", "experiment", "arm", "activation", "setting")}
    facts |= {"learning_rate": cell.learning_rate, "seed": cell.seed, "config": cell.config}
    made = {"versions": {}, "machine": {}, "started": "", "seconds": 1.0, "curves": {}, "result": RunResult()}
    return RunRecord(**(facts | made | changed))


@pytest.mark.parametrize("name", PUBLISHED_RUNS)
def test_the_paper_s_number_of_runs(name):
    arms = ["gelu", "relu", "elu", "zero_identity"]
    assert len(cells_of(name, arms=arms)) == PUBLISHED_RUNS[name]


def test_405_runs_of_which_360_are_different():
    cells = [cell for name in PUBLISHED_RUNS for cell in cells_of(name, arms=["gelu", "relu", "elu", "zero_identity"])]
    assert len(cells) == 405
    assert len(identical_cells(cells)) == 360


@pytest.mark.parametrize(("name", "runs"), [("mnist", 120), ("autoencoder", 24), ("tweets", 60)])
def test_silu_is_added_where_the_authors_code_has_it(name, runs):
    assert len(cells_of(name)) == runs
    with_silu = {name for name, experiment in EXPERIMENTS.items() if "silu" in experiment.arms}
    assert with_silu == {"mnist", "autoencoder", "tweets", "phi_quality"}


def test_ablations():
    assert {cell.config["model"]["init_args"]["momentum"] for cell in cells_of("momentum")} == {0.0, 0.9}
    assert [cell.activation for cell in cells_of("phi_quality", seeds=[0])[::2]] == [
        "gelu", "gelu(approximate='tanh')", "gelu(approximate='sigmoid')", "silu",
    ]  # fmt: skip
    # Half of both is in the MNIST grid already: momentum .9 without dropout, tanh and SiLU.
    both = [*cells_of("momentum"), *cells_of("phi_quality")]
    mnist = cells_of("mnist")
    assert len(identical_cells([*mnist, *both])) == len(mnist) + len(both) - 45 - 20


def test_steps_and_epochs_of_the_paper():
    rows = {
        name: (experiment.epochs, experiment.data_args["batch_size"], experiment.seeds, experiment.evaluations)
        for name, experiment in EXPERIMENTS.items()
    }
    assert rows["mnist"] == (50, 128, 5, 3)
    assert rows["autoencoder"] == (250, 64, 3, 6)
    assert rows["tweets"] == (30, 16, 5, 6)
    assert rows["timit"] == (30, 64, 5, 6)
    assert rows["cifar10"] == (200, 100, 3, 1)
    assert rows["cifar100"] == (50, 128, 3, 1)
    assert NOISE_LEVELS == (0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 2.75, 3)


@pytest.mark.parametrize("preset_name", PRESETS)
def test_keys_are_different_and_configurations_are_plain_data(preset_name):
    cells = all_cells(preset_name)
    assert len({cell.key for cell in cells}) == len(cells)
    assert all(json.loads(json.dumps(cell.config)) == cell.config for cell in cells)
    assert all(cell.preset == preset_name for cell in cells)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_tasks_and_data_take_their_arguments(name):
    """In the short preset (where there is one: its nets are small) they are built; in full the names are checked."""
    for cell in cells_of(name)[:1]:
        for part in (cell.config["model"], cell.config["data"]):
            inspect.signature(import_class(part["class_path"])).bind(**part["init_args"])
    if name in preset("quick"):
        cell = cells_of(name, "quick")[0]
        model = build(cell.config["model"])
        assert str(model.activation_spec) == cell.activation
        assert (
            build_data(cell.config["data"], "nowhere").hparams["batch_size"]
            == cell.config["data"]["init_args"]["batch_size"]
        )


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("preset_name", PRESETS)
def test_schedules_end_with_the_training(name, preset_name):
    """Both nets have a schedule that is told the number of epochs."""
    cell = cells_of(name, preset_name)[0]
    given = cell.config["model"]["init_args"].get("epochs")
    default = inspect.signature(import_class(cell.config["model"]["class_path"])).parameters["epochs"].default
    assert (default if given is None else given) == cell.config["trainer"]["max_epochs"]


def test_keys_can_be_read():
    assert [cell.key for cell in cells_of("mnist", arms=["gelu"], seeds=[3])][:4] == [
        "mnist/gelu/keep=1/lr=0.001/seed=3",
        "mnist/gelu/keep=1/lr=0.0001/seed=3",
        "mnist/gelu/keep=1/lr=1e-05/seed=3",
        "mnist/gelu/keep=0.5/lr=0.001/seed=3",
    ]
    assert cells_of("autoencoder")[0].key == "autoencoder/gelu/lr=0.001/seed=0"
    assert cells_of("mnist_zero_identity")[0].key == "mnist_zero_identity/zero_identity/keep=1/lr=0.001/seed=0"


def test_noise_is_measured_on_nets_without_dropout():
    measured = {cell.setting["keep"]: cell.robustness_levels for cell in cells_of("mnist")}
    assert measured == {1.0: NOISE_LEVELS, 0.5: ()}
    assert not any(cell.robustness_levels for name in EXPERIMENTS if name != "mnist" for cell in cells_of(name))


def test_the_first_of_identical_cells_measures_all_that_any_does():
    cells = [*cells_of("mnist_zero_identity", seeds=[0]), *cells_of("mnist", seeds=[0])]
    groups = [group for group in identical_cells(cells) if len(group) > 1]
    assert len(groups) == 6  # ReLU, two values of keep, three learning rates
    assert all(bool(group[0].robustness_levels) == (group[0].setting["keep"] == 1.0) for group in groups)


def test_fingerprints_tell_runs_apart():
    cells = cells_of("mnist", arms=["gelu", "relu"], seeds=[0, 1])
    assert len({cell.fingerprint for cell in cells}) == len(cells)
    assert cells[0].fingerprint == fingerprint(cells[0].config, cells[0].seed)
    assert len({data_name(cell.config["data"]) for cell in cells}) == 1


def test_filters():
    assert {cell.arm for cell in cells_of("mnist", arms=["elu", "no such arm"])} == {"elu"}
    assert {cell.seed for cell in cells_of("mnist", seeds=[1, 4, 7])} == {1, 4}
    with pytest.raises(PaperArgumentError, match="0 and above"):
        cells_of("mnist", seeds=[-1])


def test_a_seed_that_is_given_twice_is_one_seed():
    assert cells_of("mnist", seeds=(1, 0, 1)) == cells_of("mnist", seeds=(1, 0))


def test_cells_of_a_searched_learning_rate_wait_for_it():
    experiment = preset("full")["cifar10"]
    assert expand(experiment, "full") == []
    keys = [cell.key for cell in expand(experiment, "full", learning_rates={"elu": 1e-4})]
    assert keys == [f"cifar10/elu/lr=0.0001/seed={seed}" for seed in range(3)]


def test_another_configuration_under_the_same_name_is_refused():
    cell = cells_of("mnist")[0]
    record = record_of(cell)
    check_same_configuration(cell, record)
    changed = json.loads(json.dumps(cell.config))
    changed["trainer"]["max_epochs"] = 3
    del changed["data"]["init_args"]["batch_size"]
    with pytest.raises(OtherConfigurationError) as caught:
        check_same_configuration(cell, record_of(cell, config=changed, preset="quick"))
    message = str(caught.value)
    assert "preset: 'quick' in the record, 'full' now" in message
    assert "trainer.max_epochs: 3 in the record, 50 now" in message
    assert "data.init_args.batch_size: None in the record, 128 now" in message
    assert "--results" in message


def test_the_full_preset_departs_from_nothing_and_the_quick_one_says_in_what():
    assert not any(departures(experiment) for experiment in preset("full").values())
    for experiment in preset("quick").values():
        assert departures(experiment)
    assert "epochs 3 (full: 50)" in departures(preset("quick")["mnist"])
    assert "data_requires none (full: split core test)" in departures(preset("quick")["timit"])
    with pytest.raises(PaperArgumentError, match="no preset 'fast'"):
        preset("fast")


def test_the_quick_preset_has_every_experiment_but_the_search():
    assert set(EXPERIMENTS) - set(preset("quick")) == {"cifar10_search"}
    for name, experiment in preset("quick").items():
        assert experiment.arms == EXPERIMENTS[name].arms
        assert experiment.settings == EXPERIMENTS[name].settings


def test_requests():
    assert [experiment.name for experiment in RunRequest("full").experiments()] == list(EXPERIMENTS)
    assert RunRequest("full").runs(EXPERIMENTS["mnist"]) == 120
    # A search is made with all its seeds, whatever seeds are trained afterwards.
    chosen = RunRequest("full", only=("cifar10",), seeds=(2,), arms=("gelu",))
    assert [(experiment.name, chosen.runs(experiment)) for experiment in chosen.experiments()] == [
        ("cifar10_search", 3), ("cifar10", 1),
    ]  # fmt: skip
    with pytest.raises(PaperArgumentError, match=r"no experiment 'minst'. Did you mean 'mnist'\?"):
        RunRequest("full", only=("minst",)).experiments()
    with pytest.raises(PaperArgumentError, match=r"no arm 'silu'.*Accepted: gelu, relu, elu"):
        RunRequest("full", only=("timit",), arms=("silu",)).experiments()


def test_every_combination_of_a_grid_is_there():
    experiment = EXPERIMENTS["mnist"]
    found = {(cell.arm, cell.setting["keep"], cell.learning_rate, cell.seed) for cell in cells_of("mnist")}
    assert found == set(itertools.product(experiment.arms, (1.0, 0.5), (1e-3, 1e-4, 1e-5), range(5)))
