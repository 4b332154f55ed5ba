"""What a group refuses: it would be another run than each alone, in silence."""

import pytest
import torch
from lightning.pytorch import callbacks
from replica_nets import Net, Samples, train_group, trainer
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap, ExactResume, LossCurvatureMonitor, OnnxExport
from lit_gelu.data.in_memory import InMemorySamples
from lit_gelu.errors import ArgumentError, UnsupportedRunError
from lit_gelu.replicas import ReplicaDataModule, ReplicaGroup
from lit_gelu.tasks import MNISTClassifier


@pytest.mark.parametrize(
    "make",
    [
        lambda: ReplicaGroup.of(Net, []),
        lambda: ReplicaGroup.of(Net, [{}, {}], [0]),
        lambda: ReplicaGroup([Net()] * 2),
        lambda: ReplicaDataModule(DataLoader(range(3))),
        lambda: ReplicaDataModule(type("Own", (Samples,), {"train_dataloader": lambda self: None})()),
        lambda: ReplicaDataModule(type("Own", (Samples,), {"on_after_batch_transfer": lambda self, batch, _: batch})()),
    ],
)
def test_arguments_that_are_not_accepted(make):
    with pytest.raises(ArgumentError):
        make()


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("automatic_optimization", False),
        ("on_train_batch_start", lambda self, batch, batch_idx: None),
        ("optimizer_step", lambda self, *arguments, **named: None),
        ("transfer_batch_to_device", lambda self, batch, device, dataloader_idx: batch),
    ],
)
def test_modules_with_hooks_that_a_group_does_not_call(name, attribute):
    with pytest.raises(UnsupportedRunError):
        ReplicaGroup.of(type("Hooked", (Net,), {name: attribute}), [{}])


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "ddp"},
        {"precision": "bf16-mixed"},
        {"overfit_batches": 2},
        {"callbacks": [ActivationSwap({"relu": "gelu"}, at_epoch=0)]},
        {"callbacks": [ActivationCurvatureMonitor()]},
        {"callbacks": [LossCurvatureMonitor()]},
        {"callbacks": [OnnxExport("net.onnx")]},
        {"callbacks": [ExactResume()]},
        {"callbacks": [callbacks.StochasticWeightAveraging(0.1)]},
        {"callbacks": [callbacks.LearningRateFinder()]},
        {"callbacks": [callbacks.BatchSizeFinder()]},
        {"callbacks": [callbacks.ModelPruning("l1_unstructured")]},
        {"callbacks": [callbacks.BackboneFinetuning()]},
    ],
)
def test_trainers_that_would_mix_members(options):
    with pytest.raises(UnsupportedRunError):
        train_group(Net, [{}, {}], [0, 1], **options)


class OwnBatches(InMemorySamples):
    def __getitems__(self, indices):
        return super().__getitems__(indices)


class Augmenting(Samples):
    def load_train_and_val(self):
        return OwnBatches(*self.all), InMemorySamples(*self.all)


class Splitting(Samples):
    def load_train_and_val(self):
        kept = torch.randperm(len(self.all[0]))[:40]
        return InMemorySamples(*(tensor[kept] for tensor in self.all)), InMemorySamples(*self.all)


class Shuffling(Samples):
    def val_dataloader(self):
        return DataLoader(self.val_set, shuffle=True, batch_size=4)


class LoggingAMetric(Net):
    def __init__(self):
        super().__init__()
        self.mean = MeanMetric()

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.mean.update(loss.detach())
        self.log("mean", self.mean)
        return loss


class Skipping(Net):
    def training_step(self, batch, batch_idx):
        return None


def on_a_plateau(module):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "elsewhere"}}


class Elsewhere(callbacks.Callback):
    def on_validation_epoch_end(self, trainer, pl_module):
        pl_module.log("elsewhere", 1.0)


FITS = {
    "batches of its own": {"data": Augmenting},
    "a split that draws": {"data": Splitting},
    "shuffled validation": {"data": Shuffling},
    "no optimizer": {"configure": lambda module: None},
    "two optimizers": {"configure": lambda module: [torch.optim.SGD(module.parameters(), lr=0.1)] * 2},
    "one that computes losses": {"configure": lambda module: torch.optim.LBFGS(module.parameters())},
    "a schedule by what no member logs": {"configure": on_a_plateau, "callbacks": [Elsewhere()]},
    "a metric logged": {"build": LoggingAMetric},
    "no loss": {"build": Skipping},
}


@pytest.mark.parametrize("options", FITS.values(), ids=FITS)
def test_fits_that_are_not_those_of_each_run_alone(options):
    options = dict(options)
    cell = {"configure": options.pop("configure")} if "configure" in options else {}
    with pytest.raises((UnsupportedRunError, ArgumentError)):
        train_group(options.pop("build", Net), [cell] * 2, [0, 1], options.pop("data", Samples), **options)


def test_a_group_is_not_resumed(tmp_path):
    _, its = train_group(Net, [{}, {}], [0, 1], max_epochs=1)
    its.save_checkpoint(tmp_path / "group.ckpt")
    group = ReplicaGroup.of(Net, [{}, {}], [0, 1])
    with pytest.raises(UnsupportedRunError):
        trainer().fit(group, datamodule=ReplicaDataModule(Samples()), ckpt_path=tmp_path / "group.ckpt")


def test_an_activation_that_no_checkpoint_holds_is_refused_as_alone(tmp_path):
    group = ReplicaGroup.of(MNISTClassifier, [{"activation": torch.sin}, {"activation": torch.cos}])
    with pytest.raises(Exception, match="enable_checkpointing=False"):
        trainer(enable_checkpointing=True, default_root_dir=tmp_path).fit(
            group, datamodule=ReplicaDataModule(Samples(784, 10))
        )
