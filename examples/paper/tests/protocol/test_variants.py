"""Experiments with fewer epochs, what is refused; what else changes stands in tests/cli/paper/test_running.py."""

from dataclasses import replace

import pytest
from paper_records import run_record

from gelu_paper.errors import PaperArgumentError
from gelu_paper.protocol.experiments import EXPERIMENTS
from gelu_paper.protocol.variants import ProtocolVariant, check_variant, own_experiments
from gelu_paper.results.labels import labels_of


def test_longer_runs_end_earlier_and_shorter_ones_stay():
    table = own_experiments("full", ProtocolVariant(epochs=40))
    assert {name: table[name].epochs for name in ("autoencoder", "mnist", "tweets")} == {
        "autoencoder": 40,
        "mnist": 40,
        "tweets": 30,
    }
    whole = EXPERIMENTS["autoencoder"]
    assert table["autoencoder"].training_flop == pytest.approx(whole.training_flop * 40 / 250)
    assert replace(table["autoencoder"], epochs=250, training_flop=whole.training_flop, seconds=whole.seconds) == whole
    # Adam's second half and the steps of the wide net's rate come at shares of the whole run.
    assert all(table[name] == EXPERIMENTS[name] for name in ("cifar10_search", "cifar10", "cifar100"))


@pytest.mark.parametrize(
    ("names", "epochs", "said"),
    [
        (["mnist", "cifar100"], 10, "the schedules of cifar100 end with the run"),
        (["mnist", "tweets"], 0, "--epochs 0 given; accepted: 1 to 49, as the longest of these runs has 50"),
        (["tweets"], 30, "accepted: 1 to 29"),
    ],
)
def test_what_is_refused(names, epochs, said):
    with pytest.raises(PaperArgumentError, match=said):
        check_variant(ProtocolVariant(epochs=epochs), "full", names)


def test_clusters_are_for_the_experiments_that_read_tweets():
    check_variant(ProtocolVariant("50mpaths2"), "full", ["mnist", "tweets_zero_identity"])
    with pytest.raises(PaperArgumentError, match="--tweet-clusters: mnist, timit have no tweets"):
        check_variant(ProtocolVariant("50mpaths2"), "full", ["mnist", "timit"])


def test_tables_say_that_runs_ended_early():
    full = run_record("autoencoder")
    assert labels_of([full]) == []
    assert labels_of([replace(full, config={**full.config, "trainer": {"max_epochs": 60}})]) == [
        "ended after 60 of 250 epochs"
    ]
