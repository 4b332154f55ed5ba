"""The monitor in all kinds of runs: several ranks, resumed ones, several loggers, runs that it refuses."""

import pytest
import torch
from callback_helpers import SaveEachEpoch, SmallNet, loader, logged_rows, quiet_trainer
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from loss_monitor_nets import Net, loss_monitor
from probe_nets import batch_of
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu.curvature.loss_measurement import measure_loss
from lit_gelu.curvature.probe.loss_probe import LossProbe

CHEAP = {"fraction": 1 / 4, "trace_accuracy": None}


class Uneven(Net):
    """Rank 0 trains on 13 examples of 20, rank 1 on the other 7."""

    def train_dataloader(self):
        part = slice(0, 13) if self.trainer.global_rank == 0 else slice(13, 20)
        data = TensorDataset(*(t[part] for t in batch_of(20, dtype=torch.float64)))
        return DataLoader(data, batch_size=13)


class WriteDown(Callback):
    """Writes, in each process, the figures and the parameters they are of."""

    def __init__(self, monitor, folder):
        self.monitor, self.folder = monitor, folder

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.before = {name: value.clone() for name, value in pl_module.state_dict().items()}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        state = self.monitor.latest, self.before, pl_module.state_dict()
        torch.save(state, self.folder / f"rank{trainer.global_rank}.pt")


@pytest.mark.forks
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*use_distributed_sampler")
def test_d6_d10_two_uneven_ranks_equal_one_process_on_the_union(tmp_path):
    quantities = ["top_eigenvalue", "smallest_eigenvalue", "trace", "directional"]
    monitor = loss_monitor(quantities, every_n_steps=1, fraction=None, lanczos_steps=43, trace_accuracy=0.3)
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
    (figures, before, after), other = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    clocks = {"seconds", "cost_in_training_batches", "examples"}
    assert {name: value for name, value in figures.items() if name not in clocks} == {
        name: value for name, value in other[0].items() if name not in clocks
    }
    assert (figures["examples"], other[0]["examples"]) == (13, 7)

    module = Uneven().double()
    module.load_state_dict(before)
    start = torch.cat([p.detach().flatten() for p in module.parameters()])
    module.load_state_dict(after)
    with LossProbe(module, [batch_of(20, dtype=torch.float64)]) as probe:
        union = measure_loss(probe, monitor.settings, event=0, before=start)
    for path, value in union.figures.items():
        tolerance = 1e-9 if path[0] == "directional_curvature" or path[0] == "directional_stability" else 1e-12
        if not path[0].endswith("_residual"):
            assert figures["/".join(path)] == pytest.approx(value, rel=tolerance), path


def logged(folder):
    rows = [row for row in logged_rows(folder) if row["curvature/loss/seconds"]]
    clocks = ("curvature/loss/seconds", "curvature/loss/cost_in_training_batches")
    return {
        int(row["step"]): {key: row[key] for key in row if key.startswith("curvature") and key not in clocks}
        for row in rows
    }


class Noisy(SmallNet):
    """A probe with dropout on its input, so that masks matter."""

    def curvature_loss(self, batch):
        return F.cross_entropy(self(F.dropout(batch[0], 0.3)), batch[1])


def test_a_resumed_run_logs_the_same_figures_at_the_same_steps(tmp_path):
    def run(folder, **options):
        torch.manual_seed(3)
        quantities = ["top_eigenvalue", "smallest_eigenvalue", "trace"]
        monitor = loss_monitor(
            quantities,
            every_n_steps=3,
            fraction=0.6,
            lanczos_steps=6,
            warm_steps=3,
            trace_probes=4,
            trace_accuracy=None,
        )
        trainer = quiet_trainer(folder, monitor, SaveEachEpoch(folder), max_epochs=3)
        trainer.fit(Noisy(dropout=0), loader(), **options)
        return logged(folder)

    reference = run(tmp_path / "whole")
    torch.rand(100)
    assert list(reference) == [2, 5, 8, 11]
    for epoch, steps in ((0, [5, 8, 11]), (1, [8, 11])):
        resumed = run(tmp_path / f"resumed{epoch}", ckpt_path=tmp_path / "whole" / f"epoch{epoch}.ckpt")
        assert list(resumed) == steps
        assert {step: reference[step] for step in resumed} == resumed
    assert reference[2]["curvature/loss/products"] == "10.0"
    assert reference[5]["curvature/loss/products"] == "7.0"  # three warm steps and four probes


@pytest.mark.pictures
def test_every_logger_gets_figures_and_picture(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loggers = [CSVLogger(tmp_path, name="logs", version="0"), TensorBoardLogger(tmp_path, name="board", version="0")]
    monitor = loss_monitor(["spectral_density", "trace"], every_n_steps=8, density_steps=4, **CHEAP)
    quiet_trainer(tmp_path, monitor, logger=loggers).fit(SmallNet(), loader())
    board = EventAccumulator(str(tmp_path / "board" / "0")).Reload()
    assert {f"curvature/loss/{name}" for name in monitor.latest} <= set(board.Tags()["scalars"])
    assert "curvature/loss/spectral_density" in board.Tags()["images"]
    assert list((tmp_path / "logs" / "0").rglob("*.png"))
    assert set(logged(tmp_path)) == {7}
    assert monitor.spectrum.nodes.shape == (1, 4)
    # A logger that keeps each figure in a file of its name cannot have a folder of the same name.
    assert not [a for a in monitor.latest for b in monitor.latest if b.startswith(f"{a}/")]


def test_other_callbacks_find_the_figures(tmp_path):
    monitor = loss_monitor(every_n_steps=2, lanczos_steps=2, fraction=1 / 4)
    stopper = EarlyStopping("curvature/loss/top_eigenvalue", mode="min", stopping_threshold=1e9)
    trainer = quiet_trainer(tmp_path, monitor, stopper, max_epochs=3)
    trainer.fit(SmallNet(), loader())
    assert trainer.current_epoch == 1  # any eigenvalue is below the threshold
