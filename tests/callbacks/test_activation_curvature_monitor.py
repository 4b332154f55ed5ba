"""The monitor in a Trainer: right figures, at the right steps, without a trace in the training."""

import copy
import csv
import json
import math
from typing import ClassVar

import pytest
import torch
from callback_helpers import (
    FEATURES,
    InputKeeper,
    SaveEachEpoch,
    SmallNet,
    activations_of,
    collected_warnings,
    dataset,
    loader,
    quiet_trainer,
)
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from lit_gelu import activations, surgery
from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap, CallbackArgumentError, NoActivationError
from lit_gelu.curvature import PREDICTED, STATISTICS, activation_statistics

SITES = ("net.1", "net.5")


def agrees(figures, expected, rel=1e-6, absolute=1e-7):
    """Whether all figures are equal; the windows about kinks are as wide as the last event says, so not their count."""
    known = {name: value for name, value in expected.items() if name != "kink_mass"}
    assert {name: figures[name] for name in known} == pytest.approx(known, rel=rel, abs=absolute, nan_ok=True)
    assert figures["kink_mass"] == pytest.approx(expected["kink_mass"], rel=0.25, abs=1e-12, nan_ok=True)
    return True


class SoftmaxOfChannels(nn.Module):
    def forward(self, x):
        return x.softmax(-1)


class History(Callback):
    """Keeps the monitor's figures by the step at which they were measured."""

    def __init__(self, monitor):
        self.monitor = monitor
        self.figures = {}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if self.monitor.latest and self.monitor.latest not in self.figures.values():
            self.figures[trainer.global_step - 1] = self.monitor.latest


def logged_rows(folder):
    with (folder / "logs" / "0" / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def measured(row):
    """A row of the log, without what depends on the clock."""
    return {key: value for key, value in row.items() if key.startswith("curvature") and not key.endswith("/seconds")}


def fit(folder, *callbacks, model=None, data=None, **options):
    model = model or SmallNet()
    trainer = quiet_trainer(folder, *callbacks, **options)
    trainer.fit(model, data or loader())
    return trainer, model


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

    fit(tmp_path, ActivationCurvatureMonitor(every_n_steps=3), model=LogsItself(), log_every_n_steps=3, max_epochs=3)
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


def test_the_trainers_logging_interval_does_not_drop_figures(tmp_path):
    fit(tmp_path, ActivationCurvatureMonitor(every_n_steps=3), log_every_n_steps=4)
    assert [row["step"] for row in logged_rows(tmp_path) if row["curvature/net.1/mean"]] == ["2", "5"]


def test_several_loggers_get_the_same_figures(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loggers = [CSVLogger(tmp_path, name="logs", version="0"), TensorBoardLogger(tmp_path, name="board", version="0")]
    fit(tmp_path, ActivationCurvatureMonitor(every_n_steps=4), logger=loggers)
    board = EventAccumulator(str(tmp_path / "board" / "0")).Reload()
    rows = [row for row in logged_rows(tmp_path) if row["curvature/net.5/mean_gate"]]
    events = board.Scalars("curvature/net.5/mean_gate")
    assert [event.step for event in events] == [int(row["step"]) for row in rows] == [3, 7]
    assert [event.value for event in events] == pytest.approx([float(row["curvature/net.5/mean_gate"]) for row in rows])


class ScalarReads(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("sample_rows", [4, None])
def test_an_event_reads_no_scalars(tmp_path, sample_rows):
    class Counted(ActivationCurvatureMonitor):
        names: ClassVar[list[list[str]]] = []

        def on_train_batch_end(self, *arguments):
            with ScalarReads() as reads:
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

    whole, part = ActivationCurvatureMonitor(1, sample_rows=None), ActivationCurvatureMonitor(1, sample_rows=256)
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


def test_validation_and_sanity_checks_are_not_measured(tmp_path):
    class Shifted(SmallNet):
        def validation_step(self, batch, batch_idx):
            self(batch[0] + 1000)

    monitor = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=None)
    trainer = quiet_trainer(tmp_path, monitor, num_sanity_val_steps=1, val_check_interval=2)
    trainer.fit(Shifted(), loader(), loader())
    assert abs(monitor.latest["net.1"]["mean"]) < 10


def test_a_module_called_twice_counts_twice(tmp_path):
    class Twice(SmallNet):
        def forward(self, x):
            return self.net(x) + self.net(2 * x)

    monitor, keeper = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=None), InputKeeper()
    fit(tmp_path, keeper, monitor, model=Twice(), max_epochs=1)
    calls = keeper.inputs[3]["net.1"]
    assert len(calls) == 2
    assert agrees(monitor.latest["net.1"], activation_statistics("relu", torch.cat(calls)))


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


def test_a_step_that_the_module_skips_leaves_nothing_open(tmp_path):
    class Skipping(SmallNet):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if batch_idx == 2 else None

    monitor = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=None)
    fit(tmp_path, monitor, model=Skipping(), max_epochs=2)
    assert monitor.latest
    assert not monitor._recording


class ReplaceByHand(Callback):
    """Replaces the activations without telling anyone."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.step:
            pl_module.net[1], pl_module.net[5] = nn.GELU(), nn.GELU()


@pytest.mark.parametrize("monitor_first", [True, False])
def test_hooks_follow_a_replacement_by_anyone(tmp_path, monitor_first):
    monitor = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=None)
    history = History(monitor)
    pair = [monitor, ReplaceByHand(3)]
    fit(tmp_path, *(pair if monitor_first else pair[::-1]), history)
    curved = {step: row["net.1"]["mean_abs_second_derivative"] > 0 for step, row in history.figures.items()}
    missing = {3} if monitor_first else set()  # replaced after the recording began: that batch cannot be measured
    assert curved == {step: step >= 3 for step in range(8) if step not in missing}


def test_a_measurement_that_a_replacement_spoilt_is_made_up_for_at_the_next_batch(tmp_path):
    monitor = ActivationCurvatureMonitor(every_n_steps=4, sample_rows=None)
    history = History(monitor)
    fit(tmp_path, monitor, ReplaceByHand(3), history)
    assert list(history.figures) == [4, 7]


def test_resumed_run_logs_what_the_uninterrupted_one_does(tmp_path):
    def run(folder, **options):
        torch.manual_seed(3)
        monitor = ActivationCurvatureMonitor(every_n_steps=3, sample_rows=3)
        trainer = quiet_trainer(folder, monitor, SaveEachEpoch(folder), max_epochs=3)
        trainer.fit(SmallNet(dropout=0), loader(), **options)
        return {int(row["step"]): row for row in logged_rows(folder) if row["curvature/net.1/mean"]}

    whole = run(tmp_path / "whole")
    resumed = run(tmp_path / "resumed", ckpt_path=tmp_path / "whole" / "epoch0.ckpt")
    assert list(whole) == [2, 5, 8, 11]
    assert list(resumed) == [5, 8, 11]
    for step, row in resumed.items():
        assert measured(row) == measured(whole[step])


def test_include_picks_sites_by_pattern(tmp_path):
    monitor = ActivationCurvatureMonitor(every_n_steps=1, include=["nothing.*", "net.5"])
    fit(tmp_path, monitor, max_epochs=1)
    assert list(monitor.latest) == ["net.5"]


def test_gates_are_not_activations(tmp_path):
    class Gated(SmallNet):
        def __init__(self):
            super().__init__()
            self.gate = nn.Sigmoid()

        def forward(self, x):
            return self.gate(self.net(x))

    monitor = ActivationCurvatureMonitor(every_n_steps=1)
    fit(tmp_path, monitor, model=Gated(), max_epochs=1)
    assert list(monitor.latest) == list(SITES)


def test_activations_that_mix_elements_are_left_out(tmp_path):
    registry = activations.ActivationRegistry()
    registry.register("soft", facts=activations.ActivationFacts(elementwise=False))(SoftmaxOfChannels)
    monitor = ActivationCurvatureMonitor(every_n_steps=1, registry=registry)
    model = SmallNet()
    model.net[5] = SoftmaxOfChannels()
    fit(tmp_path, monitor, model=model, max_epochs=1)
    assert list(monitor.latest) == ["net.1"]


def test_undefined_figures_are_not_logged(tmp_path):
    monitor = ActivationCurvatureMonitor(every_n_steps=1)
    fit(tmp_path, monitor, model=SmallNet(nn.Softplus), max_epochs=1)
    assert math.isnan(monitor.latest["net.1"]["mean_gate"])
    keys = set(logged_rows(tmp_path)[0])
    assert "curvature/net.1/mean" in keys
    assert "curvature/net.1/mean_gate" not in keys


def test_a_site_that_is_not_called_is_named_once(tmp_path):
    class Unused(SmallNet):
        def __init__(self):
            super().__init__()
            self.spare = nn.GELU()

    monitor = ActivationCurvatureMonitor(every_n_steps=1)
    with collected_warnings("logs nothing for 'spare'") as messages:
        fit(tmp_path, monitor, model=Unused())
    assert len(messages) == 1
    assert not any("spare" in key for key in logged_rows(tmp_path)[0])


def test_hooks_are_gone_after_the_run_and_after_an_error(tmp_path):
    _, model = fit(tmp_path / "a", ActivationCurvatureMonitor(every_n_steps=1))
    assert not any(module._forward_pre_hooks for module in model.modules())

    class Failing(SmallNet):
        def training_step(self, batch, batch_idx):
            raise RuntimeError("training failed")

    model = Failing()
    with pytest.raises(RuntimeError, match="training failed"):
        fit(tmp_path / "b", ActivationCurvatureMonitor(every_n_steps=1), model=model)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_copy_of_the_model_in_training_has_no_working_hook(tmp_path):
    class CopyAndRun(Callback):
        def on_before_zero_grad(self, trainer, pl_module, optimizer):
            copy.deepcopy(pl_module.net)(torch.full((8, FEATURES), 1e6))

    monitor = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=None)
    fit(tmp_path, monitor, CopyAndRun(), max_epochs=1)
    assert monitor.latest["net.1"]["standard_deviation"] < 100


def test_no_logger_is_refused(tmp_path):
    with pytest.raises(MisconfigurationException, match="logger=True"):
        fit(tmp_path, ActivationCurvatureMonitor(), logger=False)


def test_a_model_without_activation_modules_is_refused(tmp_path):
    class Functional(SmallNet):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(FEATURES, 3)

    with pytest.raises(NoActivationError, match="input_sample="):
        fit(tmp_path, ActivationCurvatureMonitor(), model=Functional())
    with pytest.raises(NoActivationError, match=r"net\.1, net\.5"):
        fit(tmp_path, ActivationCurvatureMonitor(include="encoder.*"))


def test_any_seed_is_accepted(tmp_path):
    monitor = ActivationCurvatureMonitor(every_n_steps=1, sample_rows=2, seed=2**64 - 1)
    fit(tmp_path, monitor, max_epochs=1)
    assert monitor.latest


@pytest.mark.parametrize("arguments", [{"every_n_steps": 0}, {"sample_rows": -1}])
def test_numbers_that_are_not_positive_are_refused(arguments):
    with pytest.raises(CallbackArgumentError, match=next(iter(arguments))):
        ActivationCurvatureMonitor(**arguments)


def test_a_run_too_short_for_a_measurement_warns(tmp_path):
    with collected_warnings("will measure nothing: this run has 8 steps") as messages:
        fit(tmp_path, ActivationCurvatureMonitor(every_n_steps=9))
    assert len(messages) == 1


def test_a_run_whose_length_lightning_cannot_tell_starts(tmp_path):
    monitor = ActivationCurvatureMonitor(every_n_steps=2)
    swap = ActivationSwap({"*": "gelu"}, at_step=3)
    _, model = fit(tmp_path, monitor, swap, GradientAccumulationScheduler({1: 2}))
    assert monitor.latest
    assert activations_of(model) == ["GELU", "GELU"]


def test_a_trial_run_warns_of_nothing(tmp_path):
    fit(tmp_path, ActivationCurvatureMonitor(), ActivationSwap({"*": "gelu"}, at_epoch=5), fast_dev_run=2)


def test_state_dict_of_the_model_is_unchanged(tmp_path):
    _, model = fit(tmp_path, ActivationCurvatureMonitor(every_n_steps=1))
    assert list(model.state_dict()) == list(SmallNet().state_dict())
    assert activations_of(model) == ["ReLU", "ReLU"]


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


def test_find_sites_agrees_with_what_is_watched(tmp_path):
    monitor = ActivationCurvatureMonitor(every_n_steps=1)
    _, model = fit(tmp_path, monitor, max_epochs=1)
    assert list(monitor.latest) == [site.name for site in surgery.find_sites(model)]
