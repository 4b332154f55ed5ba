"""`FusedActivations`: compiled activations while a Trainer runs, and nothing else that can be seen of the run."""

import pytest
import torch
from callback_helpers import Fails, SmallNet, loader, quiet_trainer
from compiled_activations import compiled  # noqa: F401 - a fixture
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lit_gelu import kernels, surgery
from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap, FusedActivations, LossCurvatureMonitor
from lit_gelu.tasks import MNISTClassifier


def fused_in(model):
    return [name for name, module in model.named_modules() if kernels.is_fused(module)]


class Seen(Callback):
    """Notes what is fused at the end of every batch."""

    def __init__(self):
        self.fused = []

    def on_train_batch_end(self, trainer, pl_module, *_):
        self.fused.append(fused_in(pl_module))


class GeluNet(SmallNet):
    def __init__(self):
        super().__init__(nn.GELU)


def run(folder, *callbacks, net=GeluNet, **options):
    model = net()
    trainer = quiet_trainer(folder, *callbacks, **options)
    torch.manual_seed(2)
    trainer.fit(model, loader())
    return model, trainer


def test_what_was_fused_before_stays_fused(tmp_path):
    def net():
        model = GeluNet()
        kernels.fuse(model.net[5])
        return model

    seen = Seen()
    model, trainer = run(tmp_path, FusedActivations(), seen, net=net)
    assert seen.fused[0] == ["net.1", "net.5"]
    assert fused_in(model) == ["net.5"]
    trainer.test(model, loader(), verbose=False)
    assert fused_in(model) == ["net.5"]


def test_a_run_of_small_tensors_is_bitwise_the_same(tmp_path):
    records = []
    for name, callbacks in (("plain", []), ("fused", [FusedActivations()])):
        saving = ModelCheckpoint(tmp_path / name / "checkpoints", save_last=True)
        model, _ = run(tmp_path / name, saving, *callbacks, enable_checkpointing=True)
        checkpoint = torch.load(tmp_path / name / "checkpoints" / "last.ckpt", weights_only=True)
        assert not any("Fused" in key for key in checkpoint["callbacks"])
        records.append([
            model.losses,
            checkpoint["state_dict"],
            checkpoint["optimizer_states"],
            checkpoint["global_step"],
        ])
    plain, fused = records
    assert plain[-1] == fused[-1] > 3
    torch.testing.assert_close(fused, plain, rtol=0, atol=0)


def test_the_new_activations_of_a_swap_are_fused(tmp_path):
    seen, swap = Seen(), ActivationSwap({"net.1": "silu"}, at_step=3)
    model, _ = run(tmp_path, swap, FusedActivations(), seen)
    assert seen.fused == [["net.1", "net.5"]] * 8
    assert type(model.net[1]) is nn.SiLU
    swap.report.undo()
    assert type(model.net[1]) is nn.GELU


class Late(SmallNet):
    """Builds its net when the Trainer says so."""

    def __init__(self):
        super().__init__(nn.GELU)
        self.net[1] = self.net[5] = nn.Identity()

    def setup(self, stage):
        self.net[1] = nn.GELU()

    def configure_model(self):
        self.net[5] = nn.GELU()


@pytest.mark.parametrize("stage", ["fit", "validate", "test", "predict"])
def test_modules_that_come_late_are_fused_in_every_stage(tmp_path, stage):
    class Net(Late):
        def forward(self, x):
            seen.append(fused_in(self))
            return super().forward(x)

        def validation_step(self, batch, batch_idx):
            self(batch[0])

        def test_step(self, batch, batch_idx):
            self(batch[0])

        def predict_step(self, batch, batch_idx):
            return self(batch[0])

    seen, model = [], Net()
    options = {"verbose": False} if stage in {"validate", "test"} else {}
    batches = 4 if stage == "validate" else 0
    trainer = quiet_trainer(tmp_path, FusedActivations(), max_epochs=1, limit_val_batches=batches)
    getattr(trainer, stage)(model, *[loader()] * (1 + (stage == "fit")), **options)
    assert seen == [["net.1", "net.5"]] * 4
    assert fused_in(model) == []


def test_activations_that_a_checkpoint_brings_are_fused(tmp_path):
    saved = MNISTClassifier("relu", hidden_layers=2)
    surgery.swap(saved, {"hidden.0.activation": "gelu"})
    trainer = quiet_trainer(tmp_path)
    trainer.strategy.connect(saved)
    trainer.save_checkpoint(tmp_path / "swapped.ckpt")
    fresh, seen = MNISTClassifier("relu", hidden_layers=2), []
    fresh.register_forward_hook(lambda module, *_: seen.append(fused_in(module)))
    images = torch.rand(8, 1, 28, 28), torch.zeros(8, dtype=torch.long)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*images), batch_size=8)
    quiet_trainer(tmp_path, FusedActivations()).test(fresh, data, ckpt_path=tmp_path / "swapped.ckpt", verbose=False)
    assert seen[-1] == ["hidden.0.activation"]
    assert type(fresh.hidden[0].activation) is nn.GELU


def test_an_error_leaves_the_model_as_it_was(tmp_path):
    model, failing = GeluNet(), Fails("on_train_batch_end", RuntimeError("enough"))
    with pytest.raises(RuntimeError):
        quiet_trainer(tmp_path, FusedActivations(), failing).fit(model, loader())
    assert fused_in(model) == []


def test_monitors_say_the_same(tmp_path):
    texts = []
    for name, callbacks in (("plain", []), ("fused", [FusedActivations()])):
        monitors = ActivationCurvatureMonitor(every_n_steps=2), LossCurvatureMonitor(every_n_steps=4, fraction=None)
        run(tmp_path / name, *callbacks, *monitors)
        texts.append((tmp_path / name / "logs" / "0" / "metrics.csv").read_text())
    rows = [[line.split(",") for line in text.splitlines()] for text in texts]
    assert "curvature/net.1/mean_gate" in rows[0][0]
    differing = {
        title for a, b in zip(*rows, strict=True) for title, x, y in zip(rows[0][0], a, b, strict=True) if x != y
    }
    assert not {title for title in differing if not title.endswith(("/seconds", "/cost_in_training_batches"))}


@pytest.mark.usefixtures("compiled")
def test_compiled_code_computes_while_the_trainer_runs(tmp_path):
    swap = ActivationSwap({"net.5": "silu"}, at_step=4)
    model, _ = run(tmp_path, FusedActivations(), swap, precision="bf16-true")
    assert kernels._passes.cache_info().currsize == 2  # of GELU and of SiLU
    plain, _ = run(tmp_path / "plain", ActivationSwap({"net.5": "silu"}, at_step=4), precision="bf16-true")
    torch.testing.assert_close(torch.tensor(model.losses), torch.tensor(plain.losses), rtol=0.02, atol=0)
