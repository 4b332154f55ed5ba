"""What a user chose is checked when it is chosen, by a monitor too."""

import pytest

from lit_gelu.callbacks import ActivationCurvatureMonitor, LossCurvatureMonitor
from lit_gelu.curvature.settings import ProductBudget
from lit_gelu.errors import ArgumentError


@pytest.mark.parametrize(
    ("monitor", "options"),
    [
        (ActivationCurvatureMonitor, {"sample_rows": 0}),
        (ActivationCurvatureMonitor, {"sample_rows": "all"}),
        (ActivationCurvatureMonitor, {"dead_unit_window": 1.5}),
        (ActivationCurvatureMonitor, {"seed": "a"}),
        (ActivationCurvatureMonitor, {"include": 3}),
        (ActivationCurvatureMonitor, {"name": 3}),
        (ActivationCurvatureMonitor, {"at_steps": 5}),
        (LossCurvatureMonitor, {"quantities": ()}),
        (LossCurvatureMonitor, {"quantities": 3}),
        (LossCurvatureMonitor, {"mode": "test"}),
        (LossCurvatureMonitor, {"fraction": 0.0}),
        (LossCurvatureMonitor, {"fraction": 1.5}),
        (LossCurvatureMonitor, {"fraction": "all"}),
        (LossCurvatureMonitor, {"probe": []}),
        (ProductBudget, {"trace_accuracy": 1.0}),
        (ProductBudget, {"accuracy": "a"}),
        (ProductBudget, {"trace_probes": 1}),
        (LossCurvatureMonitor, {"seed": 1.5}),
    ],
)
def test_what_is_not_accepted_is_refused_when_a_monitor_is_made(monitor, options):
    with pytest.raises(ArgumentError):
        monitor(**options)
