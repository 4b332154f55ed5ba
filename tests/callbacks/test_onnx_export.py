"""`OnnxExport`: the best checkpoint as a file, with the proof beside it, at the end of a fit."""

import copy
import hashlib
import json
import random
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from callback_helpers import SmallNet, collected_warnings, loader, logged_rows, quiet_trainer
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import FSDPStrategy
from swap_runs import RELU_TO_GELU
from torch import nn

from lit_gelu.callbacks import ActivationSwap, OnnxExport
from lit_gelu.errors import ArgumentError, ExportError, ModelInputError, ParityError, UnsupportedRunError
from lit_gelu.export import OnnxPredictor


class Exportable(SmallNet):
    """Best in a chosen epoch; its constructor takes an activation that no hyperparameter records."""

    def __init__(self, activation=nn.ReLU, best_epoch=0):
        super().__init__(activation)
        self.best_epoch = best_epoch
        self.example_input_array = torch.zeros(2, 6)

    def validation_step(self, batch, batch_idx):
        self.log("distance", float(abs(self.current_epoch - self.best_epoch)), sync_dist=True)


def best_of(folder):
    return ModelCheckpoint(folder / "saved", monitor="distance", save_top_k=-1, filename="{epoch}")


def fit(folder, model, *callbacks, **options):
    trainer = quiet_trainer(folder, *callbacks, **{"enable_checkpointing": True, **options})
    trainer.fit(model, loader(), loader())
    return trainer


def by_hand(folder, epoch, function, x):
    """The net's output from the tensors in a checkpoint, in float64 and without the module."""
    state = torch.load(folder / f"saved/epoch={epoch}.ckpt", weights_only=True)["state_dict"]
    w = {name.removeprefix("net."): tensor.double() for name, tensor in state.items()}
    y = function(x.double() @ w["0.weight"].T + w["0.bias"])
    y = (y - w["2.running_mean"]) / (w["2.running_var"] + 1e-5).sqrt() * w["2.weight"] + w["2.bias"]
    y = function(y @ w["4.weight"].T + w["4.bias"])
    return y @ w["6.weight"].T + w["6.bias"]


@pytest.mark.parametrize(("best", "function"), [(0, torch.relu), (1, nn.functional.gelu)])
def test_the_best_checkpoint_with_the_activations_of_its_time(tmp_path, best, function):
    """The swap is between the two epochs: before it the best net has ReLU, after it GELU."""
    export = OnnxExport()
    fit(tmp_path, Exportable(best_epoch=best), ActivationSwap(RELU_TO_GELU, at_epoch=1), best_of(tmp_path), export)
    x = torch.randn(7, 6)
    predictor = OnnxPredictor(tmp_path / "saved/model.onnx")
    assert (predictor(x).double() - by_hand(tmp_path, best, function, x)).abs().max() < 1e-5
    assert export.parity.passed
    assert {site.spec for site in export.exported.sites} == {function.__name__}


def test_the_proof_is_beside_the_file_in_it_and_in_the_log(tmp_path):
    path = tmp_path / "out" / "net.onnx"
    export = OnnxExport(str(path), softmax=True, labels=["a", "b", "c"], approximate="as_trained")
    fit(tmp_path, Exportable(), best_of(tmp_path), export)
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "net.onnx", "net.parity.html", "net.parity.json", "net.parity.md"
    ]  # fmt: skip
    text = path.with_name("net.parity.json").read_bytes()
    record = json.loads(OnnxPredictor(path).metadata["lit_gelu.parity"])
    assert record["passed"] is True
    assert record["report_sha256"] == hashlib.sha256(text).hexdigest()
    assert str(tmp_path).encode() not in text + path.read_bytes() + path.with_name("net.parity.md").read_bytes()
    logged = {}
    for row in logged_rows(tmp_path):
        logged.update({name: float(value) for name, value in row.items() if value and name.startswith("export/")})
    assert logged == {
        "export/parity_passed": 1.0,
        "export/top1_agreement": 1.0,
        "export/max_relative_error": record["max_relative_error"],
    }


def test_without_checkpoint_logger_or_check_the_module_as_it_ends(tmp_path):
    model = Exportable()
    trainer = fit(tmp_path, model, OnnxExport(check=False), enable_checkpointing=False, logger=False)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    x = torch.randn(4, 6)
    assert torch.allclose(OnnxPredictor(tmp_path / "model.onnx")(x), model.eval()(x), atol=1e-6)
    assert trainer.default_root_dir == str(tmp_path)


class Witness(Callback):
    """Sees module and generators just before and just after another callback's end of the fit."""

    def __init__(self):
        self.seen = []

    def on_fit_end(self, trainer, pl_module):
        flags = [module.training for module in pl_module.modules()]
        state = copy.deepcopy(pl_module.state_dict())
        draws = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # noqa: NPY002
        self.seen.append((flags, state, draws, list(map(id, pl_module.modules())), pl_module.trainer is trainer))


@pytest.mark.filterwarnings("ignore:Found 1 module")  # that is what is tried
def test_training_is_left_as_it_was(tmp_path):
    model, before, after = Exportable(), Witness(), Witness()
    model.net[3].eval()
    fit(tmp_path, model, before, OnnxExport(), after, best_of(tmp_path))
    (a,), (b,) = before.seen, after.seen
    assert a[0] == b[0]
    assert all(torch.equal(tensor, b[1][name]) for name, tensor in a[1].items())
    assert (a[2], a[3]) == (b[2], b[3])
    assert a[4]
    assert b[4]


def test_a_data_module_gives_its_test_data_and_the_modules_own_metrics(tmp_path):
    export, data = OnnxExport(), LightningDataModule()
    data.train_dataloader = data.val_dataloader = loader  # on the instance, as `from_datasets` has them
    data.test_dataloader = lambda: loader(20)
    trainer = quiet_trainer(tmp_path, export, max_epochs=1)
    trainer.fit(Exportable(), datamodule=data)
    assert export.parity.row("data").count == 20
    (metric,) = export.parity.metrics
    assert metric.name == "test_loss"
    assert metric.file == pytest.approx(metric.pytorch, rel=1e-5)


def test_all_loaders_that_the_fit_validated_with_up_to_their_limit(tmp_path):
    class Validated(Exportable):
        def validation_step(self, batch, batch_idx, dataloader_idx=0): ...

    export = OnnxExport(tmp_path / "net.onnx")
    trainer = quiet_trainer(tmp_path, export, max_epochs=1, limit_val_batches=2, num_sanity_val_steps=0)
    trainer.fit(Validated(), loader(), [loader(8), (loader(16), loader(24))])
    assert export.parity.row("data").count == 40


def _broken(export_onnx, model, *arguments, **options):
    twin = copy.deepcopy(model)
    twin.net[0].bias.data.add_(0.1)
    return export_onnx(twin, *arguments, **options)


def test_a_file_that_computes_something_else(tmp_path, monkeypatch):
    import lit_gelu.export

    monkeypatch.setattr(lit_gelu.export, "export_onnx", partial(_broken, lit_gelu.export.export_onnx))
    export = OnnxExport()
    with pytest.raises(ParityError):
        fit(tmp_path, Exportable(), best_of(tmp_path), export, max_epochs=1)
    assert not export.parity.passed
    assert json.loads(OnnxPredictor(tmp_path / "saved/model.onnx").metadata["lit_gelu.parity"])["passed"] is False


def test_a_failure_may_be_a_warning(tmp_path):
    (tmp_path / "taken.onnx").mkdir()
    export = OnnxExport(str(tmp_path / "taken.onnx"), on_breach="warn")
    with collected_warnings("OnnxExport: UnwritablePathError: ") as messages:
        trainer = fit(tmp_path, Exportable(), export, max_epochs=1)
    assert len(messages) == 1
    assert trainer.state.status == "finished"
    assert export.exported is None


@pytest.mark.forks
def test_two_ranks(tmp_path):
    """Rank 0 writes; the other one waits for it."""
    options = {"strategy": "ddp_fork", "devices": 2, "max_epochs": 1}
    fit(tmp_path, Exportable(), best_of(tmp_path), OnnxExport(), **options)
    assert sorted(file.name for file in (tmp_path / "saved").iterdir()) == [
        "epoch=0.ckpt", "model.onnx", "model.parity.html", "model.parity.json", "model.parity.md"
    ]  # fmt: skip
    x = torch.randn(7, 6)
    outputs = OnnxPredictor(tmp_path / "saved/model.onnx")(x).double()
    assert (outputs - by_hand(tmp_path, 0, torch.relu, x)).abs().max() < 1e-5


def test_the_other_ranks_raise_what_rank_0_says():
    strategy = SimpleNamespace(broadcast=lambda error: error or "UnwritablePathError: no room")
    trainer = SimpleNamespace(fast_dev_run=False, log_dir=".", is_global_zero=False, strategy=strategy)
    with pytest.raises(ExportError):
        OnnxExport().on_fit_end(trainer, Exportable())


def test_nothing_after_a_trial_run(tmp_path):
    fit(tmp_path, Exportable(), OnnxExport(), fast_dev_run=True)
    assert not list(tmp_path.rglob("*.onnx"))


@pytest.mark.parametrize("arguments", [{"path": "model.pt"}, {"on_breach": "ignore"}, {"approximate": "tahn"}], ids=str)
def test_arguments_that_do_not_exist(arguments):
    with pytest.raises(ArgumentError):
        OnnxExport(**arguments)


def test_what_would_fail_after_training_is_refused_before(tmp_path):
    trainer = quiet_trainer(tmp_path, OnnxExport())
    with pytest.raises(ModelInputError):
        trainer.fit(SmallNet(), loader())
    with pytest.raises(UnsupportedRunError):
        quiet_trainer(tmp_path, OnnxExport(preprocessing=True)).fit(Exportable(), loader(), loader())
    trainer = quiet_trainer(tmp_path)
    trainer._accelerator_connector.strategy = FSDPStrategy()
    with pytest.raises(UnsupportedRunError):
        OnnxExport().setup(trainer, Exportable(), "fit")


def test_what_would_fail_after_training_is_refused_before_it(tmp_path):
    model = SmallNet()
    with pytest.raises(ModelInputError):
        quiet_trainer(tmp_path, OnnxExport(preprocessing=nn.Identity())).fit(model, loader())
    assert model.trainer.global_step == 0
    with pytest.raises(ArgumentError):
        OnnxExport(preprocessing="yes")


def test_data_for_training_alone_are_no_data_to_compare_on(tmp_path):
    data = LightningDataModule()
    data.train_dataloader = loader
    export, model = OnnxExport(str(tmp_path / "net.onnx")), SmallNet()
    model.example_input_array = torch.zeros(2, 6)
    quiet_trainer(tmp_path, export).fit(model, datamodule=data)
    assert export.parity.passed
