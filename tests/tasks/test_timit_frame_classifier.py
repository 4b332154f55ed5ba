"""TIMITFrameClassifier: the paper's net, its optimizer, batches of sentences, checkpoints, export, the real sample."""

import csv
import math
import os
from pathlib import Path

import pytest
import torch
from timit_files import write_sample
from torch import nn

from lit_gelu.cli.main import main
from lit_gelu.data import TIMITData
from lit_gelu.export import check_parity, export_onnx
from lit_gelu.tasks import TIMITFrameClassifier

EXAMPLE = Path(__file__).parents[2] / "examples" / "timit_sample.yaml"


def small_data(tmp_path, **options):
    defaults = {"batch_size": 2, "cache": tmp_path / "kept"}
    return TIMITData(write_sample(tmp_path), **{**defaults, **options})


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
