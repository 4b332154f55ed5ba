"""MNIST: one epoch, calibrated on 512 training images, measured on all 10,000 test images."""

import pytest
import torch
from lightning.pytorch import Trainer

from lit_gelu.export import export_onnx
from lit_gelu.export.quantization import check_quantized, quantize_onnx
from lit_gelu.tasks import MNISTClassifier


@pytest.mark.full
@pytest.mark.realdata
@pytest.mark.parametrize("method", ["minmax", "entropy", "percentile"])
@pytest.mark.parametrize("target", ["ort-cpu", "tensorrt"])
def test_int8_costs_mnist_less_than_half_a_percent(tmp_path_factory, method, target):
    from lit_gelu.data import MNISTData

    folder = tmp_path_factory.getbasetemp() / "mnist-int8"
    folder.mkdir(exist_ok=True)
    checkpoint = folder / "last.ckpt"
    torch.manual_seed(0)
    model = MNISTClassifier()
    if not checkpoint.exists():
        options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = Trainer(max_epochs=1, accelerator="cpu", enable_model_summary=False, **options)
        trainer.fit(model, datamodule=MNISTData())
        trainer.save_checkpoint(checkpoint)
    model = MNISTClassifier.load_from_checkpoint(checkpoint, weights_only=True)
    export_onnx(model, folder / "net.onnx")
    result = quantize_onnx(folder / "net.onnx", folder / "int8.onnx", MNISTData(), method=method, target=target)
    report = check_quantized(model, folder / "int8.onnx", MNISTData(), max_difference=0.005, min_top1=0.99)
    assert result.record.rows == 512
    assert report.outputs[0].rows == 10_000
    assert report.passed
    assert report.outputs[0].sqnr > 25
    assert report.record.float_bytes > 3 * report.nbytes
