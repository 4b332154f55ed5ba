"""What the monitor leaves in each kind of logger: figures of a normal input, the cost."""

import csv

import pytest
from callback_helpers import SmallNet, loader, quiet_trainer
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger

from lit_gelu.activations.gaussian import gaussian_moments
from lit_gelu.callbacks import ActivationCurvatureMonitor


def fit(folder, monitor, **options):
    quiet_trainer(folder, monitor, **options).fit(SmallNet(), loader())


def test_csv_has_the_figures_of_a_normal_input_and_the_cost(tmp_path):
    monitor = ActivationCurvatureMonitor(every_n_steps=3, gaussian=True)
    fit(tmp_path, monitor)
    with (tmp_path / "logs" / "0" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["curvature/net.1/mean"]]
    assert [row["step"] for row in rows] == ["2", "5"]
    for row in rows:
        mean, std = (float(row[f"curvature/net.1/{name}"]) for name in ("mean", "standard_deviation"))
        exact = gaussian_moments("relu", mean, std)
        assert float(row["curvature/net.1/gaussian/kink_mass"]) == pytest.approx(exact.kink.item(), rel=1e-9)
        gain = float(row["curvature/net.1/gaussian/mean_squared_derivative"])
        assert gain == pytest.approx(exact.derivative_squared.item(), rel=1e-9)
        assert float(row["curvature/activations/seconds"]) > 0
        assert float(row["curvature/activations/interval"]) == 3


def test_tensorboard_has_figures(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path, name="board", version="0")
    monitor = ActivationCurvatureMonitor(every_n_steps=4)
    fit(tmp_path, monitor, logger=logger)
    board = EventAccumulator(str(tmp_path / "board" / "0")).Reload()
    assert [event.step for event in board.Scalars("curvature/net.1/mean_gate")] == [3, 7]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_weights_and_biases_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger(project="test", save_dir=tmp_path, offline=True)
    fit(tmp_path, ActivationCurvatureMonitor(every_n_steps=4), logger=logger)
    run = logger.experiment
    assert run.summary["curvature/net.1/mean_gate"] is not None
    logger.experiment.finish()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_mlflow_in_files(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    logger = MLFlowLogger("test", tracking_uri=(tmp_path / "mlruns").as_uri())
    fit(tmp_path, ActivationCurvatureMonitor(every_n_steps=4), logger=logger)
    run = logger.experiment.get_run(logger.run_id)
    assert run.data.metrics["curvature/net.1/mean_gate"] > 0
