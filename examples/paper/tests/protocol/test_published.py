"""Published numbers: the paper's abstract of results, its own orderings, and consistency between text and figures."""

import pytest

from gelu_paper.protocol.experiments import EXPERIMENTS
from gelu_paper.protocol.published import CURVES, NUMBERS, NUMBERS_BESIDE, published_curve, published_number


@pytest.mark.parametrize(
    ("experiment", "gelu", "relu", "elu"),
    [
        ("tweets", "12.57", "12.67", "12.91"),
        ("timit", "29.3", "29.5", "29.6"),
        ("cifar10", "7.89", "8.16", "8.41"),
        ("cifar100", "20.74", "21.77", "22.98"),
    ],
)
def test_what_the_paper_prints(experiment, gelu, relu, elu):
    printed = {arm: published_number(experiment, arm, {}).printed for arm in ("gelu", "relu", "elu")}
    assert printed == {"gelu": gelu, "relu": relu, "elu": elu}
    assert "1606.08415" in published_number(experiment, "gelu", {}).source


@pytest.mark.parametrize(
    ("experiment", "relu", "zero_identity"),
    [
        ("mnist_zero_identity", "2.10", "2.00"),
        ("tweets_zero_identity", "11.9", "12.5"),
        ("timit_zero_identity", "29.46", "29.46"),
    ],
)
def test_what_the_submission_prints_of_the_zero_identity_map(experiment, relu, zero_identity):
    setting = {"keep": 1.0}
    assert published_number(experiment, "relu", setting, tuned=True).printed == relu
    assert published_number(experiment, "zero_identity", setting, tuned=True).printed == zero_identity
    # It was the best of several dropouts: it belongs to no setting by itself.
    assert published_number(experiment, "relu", setting) is None


def test_what_was_not_printed_is_not_there():
    for experiment in ("mnist", "autoencoder", "momentum", "phi_quality", "cifar10_search"):
        assert not [number for number in NUMBERS if number.experiment == experiment]
    assert not [number for number in NUMBERS if number.arm == "silu"]
    assert not [curve for curve in CURVES if curve.figure == 3]


def test_values_are_shares_and_sources_are_named():
    for number in (*NUMBERS, *NUMBERS_BESIDE):
        assert number.value == pytest.approx(float(number.printed) / 100, rel=1e-15)
        assert number.source
    assert len({(number.experiment, number.arm, number.tuned) for number in NUMBERS}) == len(NUMBERS)
    assert [number.printed for number in NUMBERS_BESIDE] == ["22.89"]


def test_names_are_those_of_the_experiments():
    for item in (*NUMBERS, *CURVES):
        experiment = EXPERIMENTS[item.experiment]
        assert item.arm in experiment.arms
        assert set(item.setting) <= set(experiment.settings)
        assert all(value in experiment.settings[name] for name, value in item.setting.items())


def test_curves_run_forward_within_the_protocols_epochs():
    for curve in CURVES:
        epochs = [epoch for epoch, _ in curve.points]
        assert epochs == sorted(set(epochs))
        assert epochs[-1] == EXPERIMENTS[curve.experiment].epochs
        assert all(value > 0 for _, value in curve.points)
    names = [(c.experiment, c.arm, c.curve, str(c.setting), c.learning_rate) for c in CURVES]
    assert len(set(names)) == len(names)


def test_cifar10s_curves_end_where_its_text_says():
    for arm, printed in (("gelu", 0.0789), ("relu", 0.0816), ("elu", 0.0841)):
        (_, end) = published_curve("cifar10", arm, "test_error", {}, 1e-3).points[-1]
        assert end == pytest.approx(printed, abs=0.0008)  # the text gives ReLU .07 points less than its curve's end


@pytest.mark.parametrize(
    ("experiment", "curve", "setting", "rate", "lowest"),
    [
        ("mnist", "train_loss", {"keep": 0.5}, 1e-3, "gelu"),
        ("mnist", "val_loss", {"keep": 1.0}, 1e-3, "elu"),
        ("autoencoder", "test_loss", {}, 1e-3, "gelu"),
        ("autoencoder", "train_loss", {}, 1e-4, "gelu"),
        ("timit", "train_loss", {}, 1e-3, "gelu"),
        ("cifar10", "test_error", {}, 1e-3, "gelu"),
        ("cifar100", "test_loss", {}, 0.1, "gelu"),
    ],
)
def test_who_is_lowest_at_the_end(experiment, curve, setting, rate, lowest):
    ends = {
        arm: published_curve(experiment, arm, curve, setting, rate).points[-1][1] for arm in ("gelu", "relu", "elu")
    }
    assert min(ends, key=ends.get) == lowest


def test_a_curve_of_one_learning_rate_is_not_taken_for_another():
    rates = (1e-3, 1e-4, 1e-5)
    ends = [published_curve("autoencoder", "gelu", "test_loss", {}, rate).points[-1] for rate in rates]
    assert ends == [(250.0, 0.0044), (250.0, 0.0044), (250.0, 0.0085)]
    assert published_curve("autoencoder", "gelu", "test_loss", {}, 1e-2) is None
    assert "appendix" in published_curve("autoencoder", "gelu", "test_loss", {}, 1e-5).source
    assert "figure 4" in published_curve("autoencoder", "gelu", "test_loss", {}, 1e-3).source
    assert published_curve("mnist", "gelu", "train_loss", {"keep": 0.75}, 1e-3) is None


def test_points_above_the_drawings_axis_are_left_out():
    relu = published_curve("mnist", "relu", "train_loss", {"keep": 0.5}, 1e-3)
    assert relu.points == ((30.0, 0.481), (40.0, 0.415), (50.0, 0.347))
