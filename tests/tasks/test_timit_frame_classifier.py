"""TIMITFrameClassifier: the paper's net, its optimizer, batches of sentences, checkpoints, export, the real sample."""

import csv
import math
import os
from pathlib import Path

import onnx
import pytest
import torch
from small_task import quiet_trainer
from timit_files import write_corpus
from torch import nn
from torch.nn import functional

from lit_gelu.cli.main import main
from lit_gelu.data import TIMITData
from lit_gelu.export import check_parity, export_onnx
from lit_gelu.tasks import TIMITFrameClassifier

EXAMPLE = Path(__file__).parents[2] / "examples" / "timit_sample.yaml"


def small_data(tmp_path, **options):
    defaults = {"batch_size": 2, "cache": tmp_path / "kept", "allow_incomplete": True}
    return TIMITData(write_corpus(tmp_path), **{**defaults, **options})


def test_errors_are_shares_of_frames_and_the_checkpoint_exports(tmp_path):
    torch.manual_seed(0)
    data = small_data(tmp_path, batch_size=1)
    model = TIMITFrameClassifier("elu", learning_rate=1e-4, width=16)
    trainer = quiet_trainer(max_epochs=1, enable_checkpointing=True, default_root_dir=tmp_path)
    trainer.fit(model, datamodule=data)
    assert set(trainer.callback_metrics) == {"train_loss", "val_loss", "val_error"}
    loaded = TIMITFrameClassifier.load_from_checkpoint(trainer.checkpoint_callback.best_model_path, weights_only=True)
    assert dict(model.hparams) == {
        "activation": "elu",
        "learning_rate": 1e-4,
        "keep": 0.5,
        "width": 16,
        "outputs": 39,
        "batch_means": False,
    }
    assert dict(loaded.hparams) == dict(model.hparams)
    (result,) = quiet_trainer().test(loaded, datamodule=data, verbose=False)
    with torch.no_grad():
        logits = model.eval()(data.test_set.inputs)
    wrong = [int(row.argmax() != label) for row, label in zip(logits, data.test_set.labels, strict=True)]
    assert len(wrong) == 14 + 17
    assert result["test_error"] == pytest.approx(sum(wrong) / 31)
    assert result["test_loss"] == pytest.approx(functional.cross_entropy(logits, data.test_set.labels).item(), rel=1e-5)
    export_onnx(loaded, tmp_path / "frames.onnx")
    assert check_parity(loaded, tmp_path / "frames.onnx", data).passed
    operators = {node.op_type for node in onnx.load(tmp_path / "frames.onnx").graph.node}
    assert not {name for name in operators if "Dropout" in name or "Random" in name}


def test_an_exported_file_that_takes_features_as_they_are_extracted(tmp_path):
    """The normalisation as a part of the graph: raw windows give the logits that normalised ones give the net."""
    data = small_data(tmp_path)
    data.setup()
    model = TIMITFrameClassifier(width=16).eval()
    whole = nn.Sequential(data.normalisation(), model).eval()
    module = data.normalisation()
    raw = data.test_set.inputs * module.deviation.repeat(11) + module.mean.repeat(11)
    with torch.no_grad():
        torch.testing.assert_close(whole(raw), model(data.test_set.inputs), rtol=1e-4, atol=1e-5)
    export_onnx(whole, tmp_path / "whole.onnx", raw[:2])
    assert check_parity(whole, tmp_path / "whole.onnx", raw).passed


def test_means_of_the_batches_means(tmp_path):
    """Sentences of 14 and 17 frames, one a batch: the mean of both means is not that of the 31 frames."""
    data = small_data(tmp_path, batch_size=1)
    torch.manual_seed(0)
    model = TIMITFrameClassifier(width=16, batch_means=True)
    (result,) = quiet_trainer().test(model, datamodule=data, verbose=False)
    with torch.no_grad():
        parts = [model.eval()(windows) for windows, _ in data.test_dataloader()]
    labels = [labels for _, labels in data.test_dataloader()]
    losses = [functional.cross_entropy(*part).item() for part in zip(parts, labels, strict=True)]
    errors = [(part.argmax(1) != label).float().mean().item() for part, label in zip(parts, labels, strict=True)]
    assert result["test_loss"] == pytest.approx(sum(losses) / 2, rel=1e-6)
    assert result["test_error"] == pytest.approx(sum(errors) / 2, rel=1e-6)


def fit_on_the_sample(tmp_path, monkeypatch, *options):
    """Run the example, and return the logged training losses and validation errors."""
    if not TIMITData().folder.is_dir():
        pytest.skip("LIT_GELU_DATA has no folder timit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):
        monkeypatch.setitem(os.environ, name, "0")  # seeding sets them; taken back at the end
    arguments = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", *options]
    assert main(["fit", "--config", str(EXAMPLE), *arguments]) == 0
    with (tmp_path / "runs/timit_sample/version_0/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [[float(row[name]) for row in rows if row[name]] for name in ("train_loss", "val_error")]


@pytest.mark.full
@pytest.mark.realdata
def test_a_narrower_net_learns_on_the_real_sample(tmp_path, monkeypatch):
    """With logits near 0 the loss begins at log 39 = 3.66; a quarter of the frames is silence, the largest class."""
    losses, errors = fit_on_the_sample(tmp_path, monkeypatch, "--model.width=256", "--trainer.max_epochs=2")
    assert len(losses) == 2 * 12 // 4
    assert losses[0] < math.log(39)
    assert losses[-1] < 0.9 * losses[0]
    assert errors[-1] < 0.7
