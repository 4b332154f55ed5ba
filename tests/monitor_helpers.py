"""Helpers for tests of `ActivationCurvatureMonitor`."""

import pytest
from callback_helpers import SmallNet, loader, quiet_trainer
from callback_helpers import logged_rows as logged_rows  # of the log that `fit` writes

SITES = ("net.1", "net.5")


def agrees(figures, expected, rel=1e-6, absolute=1e-7):
    """Whether all figures are equal; the windows about kinks are as wide as the last event says, so not their count."""
    values = {name: value for name, value in expected.items() if name != "kink_mass"}
    assert {name: figures[name] for name in values} == pytest.approx(values, rel=rel, abs=absolute, nan_ok=True)
    assert figures["kink_mass"] == pytest.approx(expected["kink_mass"], rel=0.25, abs=1e-12, nan_ok=True)
    return True


def measured(row):
    """A row of the log, without what depends on the clock."""
    return {key: value for key, value in row.items() if key.startswith("curvature") and not key.endswith("/seconds")}


def fit(folder, *callbacks, model=None, data=None, **options):
    model = model or SmallNet()
    trainer = quiet_trainer(folder, *callbacks, **options)
    trainer.fit(model, data or loader())
    return trainer, model
