"""CIFAR100WideResNet: the paper's net, its initialisation, its optimizer and schedule, checkpoints, export, options."""

import math
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import torch
from cifar_arrays import write_arrays
from colour_images import ColourData
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from small_task import quiet_trainer
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lit_gelu import surgery
from lit_gelu.data import CIFAR100Data, InMemoryImages
from lit_gelu.errors import LitGeluError
from lit_gelu.export import check_parity, export_onnx
from lit_gelu.tasks import CIFAR100WideResNet, TaskInputError
from lit_gelu.tasks.lasagne_batch_norm import LasagneBatchNorm
from lit_gelu.tasks.lasagne_nesterov import LasagneNesterovSGD
from lit_gelu.tasks.wide_res_net import OriginalBlock, PaperBlock

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {"blocks_per_stage": 1, "width_factor": 1}


def layers(model, *kinds):
    return [module for module in model.modules() if isinstance(module, kinds)]


def parameter_count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture(scope="module")
def paper():
    """The paper's net; tests do not train it."""
    torch.manual_seed(0)
    return CIFAR100WideResNet()


def test_the_parameter_counts_of_the_paper(paper):
    assert parameter_count(paper) == 8_972_884
    weighted = layers(paper, nn.Conv2d, nn.Linear)
    assert sum(layer.weight.numel() for layer in weighted) == 8_961_456
    biases = [layer.bias.numel() for layer in weighted if layer.bias is not None]
    assert (sum(biases), biases[-1]) == (5_476, 100)
    norms = layers(paper, nn.BatchNorm2d)
    assert len(norms) == 21
    assert sum(norm.weight.numel() + norm.bias.numel() for norm in norms) == 5_952


def test_40_convolutions_and_the_papers_multiplications(paper):
    assert len(layers(paper, nn.Conv2d)) == 6 * 6 + 4
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        paper.eval()(torch.zeros(1, 3, 32, 32))
    assert counter.get_total_flops() == 2 * 1_298_605_056


def test_parameter_counts_of_the_options():
    """WRN-40-4 of Zagoruyko and Komodakis has 8,949,210 parameters with 10 classes, so 90 x 257 more with 100."""
    assert parameter_count(CIFAR100WideResNet(block="original")) == 8_949_210 + 90 * 257
    assert parameter_count(CIFAR100WideResNet(lasagne_bn=True)) == 8_972_884
    closing = 2 * 6 * (64 + 128 + 256)
    assert parameter_count(CIFAR100WideResNet("elu", closing_norm=False)) == 8_972_884 - closing


def test_shapes_at_each_layer(paper):
    expected = {"stem": [16, 32, 32], "head.pool": [256, 1, 1], "head.output": [100]}
    for stage, (channels, size) in enumerate([(64, 32), (128, 16), (256, 8)]):
        expected |= {f"stages.{stage}.{block}": [channels, size, size] for block in range(6)}
    seen = {}
    hooks = [
        module.register_forward_hook(lambda module, given, result, name=name: seen.update({name: list(result.shape)}))
        for name, module in paper.named_modules()
        if name in expected
    ]
    with torch.no_grad():
        paper.eval()(torch.zeros(2, 3, 32, 32))
    for hook in hooks:
        hook.remove()
    assert seen == {name: [2, *shape] for name, shape in expected.items()}


def test_structure_of_the_papers_net(paper):
    assert [name for name, _ in paper.stem.named_children()] == ["conv", "norm", "activation", "second_norm"]
    assert [name for name, _ in paper.head.named_children()] == ["norm", "activation", "pool", "flatten", "output"]
    assert paper.stem.conv.bias is None
    for stage, stride in zip(paper.stages, (1, 2, 2), strict=True):
        for number, block in enumerate(stage):
            assert isinstance(block, PaperBlock)
            assert (block.conv1.bias is None, block.conv2.bias is None, block.dropout.p) == (False, False, 0.3)
            assert block.conv1.stride == ((stride, stride) if number == 0 else (1, 1))
            if number:
                assert block.shortcut is None
            else:
                assert (block.shortcut.kernel_size, block.shortcut.bias) == ((1, 1), None)
                assert block.shortcut.stride == (stride, stride)
    assert all((norm.eps, norm.momentum) == (1e-4, 0.1) for norm in layers(paper, nn.BatchNorm2d))
    sites = surgery.find_sites(paper)
    assert len(sites) == 2 + 2 * 18
    assert {str(site.spec) for site in sites} == {"gelu(approximate='tanh')"}


def test_the_original_blocks():
    model = CIFAR100WideResNet(block="original", dropout=0.1)
    assert [name for name, _ in model.stem.named_children()] == ["conv"]
    assert all(isinstance(block, OriginalBlock) for stage in model.stages for block in stage)
    assert len(layers(model, nn.BatchNorm2d)) == 2 * 18 + 1
    assert all(conv.bias is None for conv in layers(model, nn.Conv2d))


def test_initial_weights(paper):
    """He et al. normal, Glorot and Bengio uniform; means and deviations within five standard errors of the formula."""
    for layer in layers(paper, nn.Conv2d, nn.Linear):
        weight = layer.weight.detach().double()
        fan_in = weight[0].numel()
        is_uniform = isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1)
        if is_uniform:
            variance = 2 / (fan_in + len(weight))
            assert weight.abs().max() <= math.sqrt(3 * variance)
        else:
            variance = (1 if isinstance(layer, nn.Linear) else 2) / fan_in
            assert weight.abs().max() > 2.5 * math.sqrt(variance)
        fourth_moment = 1.8 if is_uniform else 3.0  # of the distribution with variance 1
        assert abs(weight.mean()) < 5 * math.sqrt(variance / weight.numel())
        relative_error = math.sqrt((fourth_moment - 1) / weight.numel())
        assert weight.square().mean().item() == pytest.approx(variance, rel=5 * relative_error)
        assert layer.bias is None or not layer.bias.any()
    assert paper.head.output.weight.std().item() == pytest.approx(0.0625, rel=0.03)
    for norm in layers(paper, nn.BatchNorm2d):
        assert norm.weight.eq(1).all()
        assert not norm.bias.any()


def test_what_an_activation_holds_is_not_initialised_and_does_not_decay():
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(1, 1)
            nn.init.constant_(self.inner.weight, 3.0)

        def forward(self, inputs):
            return inputs * self.inner.weight

    model = CIFAR100WideResNet(Gate, **SMALL)
    inner = [module.weight for name, module in model.named_modules() if name.endswith(".inner")]
    assert len(inner) == 2 + 2 * 3
    assert all(weight.item() == 3 for weight in inner)
    assert not {id(weight) for weight in inner} & {id(weight) for weight in model.decayed_parameters()}


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def elu(x):
    return torch.where(x > 0, x, torch.exp(x) - 1)


class Transcription:
    """The net written out, in training mode; batch normalisation by batch statistics; a factor in place of dropout."""

    def __init__(self, model, activation, block, factor=1):
        self.factor = factor
        self.values = {name: value.detach().double().requires_grad_() for name, value in model.named_parameters()}
        self.activation, self.block = activation, block
        self.blocks = [[f"stages.{i}.{j}" for j in range(len(stage))] for i, stage in enumerate(model.stages)]

    def conv(self, x, name, stride=1):
        weight = self.values[f"{name}.weight"]
        size = weight.shape[2]
        columns = nn.functional.unfold(x, size, padding=size // 2, stride=stride)
        result = weight.flatten(1) @ columns
        if f"{name}.bias" in self.values:
            result = result + self.values[f"{name}.bias"].unsqueeze(1)
        return result.unflatten(2, (x.shape[2] // stride, x.shape[3] // stride))

    def norm(self, x, name):
        if f"{name}.weight" not in self.values:
            return x
        mean = x.mean(dim=(0, 2, 3), keepdim=True)
        variance = (x - mean).square().mean(dim=(0, 2, 3), keepdim=True)
        gamma, beta = (self.values[f"{name}.{part}"].reshape(1, -1, 1, 1) for part in ("weight", "bias"))
        return gamma * (x - mean) / (variance + 1e-4).sqrt() + beta

    def residual(self, x, name, stride):
        f, has_shortcut = self.activation, f"{name}.shortcut.weight" in self.values
        if self.block == "paper":
            hidden = self.factor * f(self.conv(x, f"{name}.conv1", stride))
            branch = self.norm(f(self.conv(hidden, f"{name}.conv2")), f"{name}.norm")
            return branch + (self.conv(x, f"{name}.shortcut", stride) if has_shortcut else x)
        first = f(self.norm(x, f"{name}.norm1"))
        hidden = self.factor * f(self.norm(self.conv(first, f"{name}.conv1", stride), f"{name}.norm2"))
        branch = self.conv(hidden, f"{name}.conv2")
        return branch + (self.conv(first, f"{name}.shortcut", stride) if has_shortcut else x)

    def logits(self, x):
        x = self.conv(x, "stem.conv")
        if self.block == "paper":
            x = self.norm(self.activation(self.norm(x, "stem.norm")), "stem.second_norm")
        for index, names in enumerate(self.blocks):
            for number, name in enumerate(names):
                x = self.residual(x, name, 2 if index and not number else 1)
        x = self.activation(self.norm(x, "head.norm")).mean(dim=(2, 3))
        return x @ self.values["head.output.weight"].T + self.values["head.output.bias"]


@pytest.mark.parametrize(
    ("activation", "function", "options"),
    [
        ("gelu_tanh", gelu_tanh, {}),
        ("elu", elu, {"closing_norm": False}),
        ("gelu_tanh", gelu_tanh, {"block": "original"}),
        ("elu", elu, {"lasagne_bn": True}),
    ],
)
def test_forward_is_the_transcribed_net(activation, function, options):
    model = CIFAR100WideResNet(activation, blocks_per_stage=2, width_factor=1, dropout=0.0, **options)
    transcription = Transcription(model, function, options.get("block", "paper"))
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(model.double()(images), transcription.logits(images), rtol=1e-9, atol=1e-9)


class Triple(nn.Module):
    """Stands in for dropout, to show where it is."""

    def forward(self, inputs):
        return 3 * inputs


@pytest.mark.parametrize("block", ["paper", "original"])
def test_dropout_is_between_activation_and_second_convolution_of_every_block(block):
    model = CIFAR100WideResNet(block=block, **SMALL)
    dropouts = layers(model, nn.Dropout)
    assert [dropout.p for dropout in dropouts] == [0.3] * 3
    for stage in model.stages:
        stage[0].dropout = Triple()
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    expected = Transcription(model, gelu_tanh, block, factor=3).logits(images)
    torch.testing.assert_close(model.double()(images), expected, rtol=1e-9, atol=1e-9)


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
    assert len(layers(CIFAR100WideResNet(lasagne_bn=True, **SMALL), LasagneBatchNorm)) == 6
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


def test_the_papers_schedule_without_a_trainer(paper):
    schedule = paper.configure_optimizers()["lr_scheduler"]
    assert schedule["interval"] == "step"
    factor = schedule["scheduler"].lr_lambdas[0]
    for step in (0, 1, 19_531, 39_049):
        expected = 0.05 * (1 + math.cos(math.pi * step / 39_062.5))
        assert 0.1 * factor(step) == pytest.approx(expected, rel=1e-6, abs=0)
    assert 0.1 * factor(39_049) == pytest.approx(3e-8, rel=0.05)


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


def trained(tmp_path, **options):
    torch.manual_seed(0)
    model = CIFAR100WideResNet(**{**SMALL, "epochs": 1, **options})
    trainer = quiet_trainer(max_epochs=1, enable_checkpointing=True, default_root_dir=tmp_path, limit_val_batches=0)
    trainer.fit(model, datamodule=ColourData(classes=100))
    return model, trainer.checkpoint_callback.best_model_path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activation": "elu", "closing_norm": False, "channels_last": True},
        {"activation": "swish(learnable=True, channels='infer')", "block": "original", "lasagne_bn": True},
    ],
)
def test_checkpoint_and_export(tmp_path, options):
    model, checkpoint = trained(tmp_path, **options)
    loaded = CIFAR100WideResNet.load_from_checkpoint(checkpoint, weights_only=True)
    assert dict(loaded.hparams) == dict(model.hparams)
    images = torch.randn(5, 3, 32, 32)
    assert torch.equal(loaded.eval()(images), model.eval()(images))

    path = tmp_path / "net.onnx"
    export_onnx(loaded, path)
    data = ColourData(classes=100)
    report = check_parity(loaded, path, data)
    assert report.passed
    kinds = {node.op_type for node in onnx.load(path).graph.node}
    assert not {"Dropout", "RandomUniform", "RandomUniformLike", "Bernoulli"} & kinds


@pytest.mark.full
@pytest.mark.parametrize("block", ["paper", "original"])
def test_the_full_net_exports_with_parity_from_its_checkpoint(tmp_path, block):
    _, checkpoint = trained(tmp_path, blocks_per_stage=6, width_factor=4, block=block)
    loaded = CIFAR100WideResNet.load_from_checkpoint(checkpoint, weights_only=True)
    path = tmp_path / "net.onnx"
    export_onnx(loaded, path)
    assert check_parity(loaded, path, ColourData(classes=100)).passed


def test_exports_with_the_preprocessing_in_front(tmp_path):
    arrays = write_arrays(tmp_path / "cifar100.npz", 50, 8, 100)
    data = CIFAR100Data(tmp_path)
    model = CIFAR100WideResNet(**SMALL).eval()
    path = tmp_path / "raw.onnx"
    export_onnx(model, path, preprocessing=data.preprocessing())
    import onnxruntime

    pixels = torch.from_numpy(arrays["x_test"].transpose(0, 3, 1, 2).copy())
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {session.get_inputs()[0].name: pixels.numpy()})
    data.setup("test")
    torch.testing.assert_close(torch.from_numpy(logits), model(data.test_set.images).detach(), rtol=1e-4, atol=1e-4)


def test_bfloat16_autocast_and_channels_last(tmp_path):
    """One step of the small net: weights and velocities keep both their dtype and their order in memory."""
    torch.manual_seed(0)
    model = CIFAR100WideResNet(channels_last=True, **SMALL)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    trainer = quiet_trainer(max_steps=1, precision="bf16-mixed", limit_val_batches=0)
    trainer.fit(model, datamodule=ColourData(classes=100))
    assert math.isfinite(trainer.logged_metrics["train_loss"])
    for parameter in model.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.isfinite().all()
    assert any(not torch.equal(value, before[name]) for name, value in model.named_parameters())
    weight = model.stages[1][0].conv2.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    state = trainer.optimizers[0].state[weight]
    assert state["velocity"].is_contiguous(memory_format=torch.channels_last)


def test_channels_last_computes_the_same():
    torch.manual_seed(0)
    plain = CIFAR100WideResNet(**SMALL).eval()
    ordered = CIFAR100WideResNet(channels_last=True, **SMALL).eval()
    ordered.load_state_dict(plain.state_dict())
    assert ordered.stages[1][0].conv2.weight.is_contiguous(memory_format=torch.channels_last)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ordered(images), plain(images), rtol=1e-4, atol=1e-5)


def test_hyperparameters_are_plain_data():
    assert dict(CIFAR100WideResNet(nn.ELU(), **SMALL).hparams) == {
        "activation": "elu",
        "learning_rate": 0.1,
        "blocks_per_stage": 1,
        "width_factor": 1,
        "dropout": 0.3,
        "block": "paper",
        "closing_norm": True,
        "lasagne_bn": False,
        "momentum": 0.9,
        "weight_decay": 1e-3,
        "decay_gammas": True,
        "optimizer": "lasagne",
        "epochs": 50,
        "batches_per_epoch": None,
        "channels_last": False,
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"blocks_per_stage": 0}, "blocks_per_stage=0"),
        ({"width_factor": 1.5}, "width_factor=1.5"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"weight_decay": -1e-4}, "weight_decay=-0.0001"),
        ({"epochs": 0}, "epochs=0"),
        ({"batches_per_epoch": 0}, "batches_per_epoch=0 .*above 0, or None"),
        ({"batches_per_epoch": math.inf}, "batches_per_epoch=inf"),
        ({"block": "pre"}, "block='pre' .*'paper', 'original'"),
        ({"optimizer": "adam"}, "optimizer='adam' .*'lasagne', 'torch'"),
        ({"block": "original", "closing_norm": False}, "no closing batch normalisation"),
        ({"activation": nn.GLU}, "keeps its input's shape"),
    ],
)
def test_refused_arguments(arguments, message):
    with pytest.raises(LitGeluError, match=message):
        CIFAR100WideResNet(**{**SMALL, **arguments})


def test_refused_images():
    model = CIFAR100WideResNet(**SMALL)
    for shape in ((2, 1, 28, 28), (2, 3072), (3, 32, 32)):
        with pytest.raises(TaskInputError, match=r"accepted: \[batch, 3, 32, 32\]"):
            model(torch.zeros(shape))
    with pytest.raises(TaskInputError, match=r"torch\.uint8"):
        model(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))


@pytest.mark.full
@pytest.mark.realdata
@pytest.mark.timeout(900)
def test_the_example_of_a_few_steps_lowers_the_loss(tmp_path):
    command = [sys.executable, "-P", "-c", "import sys; from lit_gelu.cli.main import main; sys.exit(main())", "fit"]
    options = ["--config", str(EXAMPLES / "cifar100_wrn_steps.yaml"), "--trainer.enable_progress_bar", "false"]
    subprocess.run([*command, *options], check=True, timeout=800, cwd=tmp_path, env=os.environ)
    (metrics,) = tmp_path.glob("runs/**/metrics.csv")
    header, *rows = (line.split(",") for line in metrics.read_text().splitlines())
    losses = [float(row[header.index("train_loss")]) for row in rows if row[header.index("train_loss")]]
    assert len(losses) == 24
    assert sum(losses[-8:]) / 8 < losses[0] - 0.3
