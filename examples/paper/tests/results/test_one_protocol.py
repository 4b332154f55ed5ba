"""No median, no choice and no grid is of runs of two protocols."""

from dataclasses import replace

import pytest
from paper_records import classifier_records, run_record

from gelu_paper.errors import OtherConfigurationError, RecordsError
from gelu_paper.planning import plan
from gelu_paper.protocol.cells import expand
from gelu_paper.protocol.experiments import EXPERIMENTS
from gelu_paper.protocol.variants import ProtocolVariant, own_experiments
from gelu_paper.records.run_record import RunResult
from gelu_paper.results.one_protocol import check_one_protocol, check_same_data
from gelu_paper.results.rows import result_rows

TWEETS = EXPERIMENTS["tweets"]


def with_config(record, part, **values):
    return replace(record, config={**record.config, part: {**record.config[part], **values}})


def shortened(record):
    return with_config(record, "trainer", max_epochs=1)


def fused(record):
    return with_config(record, "model", init_args={"fused_optimizer": True})


def on_a_sample(record):
    return replace(record, data={"corpus": "a sample"})


def another_form(record):
    return replace(record, activation="gelu(approximate='tanh')")


def one_evaluation(record):
    return with_config(record, "measurement", evaluations_per_epoch=1)


CHANGES = [
    (shortened, "trainer.max_epochs: None in 'tweets/gelu/lr=0.001/seed=0', 1 in"),
    (fused, "model.init_args.fused_optimizer: None in"),
    (on_a_sample, "data that were found.corpus: None in"),
    (another_form, "activation: 'gelu' and"),
    (one_evaluation, "measurement.evaluations_per_epoch"),
]


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_seeds_of_two_protocols_have_no_median(change, said):
    records = classifier_records({1e-3: [(0.1, 0.1)] * 3}, experiment="tweets")
    assert len(result_rows(records)) == 1
    with pytest.raises(RecordsError, match="different protocols") as error:
        result_rows([*records[:2], change(records[2])])
    assert said in str(error.value)
    assert "a folder of its own" in str(error.value)


def test_learning_rates_of_two_protocols_are_no_choice():
    long, short = (classifier_records({rate: [(0.1, 0.1)] * 5}, experiment="tweets") for rate in (1e-3, 1e-4))
    with pytest.raises(RecordsError, match="different protocols"):
        result_rows([*long, *map(shortened, short)])


def test_arms_of_two_protocols_are_no_table():
    gelu, relu = (classifier_records({1e-3: [(0.1, 0.1)]}, experiment="tweets", arm=arm) for arm in ("gelu", "relu"))
    with pytest.raises(RecordsError, match="different protocols"):
        result_rows([*gelu, *map(shortened, relu)])


def test_what_runs_of_a_protocol_differ_in():
    def mnist(keep, activation, rate, levels):
        record = run_record("mnist", activation, setting={"keep": keep}, learning_rate=rate)
        model = {"init_args": {"keep": keep, "activation": activation, "learning_rate": rate, "momentum": 0.9}}
        return replace(record, config={**record.config, "model": model, "measurement": {"robustness_levels": levels}})

    check_one_protocol([mnist(1.0, "gelu", 1e-3, [0, 1]), mnist(0.5, "relu", 1e-4, []), mnist(1.0, "elu", 1e-3, [0])])
    check_one_protocol([])


def record_of(cell):
    facts = {name: getattr(cell, name) for name in ("key", "preset", "experiment", "arm", "activation", "config")}
    rest = {"versions": {}, "machine": {}, "started": "", "seconds": 1.0, "curves": {}, "result": RunResult()}
    return replace(
        run_record(), **facts, **rest, setting=dict(cell.setting), learning_rate=cell.learning_rate, seed=cell.seed
    )


@pytest.mark.parametrize("variant", [ProtocolVariant(epochs=3), ProtocolVariant(noise="keys")], ids=str)
def test_no_runs_are_made_beside_those_of_another_protocol(variant):
    """Though none of them has the name of one that is there: they are of another seed."""
    there = {cell.key: record_of(cell) for cell in expand(TWEETS, "full", seeds=(0,))}
    wanted = expand(TWEETS, "full", seeds=(1,))
    assert len(plan(wanted, there).identical) == len(wanted)
    other = own_experiments("full", variant)["tweets"]
    with pytest.raises(OtherConfigurationError, match=r"another protocol .* in the results, .* now.*--results"):
        plan(expand(other, "full", seeds=(1,)), there)


def test_other_experiments_are_left_alone_and_presets_are_not():
    mnist = {cell.key: record_of(cell) for cell in expand(EXPERIMENTS["mnist"], "full", seeds=(0,))}
    short = own_experiments("full", ProtocolVariant(epochs=3))["tweets"]
    assert plan(expand(short, "full", seeds=(1,)), mnist).identical
    quick = {key: replace(record, preset="quick") for key, record in mnist.items()}
    with pytest.raises(OtherConfigurationError, match=r"by --preset quick .* now it is full"):
        plan(expand(EXPERIMENTS["mnist"], "full", seeds=(1,)), quick)


def test_data_that_are_not_those_of_the_runs_that_are_there():
    first, other = (record_of(cell) for cell in expand(EXPERIMENTS["mnist"], "full", seeds=(0, 1))[:2])
    check_same_data(other, [])
    check_same_data(other, [first])
    with pytest.raises(OtherConfigurationError, match=r"found\.|data.*arrays.*--data-root as before"):
        check_same_data(replace(other, data={**other.data, "arrays": "others"}), [first])
    check_same_data(replace(other, data={"arrays": "others"}), [replace(first, experiment="tweets")])
