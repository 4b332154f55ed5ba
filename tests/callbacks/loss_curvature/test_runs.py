"""The monitor in all kinds of runs: several ranks, resumed ones, several loggers, runs that it refuses."""

import csv

import pytest
import torch
from callback_helpers import SaveEachEpoch, SmallNet, loader, quiet_trainer
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from probe_nets import CLASSES, FEATURES, batch_of
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu.callbacks import LossCurvatureMonitor
from lit_gelu.curvature.loss_measurement import Step, WarmStart, measure_loss
from lit_gelu.curvature.probe.loss_probe import LossProbe
from lit_gelu.curvature.settings import OF_UPDATE

CHEAP = {"samples": 2, "trace_accuracy": None}


class Uneven(LightningModule):
    """Rank 0 trains on 13 examples of 20, rank 1 on the other 7."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(FEATURES, 5), nn.GELU(), nn.Linear(5, CLASSES))

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)

    def train_dataloader(self):
        part = slice(0, 13) if self.trainer.global_rank == 0 else slice(13, 20)
        data = TensorDataset(*(t[part] for t in batch_of(20, dtype=torch.float64)))
        return DataLoader(data, batch_size=13)


class WriteDown(Callback):
    """Writes, in each process, the figures and the parameters they are of; counts the communication of the event."""

    def __init__(self, monitor, folder):
        self.monitor, self.folder = monitor, folder

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.before = {name: value.clone() for name, value in pl_module.state_dict().items()}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        state = (self.monitor.latest, self.before, pl_module.state_dict(), CountedMonitor.calls)
        torch.save(state, self.folder / f"rank{trainer.global_rank}.pt")


class CountedMonitor(LossCurvatureMonitor):
    calls = 0

    def on_train_batch_end(self, *arguments):
        reduce = torch.distributed.all_reduce

        def counted(*tensors, **options):
            CountedMonitor.calls += 1
            return reduce(*tensors, **options)

        torch.distributed.all_reduce = counted
        try:
            super().on_train_batch_end(*arguments)
        finally:
            torch.distributed.all_reduce = reduce


@pytest.mark.forks
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*use_distributed_sampler")
def test_d6_d10_two_uneven_ranks_equal_one_process_on_the_union(tmp_path):
    quantities = ["top_eigenvalue", "smallest_eigenvalue", "trace", *OF_UPDATE]
    monitor = CountedMonitor(quantities, every_n_steps=1, fraction=None, lanczos_steps=43, trace_accuracy=0.3)
    trainer = quiet_trainer(
        tmp_path,
        monitor,
        WriteDown(monitor, tmp_path),
        strategy="ddp_fork",
        devices=2,
        precision="64-true",
        max_epochs=1,
        use_distributed_sampler=False,
    )
    trainer.fit(Uneven())
    (figures, before, after, calls), other = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    clocks = {"seconds", "cost_in_training_batches", "examples"}
    assert {name: value for name, value in figures.items() if name not in clocks} == {
        name: value for name, value in other[0].items() if name not in clocks
    }
    assert (figures["examples"], other[0]["examples"]) == (13, 7)

    module = Uneven().double()
    module.load_state_dict(before)
    step = Step(torch.cat([p.detach().flatten() for p in module.parameters()]), 0.5)
    module.load_state_dict(after)
    with LossProbe(module, [batch_of(20, dtype=torch.float64)]) as probe:
        union = measure_loss(probe, monitor.settings, WarmStart(), event=0, step=step)
    for path, value in union.figures.items():
        tolerance = 1e-9 if path[0] == "directional_curvature" or path[0] == "directional_stability" else 1e-12
        if not path[0].endswith("_residual"):
            assert figures["/".join(path)] == pytest.approx(value, rel=tolerance), path
    # One all-reduce a product and one for the gradient, up to 3 to agree on the trace's vectors; along the update one a
    # pass: 1 gradient, 1 product, the search.
    search = calls - 1 - figures["products"] - 2
    assert 2 < search < 15
    assert other[3] == calls


def logged(folder):
    with (folder / "logs" / "0" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["curvature/loss/seconds"]]
    clocks = ("curvature/loss/seconds", "curvature/loss/cost_in_training_batches")
    return {
        int(row["step"]): {key: row[key] for key in row if key.startswith("curvature") and key not in clocks}
        for row in rows
    }


class Noisy(SmallNet):
    """A probe with dropout on its input, so that masks matter."""

    def curvature_loss(self, batch):
        return F.cross_entropy(self(F.dropout(batch[0], 0.3)), batch[1])


@pytest.mark.parametrize("probe", ["fresh", "fixed"])
def test_a_resumed_run_logs_the_same_figures_at_the_same_steps(tmp_path, probe):
    def run(folder, **options):
        torch.manual_seed(3)
        quantities = ["top_eigenvalue", "smallest_eigenvalue", "trace", "critical_sharpness"]
        monitor = LossCurvatureMonitor(
            quantities,
            every_n_steps=3,
            probe=probe,
            samples=5,
            lanczos_steps=6,
            warm_steps=3,
            trace_probes=4,
            trace_accuracy=None,
        )
        trainer = quiet_trainer(folder, monitor, SaveEachEpoch(folder), max_epochs=3)
        trainer.fit(Noisy(dropout=0), loader(), **options)
        return logged(folder)

    whole = run(tmp_path / "whole")
    torch.rand(100)
    assert list(whole) == [2, 5, 8, 11]
    for epoch, steps in ((0, [5, 8, 11]), (1, [8, 11])):
        resumed = run(tmp_path / f"resumed{epoch}", ckpt_path=tmp_path / "whole" / f"epoch{epoch}.ckpt")
        assert list(resumed) == steps
        assert {step: whole[step] for step in resumed} == resumed
    assert whole[2]["curvature/loss/products"] == "10.0"
    assert whole[5]["curvature/loss/products"] == "7.0"  # three warm steps and four probes


def test_without_its_vectors_a_resumed_run_starts_anew(tmp_path):
    monitor = LossCurvatureMonitor(every_n_steps=1, lanczos_steps=5, samples=2, save_vectors_up_to=10)
    quiet_trainer(tmp_path / "a", monitor, SaveEachEpoch(tmp_path), max_epochs=1).fit(SmallNet(), loader())
    assert monitor.latest["products"] < 5
    checkpoint = torch.load(tmp_path / "epoch0.ckpt", weights_only=True)
    assert checkpoint["callbacks"][monitor.state_key]["warm"]["vectors"] == {}
    resumed = LossCurvatureMonitor(at_steps=[4], lanczos_steps=5, samples=2)
    trainer = quiet_trainer(tmp_path / "b", resumed, max_epochs=2)
    trainer.fit(SmallNet(), loader(), ckpt_path=tmp_path / "epoch0.ckpt")
    assert resumed.latest["products"] == 5
    assert resumed.schedule.events == 5


@pytest.mark.pictures
def test_every_logger_gets_figures_and_picture(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loggers = [CSVLogger(tmp_path, name="logs", version="0"), TensorBoardLogger(tmp_path, name="board", version="0")]
    monitor = LossCurvatureMonitor(
        ["spectral_density", "trace"], every_n_steps=8, density_steps=4, density_runs=2, **CHEAP
    )
    quiet_trainer(tmp_path, monitor, logger=loggers).fit(SmallNet(), loader())
    board = EventAccumulator(str(tmp_path / "board" / "0")).Reload()
    assert {f"curvature/loss/{name}" for name in monitor.latest} <= set(board.Tags()["scalars"])
    assert "curvature/loss/spectral_density" in board.Tags()["images"]
    assert list((tmp_path / "logs" / "0").rglob("*.png"))
    assert set(logged(tmp_path)) == {7}
    assert monitor.spectrum.nodes.shape == (2, 4)
    # A logger that keeps each figure in a file of its name cannot have a folder of the same name.
    assert not [a for a in monitor.latest for b in monitor.latest if b.startswith(f"{a}/")]


@pytest.mark.pictures
@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_weights_and_biases_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger(project="test", save_dir=tmp_path, offline=True)
    monitor = LossCurvatureMonitor(["top_eigenvalue", "spectral_density"], every_n_steps=4, density_steps=4, **CHEAP)
    quiet_trainer(tmp_path, monitor, logger=logger).fit(SmallNet(), loader())
    for name, value in monitor.latest.items():
        assert logger.experiment.summary[f"curvature/loss/{name}"] == pytest.approx(value)
    logger.experiment.finish()
    assert len(list((tmp_path / "wandb").glob("**/media/images/curvature/loss/spectral_density*.png"))) == 2


@pytest.mark.pictures
@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_mlflow_in_files(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    logger = MLFlowLogger("test", tracking_uri=(tmp_path / "mlruns").as_uri())
    monitor = LossCurvatureMonitor(["trace", "spectral_density"], every_n_steps=4, density_steps=4, **CHEAP)
    quiet_trainer(tmp_path, monitor, logger=logger).fit(SmallNet(), loader())
    run = logger.experiment.get_run(logger.run_id)
    for name, value in monitor.latest.items():
        assert run.data.metrics[f"curvature/loss/{name}"] == pytest.approx(value)
    assert list((tmp_path / "mlruns").glob("**/artifacts/curvature_loss_spectral_density.png"))


def test_the_trainers_logging_interval_does_not_drop_figures(tmp_path):
    monitor = LossCurvatureMonitor(every_n_steps=3, lanczos_steps=2, samples=2)
    quiet_trainer(tmp_path, monitor, log_every_n_steps=4).fit(SmallNet(), loader())
    assert list(logged(tmp_path)) == [2, 5]


def test_two_monitors_under_two_names(tmp_path):
    cheap = LossCurvatureMonitor(every_n_steps=1, lanczos_steps=2, samples=2)
    epoch = LossCurvatureMonitor("trace", every_n_epochs=1, name="loss_trace", **CHEAP)
    quiet_trainer(tmp_path, cheap, epoch, SaveEachEpoch(tmp_path), max_epochs=1).fit(SmallNet(), loader())
    assert (cheap.schedule.events, epoch.schedule.events) == (4, 1)
    with (tmp_path / "logs" / "0" / "metrics.csv").open() as file:
        names = csv.DictReader(file).fieldnames
    assert {"curvature/loss/top_eigenvalue", "curvature/loss_trace/trace"} <= set(names)


def test_other_callbacks_find_the_figures(tmp_path):
    monitor = LossCurvatureMonitor(every_n_steps=2, lanczos_steps=2, samples=2)
    stopper = EarlyStopping("curvature/loss/top_eigenvalue", mode="min", stopping_threshold=1e9)
    trainer = quiet_trainer(tmp_path, monitor, stopper, max_epochs=3)
    trainer.fit(SmallNet(), loader())
    assert trainer.current_epoch == 1  # any eigenvalue is below the threshold
    assert trainer.callback_metrics["curvature/loss/top_eigenvalue"].item() == pytest.approx(
        monitor.latest["top_eigenvalue"]
    )


class ScalarReads(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ == "_local_scalar_dense"
        return func(*args, **(kwargs or {}))


class Quiet(SmallNet):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])


def test_d9_d13_the_host_does_not_look_within_an_iteration(tmp_path):
    class Counted(LossCurvatureMonitor):
        def on_train_batch_end(self, *arguments):
            with ScalarReads() as reads:
                super().on_train_batch_end(*arguments)
            counts.append(reads.count)

    counts = []
    for steps in (2, 12):
        monitor = Counted(["top_eigenvalue", "trace"], at_steps=[0], lanczos_steps=steps, trace_probes=steps, **CHEAP)
        quiet_trainer(tmp_path / str(steps), monitor, limit_train_batches=1, max_epochs=1).fit(Quiet(), loader())
        assert monitor.latest["products"] == 2 * steps
    assert counts[0] == counts[1] < 30


def test_a_monitor_starts_anew_in_another_run(tmp_path):
    monitor = LossCurvatureMonitor(at_steps=[0, 3], lanczos_steps=2, samples=2, probe="fixed")
    for folder in ("a", "b"):
        torch.manual_seed(0)
        quiet_trainer(tmp_path / folder, monitor, max_epochs=1).fit(SmallNet(), loader())
    assert logged(tmp_path / "a") == logged(tmp_path / "b")
    assert list(logged(tmp_path / "a")) == [0, 3]


def test_max_overhead_stretches_the_interval(tmp_path):
    monitor = LossCurvatureMonitor(every_n_steps=1, lanczos_steps=8, samples=2, max_overhead=1e-9)
    quiet_trainer(tmp_path, monitor, max_epochs=4).fit(Quiet(), loader())
    assert monitor.schedule.events == 1  # paid for after years
