"""CIFAR100WideResNet: its penalty, optimizers, schedule and logged loss."""

import math

import pytest
import torch
from cifar_arrays import write_arrays
from colour_images import ColourData
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from small_task import quiet_trainer
from wide_res_net_by_hand import Transcription, gelu_tanh

from lit_gelu.data import CIFAR100Data, InMemoryImages
from lit_gelu.tasks import CIFAR100WideResNet
from lit_gelu.tasks.layers import LasagneBatchNorm
from lit_gelu.tasks.optimizers import LasagneNesterovSGD

SMALL = {"blocks_per_stage": 1, "width_factor": 1}


@pytest.fixture(scope="module")
def paper():
    """The paper's net; tests do not train it."""
    torch.manual_seed(0)
    return CIFAR100WideResNet()


def cross_entropy(logits, labels):
    return (logits.exp().sum(1).log() - logits[torch.arange(len(labels)), labels]).mean()


def decays_by_hand(name):
    """Weights of convolutions and the linear layer, and gammas, whose module is called norm: no biases, no betas."""
    return name.endswith("weight")


@pytest.mark.parametrize("block", ["paper", "original"])
def test_two_optimizer_steps_against_a_transcription_in_float64(block):
    """The net, the loss + 5e-4 sum w^2 of Lasagne, Nesterov momentum in its form and the cosine, all written out."""
    torch.manual_seed(0)
    model = CIFAR100WideResNet(dropout=0.0, block=block, batches_per_epoch=0.1, **SMALL)  # a period of 5 steps
    transcription = Transcription(model, gelu_tanh, block)
    data = ColourData(classes=100)
    data.setup("fit")
    images, labels = data.train_set.images[:8].double(), data.train_set.labels[:8]
    values = transcription.values
    velocities = {name: torch.zeros_like(value) for name, value in values.items()}
    for step in range(2):
        penalty = 5e-4 * sum(value.square().sum() for name, value in values.items() if decays_by_hand(name))
        loss = cross_entropy(transcription.logits(images), labels) + penalty
        gradients = torch.autograd.grad(loss, list(values.values()))
        rate = 0.05 * (1 + math.cos(math.pi * step / 5))
        with torch.no_grad():
            for (name, value), gradient in zip(values.items(), gradients, strict=True):
                velocities[name] = 0.9 * velocities[name] - rate * gradient
                value += 0.9 * velocities[name] - rate * gradient
    data.train_set = InMemoryImages(images, labels)
    trainer = quiet_trainer(max_steps=2, precision="64-true", limit_val_batches=0)
    trainer.fit(model, datamodule=data)
    assert trainer.logged_metrics["train_loss"].item() == pytest.approx(loss.item(), rel=1e-6)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), values[name].detach(), rtol=0, atol=1e-9)


def test_what_decays(paper):
    decayed = {id(parameter) for parameter in paper.decayed_parameters()}
    assert decayed == {id(parameter) for name, parameter in paper.named_parameters() if decays_by_hand(name)}
    assert sum(parameter.numel() for parameter in paper.decayed_parameters()) == 8_961_456 + 5_952 // 2
    excluded = CIFAR100WideResNet(decay_gammas=False, lasagne_bn=True)
    assert sum(parameter.numel() for parameter in excluded.decayed_parameters()) == 8_961_456
    assert sum(isinstance(m, LasagneBatchNorm) for m in CIFAR100WideResNet(lasagne_bn=True, **SMALL).modules()) == 6
    learned = CIFAR100WideResNet("prelu", **SMALL)
    slopes = {id(parameter) for name, parameter in learned.named_parameters() if "activation" in name}
    assert slopes
    assert not slopes & {id(parameter) for parameter in learned.decayed_parameters()}


def test_the_penalty_is_half_the_decay_times_the_sum_of_squares(paper):
    expected = 5e-4 * sum(w.double().square().sum() for name, w in paper.named_parameters() if decays_by_hand(name))
    assert paper.penalty().item() == pytest.approx(expected.item(), rel=1e-5)
    assert CIFAR100WideResNet(weight_decay=0.0, **SMALL).penalty() == 0


@pytest.mark.parametrize(("name", "momentum"), [("lasagne", 0.9), ("torch", 0.9), ("torch", 0.0)])
def test_optimizers_and_their_groups(name, momentum):
    model = CIFAR100WideResNet(optimizer=name, momentum=momentum, weight_decay=5e-4, **SMALL)
    optimizer = model.configure_optimizers()["optimizer"]
    assert isinstance(optimizer, LasagneNesterovSGD if name == "lasagne" else torch.optim.SGD)
    first, second = optimizer.param_groups
    assert (first["weight_decay"], second["weight_decay"]) == (5e-4, 0)
    assert {group["momentum"] for group in (first, second)} == {momentum}
    if name == "torch":
        assert first["nesterov"] is (momentum > 0)
    assert len(first["params"]) + len(second["params"]) == len(list(model.parameters()))


def learning_rates(folder):
    rows = (folder / "csv" / "version_0" / "metrics.csv").read_text().splitlines()
    column = next(index for index, name in enumerate(rows[0].split(",")) if name.startswith("lr-") and "/pg1" in name)
    return [float(row.split(",")[column]) for row in rows[1:] if row.split(",")[column]]


def test_a_resumed_run_has_the_same_learning_rates_and_weights(tmp_path):
    """Three epochs of 24 samples in batches of 8, in one go and stopped after the first."""

    def trainer(folder, epochs):
        return quiet_trainer(
            max_epochs=epochs,
            logger=CSVLogger(tmp_path / folder, "csv", version=0),
            callbacks=[LearningRateMonitor("step")],
            limit_val_batches=0,
        )

    def model():
        torch.manual_seed(0)
        return CIFAR100WideResNet(epochs=3, dropout=0.0, **SMALL)

    whole, part, resumed = model(), model(), model()
    torch.manual_seed(1)
    trainer("whole", 3).fit(whole, datamodule=ColourData(classes=100))
    expected = [0.05 * (1 + math.cos(math.pi * step / 9)) for step in range(9)]
    assert learning_rates(tmp_path / "whole") == pytest.approx(expected, rel=1e-6)

    first = trainer("first", 1)
    torch.manual_seed(1)
    first.fit(part, datamodule=ColourData(classes=100))
    first.save_checkpoint(tmp_path / "first.ckpt")
    trainer("second", 3).fit(resumed, datamodule=ColourData(classes=100), ckpt_path=tmp_path / "first.ckpt")
    assert learning_rates(tmp_path / "second") == pytest.approx(expected[3:], rel=1e-6)
    velocity = resumed.optimizers().optimizer.state[resumed.head.output.weight]["velocity"]
    assert velocity.any()


def test_the_period_of_a_quick_run_comes_from_its_loader(tmp_path):
    write_arrays(tmp_path / "cifar100.npz", 50, 8, 100)
    model = CIFAR100WideResNet(epochs=2, **SMALL)
    trainer = quiet_trainer(max_epochs=1)
    trainer.fit(model, datamodule=CIFAR100Data(tmp_path, batch_size=16))
    period = 2 * 100 / 16
    expected = 0.05 * (1 + math.cos(math.pi * 6 / period))
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(expected)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_logged_training_loss_is_noisy_and_includes_the_penalty(dropout):
    """All samples are one batch, so that only dropout can make two seeds' losses differ."""
    torch.manual_seed(0)
    model, data = CIFAR100WideResNet(dropout=dropout, learning_rate=1e-30, **SMALL), ColourData(classes=100)
    data.setup("fit")
    data.train_set = InMemoryImages(data.train_set.images[:8], data.train_set.labels[:8])
    logged = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        trainer = quiet_trainer(max_steps=1, limit_val_batches=0)
        trainer.fit(model, datamodule=data)
        logged.append(trainer.logged_metrics["train_loss"].item())
    assert (abs(logged[0] - logged[1]) > 1e-3) == (dropout > 0)
    with torch.no_grad():
        plain = Transcription(model, gelu_tanh, "paper").logits(data.train_set.images.double())
    expected = cross_entropy(plain, data.train_set.labels).item() + model.penalty().item()
    assert logged[0] == pytest.approx(expected, rel=0.2 if dropout else 1e-5)
    assert model.penalty() > 0.1
