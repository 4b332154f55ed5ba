"""A classifier trained on the bundled digits, its float32 file and its int8 file."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Trainer

from lit_gelu.data import DigitsData
from lit_gelu.export import export_onnx
from lit_gelu.export.quantization import quantize_onnx
from lit_gelu.tasks import MNISTClassifier


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    torch.manual_seed(0)
    model = MNISTClassifier(activation="gelu", hidden_layers=2)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=4, accelerator="cpu", enable_model_summary=False, **options)
    trainer.fit(model, datamodule=DigitsData())
    folder = tmp_path_factory.mktemp("digits")
    trainer.save_checkpoint(folder / "last.ckpt")
    path, int8 = folder / "net.onnx", folder / "net-int8.onnx"
    export_onnx(model, path, labels=[f"digit {i}" for i in range(10)])
    result = quantize_onnx(path, int8, DigitsData())
    return SimpleNamespace(model=model.eval(), folder=folder, path=path, int8=int8, result=result)
