"""A grid on scikit-learn's digits, records that were never trained, and the records of docs/paper.md."""

import importlib.util
import os
from dataclasses import replace

import pytest
from digits_grid import DIGITS
from paths import DOCS

from gelu_paper import request
from gelu_paper.experiments import EXPERIMENTS
from gelu_paper.records import Curve, Robustness, RunRecord, read_records


def pytest_collection_modifyitems(items):
    """Skip what needs real data, or Ray, where they are not, and say so."""
    is_here = bool(os.environ.get("LIT_GELU_DATA"))
    has_ray = importlib.util.find_spec("ray") is not None
    for item in items:
        if item.get_closest_marker("realdata") and not is_here:
            item.add_marker(pytest.mark.skip(reason="LIT_GELU_DATA names no folder"))
        if item.get_closest_marker("ray") and not has_ray:
            item.add_marker(pytest.mark.skip(reason="Ray is not installed"))


@pytest.fixture(scope="session")
def kept():
    """The records of docs/paper.md."""
    return read_records(DOCS / "data" / "paper_runs.jsonl.xz")


@pytest.fixture
def digits(monkeypatch):
    """Let the preset `quick` be two runs on digits, and a second experiment that has one of them too."""
    again = replace(DIGITS, name="phi_quality", arms={"gelu_tanh": DIGITS.arms["gelu"]}, robustness_levels=())
    monkeypatch.setattr(request, "preset", lambda name: {"mnist": DIGITS, "phi_quality": again})
    return DIGITS


@pytest.fixture
def record_of():
    """Return a function that makes records without training: curves by name, one value an epoch."""

    def record(seed=0, arm="gelu", rate=1e-3, experiment="mnist", keep=1.0, status="finished", noise=None, **curves):
        full, setting = EXPERIMENTS[experiment], {} if keep is None else {"keep": keep}
        arguments = {**full.task_args, **setting, "activation": arm, "learning_rate": rate}
        config = {
            "model": {"class_path": full.task, "init_args": arguments},
            "data": {"class_path": full.data, "init_args": dict(full.data_args)},
            "trainer": {"max_epochs": full.epochs, "limit_val_batches": 0, "precision": "32-true"},
            "measurement": {"evaluations_per_epoch": full.evaluations, "robustness_levels": []},
        }
        return RunRecord(
            key=f"{experiment}/{arm}/keep={keep}/lr={rate:g}/seed={seed}",
            preset="full",
            experiment=experiment,
            arm=arm,
            activation=arm,
            setting=setting,
            learning_rate=rate,
            seed=seed,
            config=config,
            versions={"torch": "2"},
            machine={"device": "cpu"},
            started="2026-01-01T00:00:00+00:00",
            seconds=1.0,
            curves={
                name: Curve(tuple(float(epoch) for epoch in range(1, len(values) + 1)), tuple(map(float, values)))
                for name, values in curves.items()
            },
            robustness=None if noise is None else Robustness((0.0, 1.0), tuple(noise), tuple(noise)),
            status=status,
        )

    return record
