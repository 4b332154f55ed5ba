"""The paper's figures from records: their lines are the medians, and what is missing is not drawn."""

import statistics

import numpy as np
import pytest
from matplotlib.colors import to_hex
from paths import DOCS

from gelu_paper.drawing import COLOURS, light, write
from gelu_paper.experiments import EXPERIMENTS
from gelu_paper.figures import ARMS, FIGURES, draw
from gelu_paper.published import published_curve
from lit_gelu.errors import ArgumentError, DataError


def test_the_functions_of_figure_1():
    lines = {line.get_label(): line for line in draw(1, []).axes[0].lines if len(line.get_xdata()) > 2}
    assert len(lines) == 3
    x = next(iter(lines.values())).get_xdata()
    gelu = [value * statistics.NormalDist().cdf(value) for value in x]
    relu, elu = np.maximum(x, 0), np.where(x > 0, x, np.expm1(x))
    for (name, line), expected in zip(sorted(lines.items()), (elu, gelu, relu), strict=True):
        np.testing.assert_allclose(line.get_ydata(), expected, atol=1e-12, err_msg=name)


def test_a_line_is_the_median_of_the_runs(kept):
    axes = draw(2, kept).axes
    chosen = [run for run in kept if run.experiment == "mnist" and run.learning_rate == 1e-3]
    for panel, keep in zip(axes, (1.0, 0.5), strict=True):
        for arm in ARMS:
            (line,) = [line for line in panel.lines if line.get_label() == f"{arm} train_loss"]
            runs = [run for run in chosen if (run.arm, run.setting["keep"]) == (arm, keep)]
            curves = [run.curves["train_loss"].value for run in runs]
            assert len(curves) == 5
            assert list(line.get_ydata()) == [statistics.median(column) for column in zip(*curves, strict=True)]
            assert to_hex(line.get_color()) == COLOURS[arm].lower()


def test_published_points_are_marked_where_the_axes_reach(kept):
    def marks(published):
        panels = draw(2, kept, published=published).axes
        return [
            point
            for axes in panels
            for line in axes.lines
            if line.get_marker() == "o"
            for point in zip(line.get_xdata(), line.get_ydata(), strict=True)
        ]

    assert marks(False) == []
    points = [
        point
        for arm in ARMS
        for keep in (1.0, 0.5)
        for name in ("train_loss", "val_loss")
        for point in published_curve("mnist", arm, name, {"keep": keep}, 1e-3).points
    ]
    assert set(marks(True)) <= set(points)
    assert len(marks(True)) > len(points) / 2


def test_figure_3_shows_accuracy_in_per_cent_and_the_loss(kept):
    accuracy, loss = draw(3, kept).axes
    runs = [run for run in kept if (run.experiment, run.arm, run.learning_rate) == ("mnist", "elu", 1e-3)]
    noisy = [run.robustness for run in runs if run.robustness is not None]
    assert len(noisy) == 5
    (line,) = [line for line in accuracy.lines if line.get_label() == "elu"]
    medians = [statistics.median(errors) for errors in zip(*(one.error for one in noisy), strict=True)]
    np.testing.assert_allclose(line.get_ydata(), [100 - 100 * error for error in medians], rtol=1e-12)
    (line,) = [line for line in loss.lines if line.get_label() == "elu"]
    assert list(line.get_ydata()) == [
        statistics.median(values) for values in zip(*(n.loss for n in noisy), strict=True)
    ]


def test_each_learning_rate_of_the_autoencoder_has_its_panel(kept):
    for panel, rate in zip(draw(4, kept).axes, (1e-3, 1e-4), strict=True):
        (run,) = [run for run in kept if (run.experiment, run.arm, run.learning_rate) == ("autoencoder", "relu", rate)]
        (line,) = [line for line in panel.lines if line.get_label() == "relu test_loss"]
        assert tuple(line.get_ydata()) == run.curves["test_loss"].value


def test_curves_that_diverged_have_gaps_and_errors_are_in_per_cent(record_of):
    runs = [record_of(0, "gelu", 1e-3, "cifar10", None, train_error=[0.5, 0.2], test_error=[0.5, 0.25])]
    runs += [record_of(0, "relu", 1e-3, "cifar10", None, train_error=[0.5], test_error=[0.5], status="diverged")]
    lines = {line.get_label(): list(line.get_ydata()) for line in draw(6, runs).axes[0].lines}
    assert lines["gelu test_error"] == [50.0, 25.0]
    assert lines["relu test_error"] == [50.0]


def test_a_figure_without_runs_is_none_and_one_that_there_is_not_is_refused(kept):
    assert [number for number in FIGURES if draw(number, kept) is None] == [5, 6, 7]
    with pytest.raises(ArgumentError):
        draw(8, kept)


def test_runs_that_do_not_fit_together_are_not_drawn(record_of):
    runs = [record_of(0, train_loss=[1], val_loss=[1], val_error=[1], test_error=[1])]
    runs += [record_of(1, train_loss=[1, 1], val_loss=[1, 1], val_error=[1, 1], test_error=[1, 1])]
    with pytest.raises(DataError):
        draw(2, runs)


def test_remarks_stand_in_the_figure(kept):
    texts = [text.get_text() for text in draw(4, kept).texts]
    assert "ended after 60 of 250 epochs" in texts
    assert "Single runs." in texts


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_the_same_figure_gives_the_same_bytes(form, tmp_path):
    for name in ("one", "two"):
        write(draw(1, []), tmp_path / f"{name}.{form}")
    assert (tmp_path / f"one.{form}").read_bytes() == (tmp_path / f"two.{form}").read_bytes()


def test_light_colours_are_between_theirs_and_white():
    assert light("#000000") == "#8c8c8c"
    assert all(dark.lower() < light(dark) < "#ffffff" for dark in COLOURS.values())


def test_every_arm_has_a_colour():
    arms = {arm for experiment in EXPERIMENTS.values() for arm in experiment.arms}
    assert arms == COLOURS.keys()
    assert len(set(COLOURS.values())) == len(COLOURS)
    assert (DOCS / "images" / "paper" / "figure_2.png").is_file()
