"""TIMITFrameClassifier: its file with the normalisation of its features."""

import torch
from timit_files import write_sample
from torch import nn

from lit_gelu.data import TIMITData
from lit_gelu.export import check_parity, export_onnx
from lit_gelu.tasks import TIMITFrameClassifier


def test_an_exported_file_that_takes_features_as_they_are_extracted(tmp_path):
    """The normalisation as a part of the graph: raw windows give the logits that normalised ones give the net."""
    data = TIMITData(write_sample(tmp_path), batch_size=2, cache=tmp_path / "kept")
    data.setup()
    model = TIMITFrameClassifier(width=16).eval()
    pipeline = nn.Sequential(data.normalisation(), model).eval()
    module = data.normalisation()
    raw = data.test_set.inputs * module.deviation.repeat(11) + module.mean.repeat(11)
    with torch.no_grad():
        torch.testing.assert_close(pipeline(raw), model(data.test_set.inputs), rtol=1e-4, atol=1e-5)
    export_onnx(pipeline, tmp_path / "whole.onnx", raw[:2])
    assert check_parity(pipeline, tmp_path / "whole.onnx", raw).passed
