"""Records written by hand for the tests of what is made from records."""

from collections.abc import Mapping, Sequence
from typing import Any

from gelu_paper.records.run_record import Curve, Robustness, RunRecord, RunResult


def curve(values: Sequence[float], per_epoch: int = 1) -> Curve:
    """Return a curve measured ``per_epoch`` times an epoch, the last time at the end of each."""
    return Curve(tuple((index + 1) / per_epoch for index in range(len(values))), tuple(values))


def run_record(
    experiment: str = "mnist",
    arm: str = "gelu",
    seed: int = 0,
    learning_rate: float = 1e-3,
    setting: Mapping[str, float] | None = None,
    curves: Mapping[str, Sequence[float]] | None = None,
    robustness: Robustness | None = None,
    status: Any = "finished",
    preset: str = "full",
    data: Mapping[str, Any] | None = None,
) -> RunRecord:
    """Return a record with these curves, measured once an epoch."""
    setting = dict(setting or {})
    parts = [experiment, arm, *(f"{name}={value:g}" for name, value in setting.items())]
    return RunRecord(
        key="/".join([*parts, f"lr={learning_rate:g}", f"seed={seed}"]),
        preset=preset,
        experiment=experiment,
        arm=arm,
        activation=arm,
        setting=setting,
        learning_rate=learning_rate,
        seed=seed,
        config={
            "model": {},
            "data": dict(data or {"class_path": "lit_gelu.data.MNISTData", "init_args": {}}),
            "trainer": {},
            "measurement": {},
        },
        versions={},
        machine={},
        started="2026-01-01T00:00:00+00:00",
        seconds=1.0,
        curves={name: curve(values) for name, values in (curves or {}).items()},
        result=RunResult(),
        robustness=robustness,
        status=status,
    )


def classifier_records(errors: Mapping[float, Sequence[tuple[float, float]]], **named: Any) -> list[RunRecord]:
    """Return runs with one evaluation each, from learning rate to (validation error, test error) of every seed."""
    return [
        run_record(seed=seed, learning_rate=rate, curves={"val_error": [validation], "test_error": [test]}, **named)
        for rate, pairs in errors.items()
        for seed, (validation, test) in enumerate(pairs)
    ]
