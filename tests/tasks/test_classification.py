"""What the classifiers share: metrics in every precision, and the training loss measured with noise off."""

import copy
import math
import warnings

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule
from sklearn.metrics import accuracy_score, log_loss
from small_task import SmallData, quiet_trainer
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu import activations
from lit_gelu.tasks import MNISTClassifier


@pytest.mark.parametrize("stage", ["val", "test"])
def test_metrics_agree_with_scikit_learn(stage):
    torch.manual_seed(0)
    model, data = MNISTClassifier("elu", hidden_layers=2), SmallData()
    trainer = quiet_trainer()
    evaluate = trainer.validate if stage == "val" else trainer.test
    (result,) = evaluate(model, datamodule=data, verbose=False)
    images, labels = (data.val_set if stage == "val" else data.test_set).tensors
    with torch.no_grad():
        probabilities = model.double()(images.double()).softmax(1).numpy()
    assert set(result) == {f"{stage}_loss", f"{stage}_error"}
    expected = log_loss(labels.numpy(), probabilities, labels=list(range(10)))
    assert result[f"{stage}_loss"] == pytest.approx(expected, rel=1e-5)
    assert result[f"{stage}_error"] == pytest.approx(1 - accuracy_score(labels, probabilities.argmax(1)), abs=1e-7)


def test_a_loss_that_is_no_number_is_reported_as_such():
    model = MNISTClassifier("relu", hidden_layers=1)
    model.output.weight.data[0, 0] = math.nan
    (result,) = quiet_trainer().test(model, datamodule=SmallData(), verbose=False)
    assert math.isnan(result["test_loss"])


class Witness(Callback):
    """Before each update, computes the loss in evaluation mode on a copy; after it, what was logged."""

    def __init__(self):
        self.expected, self.logged, self.modes = [], [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        copied = copy.deepcopy(pl_module.hidden).eval(), copy.deepcopy(pl_module.output)
        with torch.no_grad():
            logits = copied[1](copied[0](batch[0].flatten(1)))
        self.expected.append(functional.cross_entropy(logits, batch[1]).item())

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.logged.append(trainer.logged_metrics["train_loss"].item())
        self.modes.append([module.training for module in pl_module.modules()])


def fit(model, witness):
    torch.manual_seed(0)
    trainer = quiet_trainer(max_epochs=2, callbacks=[witness])
    trainer.fit(model, datamodule=SmallData())
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("noise", [{"keep": 0.5}, {"activation": "zero_identity_map"}, {"activation": nn.RReLU}])
def test_training_loss_is_measured_with_noise_off_before_the_update(noise, monkeypatch):
    torch.manual_seed(0)
    model = MNISTClassifier(hidden_layers=2, **noise)
    twin = copy.deepcopy(model)
    witness = Witness()
    trained = fit(model, witness)
    assert witness.logged == witness.expected
    assert all(all(modes) for modes in witness.modes)

    # The measurement leaves the training run alone: without it the weights are the same, the logged loss is noisy.
    monkeypatch.setattr(MNISTClassifier, "is_noisy", property(lambda self: False))
    noisy = Witness()
    for ours, reference in zip(trained, fit(twin, noisy), strict=True):
        assert torch.equal(ours, reference)
    assert noisy.logged != noisy.expected


def test_noise_is_noticed_when_a_module_is_replaced():
    model = MNISTClassifier("relu", hidden_layers=2)
    assert not model.is_noisy
    model.hidden[1].activation = activations.create("zero_identity_map")
    assert model.is_noisy
    model.hidden[1].activation = nn.ReLU()
    assert not model.is_noisy


def test_samples_without_a_class_count_nowhere():
    """Cross-entropy leaves out the label -100, and so do the figures."""
    torch.manual_seed(0)
    model, images = MNISTClassifier("relu", hidden_layers=1).eval(), torch.rand(6, 784)
    labels = torch.tensor([1, -100, 2, -100, -100, 3])
    figures = model.sample_values(images, labels)
    kept = model.sample_values(images[labels >= 0], labels[labels >= 0])
    assert {name: value.tolist() for name, value in figures.items()} == {
        name: pytest.approx(value.tolist()) for name, value in kept.items()
    }
    assert figures["loss"].mean().item() == pytest.approx(model.mean_loss(images, labels).item())


class Saves(MNISTClassifier):
    """Lightning's usual way to keep a subclass' own arguments."""

    def __init__(self, scale=2.0, **options):
        super().__init__(**options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a module among the arguments is saved twice, it says
            self.save_hyperparameters()
        self.scale = scale


@pytest.mark.filterwarnings(
    "ignore:Attribute 'registry' removed from hparams"
)  # where another test's cannot be pickled
@pytest.mark.parametrize("options", [{"activation": nn.GELU}, {"activation": nn.GELU(), "registry": None}, {}])
def test_a_subclass_that_saves_its_arguments_again(options, tmp_path):
    if "registry" in options:
        options = {**options, "registry": activations.registry}
    trainer = quiet_trainer(max_steps=1)
    model = Saves(scale=3.0, hidden_layers=1, **options)
    trainer.fit(model, datamodule=SmallData())
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    again = Saves.load_from_checkpoint(tmp_path / "saved.ckpt")
    assert (again.scale, again.activation_spec) == (3.0, model.activation_spec)


COUNT = 3000


class Many(LightningDataModule):
    """So many samples that a count in bfloat16, which has 8 bits, stops at 256."""

    def setup(self, stage=None):
        generator = torch.Generator().manual_seed(0)
        images = torch.rand(COUNT, 1, 28, 28, generator=generator)
        self.samples = TensorDataset(images, torch.randint(10, (COUNT,), generator=generator))

    def test_dataloader(self):
        return DataLoader(self.samples, batch_size=30)


@pytest.mark.parametrize("precision", ["bf16-true", "16-true", "32-true", "64-true"])
def test_the_means_are_those_of_the_outputs(precision):
    torch.manual_seed(0)
    model, data = MNISTClassifier("relu", hidden_layers=1), Many()
    (metrics,) = quiet_trainer(precision=precision).test(model, datamodule=data, verbose=False)
    images, labels = data.samples.tensors
    dtype = model.output.weight.dtype
    assert dtype == {"bf": torch.bfloat16, "16": torch.float16, "32": torch.float32, "64": torch.float64}[precision[:2]]
    with torch.no_grad():
        logits = torch.cat([model.eval()(part.to(dtype)) for part in images.split(30)]).double()
    assert metrics["test_error"] == pytest.approx((logits.argmax(1) != labels).double().mean().item(), abs=2e-3)
    loss = torch.nn.functional.cross_entropy(logits, labels).item()
    assert metrics["test_loss"] == pytest.approx(loss, rel=1e-5 if precision[:2] in {"32", "64"} else 2e-3)
