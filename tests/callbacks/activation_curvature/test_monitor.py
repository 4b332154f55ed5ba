"""The monitor in a Trainer: right figures, at the right steps, without a trace in the training."""

import copy
import json
from typing import ClassVar

import pytest
import torch
from callback_helpers import (
    FEATURES,
    InputKeeper,
    SmallNet,
    dataset,
    loader,
    quiet_trainer,
)
from dispatched import Operations
from lightning.pytorch import Callback
from monitor_helpers import SITES, History, agrees, fit, logged_rows
from torch import nn
from torch.utils.data import DataLoader

from lit_gelu.callbacks import ActivationCurvatureMonitor
from lit_gelu.curvature import STATISTICS, activation_statistics
from lit_gelu.curvature.activation.gaussian_prediction import PREDICTED


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.PReLU])
def test_figures_equal_a_direct_computation(tmp_path, activation):
    monitor, keeper = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=None), InputKeeper()
    models = {}

    class Snapshot(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            models[trainer.global_step] = {site: copy.deepcopy(pl_module.get_submodule(site)) for site in SITES}

    class Compare(Callback):
        steps = 0

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            step = trainer.global_step - 1
            for site in SITES:
                # With the parameters of the forward pass: by now the optimizer has moved a PReLU's.
                expected = activation_statistics(models[step][site].double(), keeper.inputs[step][site][0].double())
                assert agrees(monitor.latest[site], expected)
            Compare.steps += 1

    fit(tmp_path, Snapshot(), keeper, monitor, Compare(), model=SmallNet(activation))
    assert Compare.steps == 8


def test_logged_at_lightnings_own_steps(tmp_path):
    class LogsItself(SmallNet):
        def training_step(self, batch, batch_idx):
            self.log("own", 1.0)
            return super().training_step(batch, batch_idx)

    monitor = ActivationCurvatureMonitor(every_n_steps=3, gaussian=True)
    fit(tmp_path, monitor, model=LogsItself(), log_every_n_steps=3, max_epochs=3)
    rows = logged_rows(tmp_path)
    own = [row["step"] for row in rows if row["own"]]
    ours = [row["step"] for row in rows if row["curvature/net.1/mean"]]
    assert ours == own == ["2", "5", "8", "11"]
    expected = {f"curvature/{site}/{statistic}" for site in SITES for statistic in STATISTICS}
    expected |= {f"curvature/{site}/gaussian/{statistic}" for site in SITES for statistic in PREDICTED}
    expected |= {"curvature/activations/seconds", "curvature/activations/interval"}
    assert expected == {key for key in rows[0] if key.startswith("curvature/")}
    missing = {key for row in rows if row["curvature/net.1/mean"] for key in expected if not row[key]}
    assert not missing


@pytest.mark.parametrize("sample_rows", [4, None])
def test_an_event_reads_no_scalars(tmp_path, sample_rows):
    class Counted(ActivationCurvatureMonitor):
        names: ClassVar[list[list[str]]] = []

        def on_train_batch_end(self, *arguments):
            with Operations() as reads:
                super().on_train_batch_end(*arguments)
            Counted.names.append(reads.names)

    fit(tmp_path, Counted(every_n_steps=1, sample_rows=sample_rows), max_epochs=1)
    assert len(Counted.names) == 4
    assert all("_local_scalar_dense" not in names for names in Counted.names)


def training_trace(folder, *callbacks, **options):
    """Everything that a run leaves: weights, buffers, optimizer state, losses, and the generators' next numbers."""
    torch.manual_seed(7)
    trainer, model = fit(folder, *callbacks, max_epochs=5, **options)
    optimizer = trainer.optimizers[0].state_dict()["state"]
    state = [tensor for row in optimizer.values() for tensor in row.values()]
    return [*model.state_dict().values(), *state, torch.tensor(model.losses), torch.get_rng_state()]


@pytest.mark.parametrize("sample_rows", [3, None])
@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 3}, {"precision": "bf16-mixed"}])
def test_training_is_bitwise_the_same_with_the_monitor(tmp_path, sample_rows, options):
    without = training_trace(tmp_path / "without", **options)
    monitor = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=sample_rows)
    with_monitor = training_trace(tmp_path / "with", monitor, **options)
    assert monitor.latest
    assert len(without) == len(with_monitor)
    assert all(torch.equal(a, b) for a, b in zip(without, with_monitor, strict=True))


def test_a_sample_lies_near_the_whole(tmp_path):
    class Wide(SmallNet):
        def __init__(self):
            super().__init__()
            self.net[0] = nn.Linear(FEATURES, 16)

    whole = ActivationCurvatureMonitor(1, sample_rows=None)
    part = ActivationCurvatureMonitor(1, sample_rows=256, name="part")
    fit(tmp_path, whole, part, data=loader(2048, 1024), max_epochs=1)
    for site in SITES:
        deviation = whole.latest[site]["standard_deviation"]
        assert part.latest[site]["mean"] != whole.latest[site]["mean"]
        assert part.latest[site]["mean"] == pytest.approx(whole.latest[site]["mean"], abs=0.2 * deviation)
        assert part.latest[site]["standard_deviation"] == pytest.approx(deviation, rel=0.2)


def test_accumulation_measures_the_first_micro_batch_of_the_step(tmp_path):
    monitor, keeper = ActivationCurvatureMonitor(every_n_steps=2, sample_rows=None), InputKeeper()
    history = History(monitor)
    fit(tmp_path, keeper, monitor, history, accumulate_grad_batches=2, max_epochs=1)
    expected = activation_statistics("relu", keeper.inputs[1]["net.1"][0].double())
    assert agrees(next(iter(history.figures.values()))["net.1"], expected)
    assert [row["step"] for row in logged_rows(tmp_path) if row["curvature/net.1/mean"]] == ["1"]


def test_checkpointed_activations_count_once(tmp_path):
    class Checkpointed(SmallNet):
        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.net, x, use_reentrant=False)

    plain, checkpointed = (ActivationCurvatureMonitor(1, sample_rows=None) for _ in range(2))
    fit(tmp_path / "a", plain, model=SmallNet(dropout=0), max_epochs=1, limit_train_batches=1)
    model = Checkpointed(dropout=0)
    seen = []
    model.net[1].register_forward_pre_hook(lambda module, args: seen.append(args[0].shape))
    fit(tmp_path / "b", checkpointed, model=model, max_epochs=1, limit_train_batches=1)
    assert len(seen) == 2
    assert checkpointed.latest == plain.latest


def test_manual_optimization_with_two_backward_passes_is_seen_whole(tmp_path):
    class Manual(SmallNet):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            for factor in (1, 2):
                optimizer.zero_grad()
                self.manual_backward(self(factor * batch[0]).square().mean())
                optimizer.step()

    monitor, keeper = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=None), InputKeeper()
    fit(tmp_path, keeper, monitor, model=Manual(), max_epochs=1)
    calls = list(keeper.inputs.values())[-1]["net.1"]
    assert len(calls) == 2
    assert agrees(monitor.latest["net.1"], activation_statistics("relu", torch.cat(calls)))


class WriteDown(Callback):
    """Runs in each process of a distributed run: keeps its inputs, and writes them and the figures to files."""

    def __init__(self, monitor, keeper, folder):
        self.monitor, self.keeper, self.folder = monitor, keeper, folder

    def on_train_end(self, trainer, pl_module):
        inputs = {site: rows[0] for site, rows in self.keeper.inputs[trainer.global_step - 1].items()}
        torch.save(inputs, self.folder / f"inputs{trainer.global_rank}.pt")
        (self.folder / f"figures{trainer.global_rank}.json").write_text(json.dumps(self.monitor.latest))


@pytest.mark.forks
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_two_ranks_log_the_figures_of_the_union_of_their_batches(tmp_path):
    monitor, keeper = ActivationCurvatureMonitor(every_n_steps=3, sample_rows=None), InputKeeper()
    trainer = quiet_trainer(
        tmp_path, keeper, monitor, WriteDown(monitor, keeper, tmp_path), strategy="ddp_fork", devices=2, max_epochs=1
    )
    trainer.fit(SmallNet(nn.GELU), DataLoader(dataset(42), batch_size=7))
    inputs = [torch.load(tmp_path / f"inputs{rank}.pt") for rank in (0, 1)]
    assert not torch.equal(inputs[0]["net.1"], inputs[1]["net.1"])
    for rank in (0, 1):
        figures = json.loads((tmp_path / f"figures{rank}.json").read_text())
        for site in SITES:
            union = torch.cat([kept[site] for kept in inputs]).double()
            assert agrees(figures[site], activation_statistics("gelu", union))
            [row] = [row for row in logged_rows(tmp_path) if row["curvature/net.1/mean"]]
            assert float(row[f"curvature/{site}/mean"]) == pytest.approx(figures[site]["mean"])
