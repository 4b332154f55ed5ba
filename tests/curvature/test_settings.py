"""What a user chose is checked when it is chosen, is named, and stays."""

from dataclasses import FrozenInstanceError

import pytest

from lit_gelu.callbacks import (
    ActivationCurvatureMonitor,
    LossCurvatureMonitor,
)
from lit_gelu.curvature import (
    HistogramBins,
)
from lit_gelu.curvature.settings import ActivationSettings, LossSettings
from lit_gelu.errors import ArgumentError


@pytest.mark.parametrize("settings", [ActivationSettings, LossSettings])
def test_they_are_given_by_name_and_do_not_change(settings):
    with pytest.raises(TypeError):
        settings(("trace",))
    with pytest.raises(FrozenInstanceError):
        settings().seed = 1


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        (ActivationSettings, {"sample_rows": 0}, "sample_rows=0 is not accepted"),
        (ActivationSettings, {"sample_rows": "all"}, "'auto', 'sparse', or None"),
        (ActivationSettings, {"dead_unit_window": 0}, "dead_unit_window=0 is not accepted"),
        (ActivationSettings, {"dead_unit_window": 1.5}, "dead_unit_window=1.5 is not accepted"),
        (ActivationSettings, {"sample_rows": 2.5}, "sample_rows=2.5 is not accepted"),
        (ActivationSettings, {"seed": "a"}, "seed='a' is not accepted"),
        (ActivationSettings, {"histograms": 5}, "histograms=5 is not accepted"),
        (LossSettings, {"quantities": ()}, "Give some of top_eigenvalue"),
        (LossSettings, {"operator": "fisher"}, "operator='fisher' is not accepted"),
        (LossSettings, {"operator": "gauss_newton", "method": "exact"}, "with operator='gauss_newton'"),
        (LossSettings, {"trace_accuracy": 1.0}, "relative error between 0 and 1"),
        (LossSettings, {"accuracy": "a"}, "accuracy='a' is not accepted"),
        (LossSettings, {"trace_probes": 1}, "Give an integer from 2"),
        (LossSettings, {"seed": 1.5}, "seed=1.5 is not accepted"),
    ],
)
def test_what_is_not_accepted(settings, options, message):
    """By the monitors neither, which say it with their own error."""
    with pytest.raises(ArgumentError, match=message):
        settings(**options)
    monitor = ActivationCurvatureMonitor if settings is ActivationSettings else LossCurvatureMonitor
    with pytest.raises(ArgumentError, match=message):
        monitor(**options)


@pytest.mark.parametrize(
    ("monitor", "options"),
    [
        (ActivationCurvatureMonitor, {"include": 3}),
        (ActivationCurvatureMonitor, {"heat_maps": ["mean", "foo"]}),
        (ActivationCurvatureMonitor, {"name": 3}),
        (ActivationCurvatureMonitor, {"at_steps": 5}),
        (ActivationCurvatureMonitor, {"max_overhead": "a"}),
        (LossCurvatureMonitor, {"quantities": 3}),
        (LossCurvatureMonitor, {"name": 3}),
    ],
)
def test_what_a_monitor_cannot_read_is_refused_when_it_is_made(monitor, options):
    with pytest.raises(ArgumentError, match=f"{next(iter(options))}=.* (is not|is no)"):
        monitor(**options)


def test_one_heat_map_is_a_list_of_one():
    assert ActivationCurvatureMonitor(heat_maps="mean").heat_maps.statistics == ("mean",)


def test_a_monitor_keeps_what_it_was_given():
    monitor = ActivationCurvatureMonitor(include="net.*", sample_rows=5, seed=3, histograms=True, gaussian=False)
    bins = HistogramBins()
    assert monitor.settings == ActivationSettings(
        include=("net.*",), sample_rows=5, seed=3, histograms=bins, gaussian=False
    )
    loss = LossCurvatureMonitor("trace", method="reverse_over_reverse", warm_steps=3)
    assert loss.settings == LossSettings(quantities=("trace",), method="reverse_over_reverse", warm_steps=3)
    assert LossCurvatureMonitor().settings == LossSettings()
    assert ActivationCurvatureMonitor().settings == ActivationSettings()
