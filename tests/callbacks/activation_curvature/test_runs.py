"""The monitor over whole runs: calls of functions, resuming, ranks, schedules, and defects known of other monitors."""

import json

import pytest
import torch
from callback_helpers import (
    FEATURES,
    FunctionalNet,
    SaveEachEpoch,
    SmallNet,
    dataset,
    loader,
    logged_rows,
    quiet_trainer,
)
from lightning.pytorch import Callback
from monitor_helpers import measured
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap

SAMPLE = torch.zeros(2, FEATURES)


def run(folder, monitor, *others, model=None, data=None, seed=7, ckpt_path=None, **options):
    torch.manual_seed(seed)
    model = model or FunctionalNet()
    trainer = quiet_trainer(folder, monitor, *others, **options)
    trainer.fit(model, data or loader(), ckpt_path=ckpt_path)
    return trainer, model


def trace(trainer, model):
    state = [tensor for row in trainer.optimizers[0].state_dict()["state"].values() for tensor in row.values()]
    return [*model.state_dict().values(), *state, torch.tensor(model.losses), torch.get_rng_state()]


@pytest.mark.parametrize("sample", [SAMPLE, None, "example_input_array"], ids=["given", "own", "own, by name"])
def test_calls_of_functions_and_single_calls_are_logged(tmp_path, sample):
    monitor = ActivationCurvatureMonitor(every_n_steps=4, input_sample=sample, include=[":*", "act*"])
    run(tmp_path, monitor, model=FunctionalNet(example=None if sample is SAMPLE else SAMPLE))
    assert list(monitor.latest) == [":gelu", "act", "act#0", "act#1"]
    mean = [monitor.latest[site]["mean"] for site in ("act", "act#0", "act#1")]
    assert mean[0] == pytest.approx((mean[1] + mean[2]) / 2, rel=1e-9)
    assert not any("gaussian" in name for name in logged_rows(tmp_path)[0])  # only where it is asked for


@pytest.mark.parametrize("sample_rows", [3, None])
@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 3}, {"precision": "bf16-mixed"}])
def test_training_is_bitwise_the_same_with_the_monitor(tmp_path, sample_rows, options):
    monitor = ActivationCurvatureMonitor(1, sample_rows=sample_rows, input_sample=SAMPLE, dead_unit_window=2)
    without = trace(*run(tmp_path / "without", Callback(), max_epochs=5, **options))
    watched = trace(*run(tmp_path / "with", monitor, max_epochs=5, **options))
    assert set(monitor.latest) == {"act", ":gelu", "act#0", "act#1"}
    assert len(without) == len(watched)
    assert all(torch.equal(a, b) for a, b in zip(without, watched, strict=True))


def test_a_swap_of_an_observed_call_goes_through_and_is_followed(tmp_path):
    monitor = ActivationCurvatureMonitor(every_n_steps=1, input_sample=SAMPLE, sample_rows=None)
    swap = ActivationSwap({":gelu": "silu"}, at_step=3, input_sample=SAMPLE)
    _, model = run(tmp_path, monitor, swap)
    assert isinstance(model.gelu_call, nn.SiLU)
    assert ":gelu" in monitor.latest
    assert not any("gelu_call" in site for site in monitor.latest)  # one name in the log, before and after
    steps = [row["step"] for row in logged_rows(tmp_path) if row["curvature/activations/interval"]]
    assert steps[-1] == "7"
    assert torch.isfinite(model(torch.randn(3, FEATURES))).all()


def test_a_resumed_run_goes_on_in_the_middle_of_the_dead_unit_window(tmp_path):
    def once(folder, **options):
        monitor = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=2, input_sample=SAMPLE, dead_unit_window=7)
        run(folder, monitor, SaveEachEpoch(folder), max_epochs=3, **options)
        rows = [row for row in logged_rows(folder) if row["curvature/activations/interval"]]
        return {int(row["step"]): measured(row) for row in rows}, monitor

    reference, first = once(tmp_path / "whole", model=FunctionalNet(dropout=0.0))
    checkpoint_path = tmp_path / "whole" / "epoch0.ckpt"
    resumed, second = once(tmp_path / "resumed", model=FunctionalNet(dropout=0.0), ckpt_path=checkpoint_path)
    assert list(resumed) == list(range(4, 12))
    assert all(resumed[step] == reference[step] for step in resumed)
    assert not resumed[4]["curvature/act/share_dead"]  # the window is not full yet
    assert any(value for step in (6, 7) for key, value in resumed[step].items() if key.endswith("share_dead"))
    assert second.latest == first.latest


class WriteFigures(Callback):
    """Runs in each process of a distributed run: writes the figures of every event to a file."""

    def __init__(self, monitor, folder):
        self.monitor, self.folder, self.rows = monitor, folder, []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.rows.append({site: dict(row) for site, row in self.monitor.latest.items()})
        (self.folder / f"rank{trainer.global_rank}.json").write_text(json.dumps(self.rows))


class Frozen(SmallNet):
    """Its weights stay, and each rank takes its share of a batch: one process sees exactly what two see together."""

    def __init__(self):
        super().__init__(nn.Hardswish)
        self.double()
        self.net[2], self.net[3] = nn.Identity(), nn.Identity()

    def training_step(self, batch, batch_idx):
        x, y = (part[self.global_rank :: self.trainer.world_size] for part in batch)
        return nn.functional.cross_entropy(self(x.double() * 3), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


@pytest.mark.forks
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_two_processes_equal_one_to_twelve_digits(tmp_path):
    """Kink mass and dead units among the figures; every rank has all of them."""
    for name, devices in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        monitor = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=1000, dead_unit_window=2)
        writer = WriteFigures(monitor, tmp_path / name)
        options = {"devices": devices, "max_epochs": 1, "log_every_n_steps": 3}
        options |= {"strategy": "ddp_fork", "use_distributed_sampler": False} if devices > 1 else {}
        trainer = quiet_trainer(tmp_path / name, monitor, writer, **options)
        trainer.fit(Frozen(), DataLoader(dataset(42), batch_size=14))
    one = json.loads((tmp_path / "one" / "rank0.json").read_text())
    for rank in (0, 1):
        two = json.loads((tmp_path / "two" / f"rank{rank}.json").read_text())
        assert len(one) == len(two) == 3
        for expected, figures in zip(one, two, strict=True):
            for site, row in expected.items():
                # Of each process, the windows about kinks are as wide as its own inputs say.
                assert figures[site].pop("kink_mass") == pytest.approx(row["kink_mass"], rel=0.2)
                expected_row = {name: value for name, value in row.items() if name != "kink_mass"}
                assert figures[site] == pytest.approx(expected_row, rel=1e-12, abs=1e-13)
    assert "share_dead" in one[-1]["net.1"]
    assert one[-1]["net.1"]["kink_mass"] > 0


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_both_kinds_of_checkpointing_count_once(tmp_path, use_reentrant):
    class Checkpointed(SmallNet):
        def forward(self, x):
            return checkpoint(self.net, x.requires_grad_(), use_reentrant=use_reentrant)

    monitors = [ActivationCurvatureMonitor(1, sample_rows=None) for _ in range(2)]
    for monitor, model in zip(monitors, (SmallNet(dropout=0), Checkpointed(dropout=0)), strict=True):
        run(tmp_path / type(model).__name__, monitor, model=model, max_epochs=1, limit_train_batches=1)
    assert monitors[0].latest == monitors[1].latest
