"""CIFAR100WideResNet: checkpoints, export, precisions, and the example."""

import math
from pathlib import Path

import onnx
import pytest
import torch
from child_processes import run_warm
from colour_images import ColourData
from small_task import quiet_trainer

from lit_gelu.export import check_parity, export_onnx
from lit_gelu.tasks import CIFAR100WideResNet

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {"blocks_per_stage": 1, "width_factor": 1}


def trained(tmp_path, **options):
    torch.manual_seed(0)
    model = CIFAR100WideResNet(**{**SMALL, "epochs": 1, **options})
    trainer = quiet_trainer(max_epochs=1, enable_checkpointing=True, default_root_dir=tmp_path, limit_val_batches=0)
    trainer.fit(model, datamodule=ColourData(classes=100))
    return model, trainer.checkpoint_callback.best_model_path


@pytest.mark.full
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


@pytest.mark.full
@pytest.mark.realdata
def test_the_example_of_a_few_steps_lowers_the_loss(tmp_path):
    options = ["--config", str(EXAMPLES / "cifar100_wrn_steps.yaml"), "--trainer.enable_progress_bar", "false"]
    run_warm("-m", "lit_gelu", "fit", *options, cwd=tmp_path)
    (metrics,) = tmp_path.glob("runs/**/metrics.csv")
    header, *rows = (line.split(",") for line in metrics.read_text().splitlines())
    losses = [float(row[header.index("train_loss")]) for row in rows if row[header.index("train_loss")]]
    assert len(losses) == 24
    assert sum(losses[-8:]) / 8 < losses[0] - 0.3
