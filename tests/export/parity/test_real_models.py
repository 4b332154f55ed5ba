"""Real architectures with random weights: the file agrees with the module, on extremes too."""

import importlib
import warnings

import pytest
import torch
from integration_models import CASES, FirstOutput, randomised, torchvision_model

from lit_gelu.export import check_parity, export_onnx
from lit_gelu.export.parity.criterion import FLOOR

TIMM = [case for case in CASES if case.name.startswith("timm.")]


def prove(model, sample, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter and of the libraries, on the way to the graph
        export_onnx(model, path, sample)
    report = check_parity(model, path, input_sample=sample)
    families = {}
    for row in report.rows:
        if row.gating and row.own is not None:
            assert row.limit >= max(FLOOR, 2 * row.own)
            assert row.error <= row.limit
            families.setdefault(row.inputs, []).append(row.error)
    assert "sample" in families
    assert report.repeatability.identical
    return report


@pytest.mark.full
@pytest.mark.parametrize("case", TIMM, ids=lambda case: case.name)
def test_timms_models(case, tmp_path):
    prove(case.model(), case.sample(), tmp_path / "model.onnx")


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "arguments", "activations"), [("convnext_tiny", {}, 18), ("vit_b_16", {"image_size": 32}, 12)]
)
def test_torchvisions(name, arguments, activations, tmp_path):
    torch.manual_seed(0)
    model = randomised(torchvision_model(name, **arguments)).eval()
    report = prove(model, torch.randn(2, 3, 32, 32), tmp_path / "model.onnx")
    assert report.census["Gelu"] == activations


@pytest.mark.full
@pytest.mark.parametrize("name", ["Bert", "GPT2"])
def test_transformers_at_their_published_size(name, tmp_path):
    """12 layers of width 768, as the library's default configurations are."""
    library = importlib.import_module("transformers")
    torch.manual_seed(0)
    options = {"use_cache": False} if name == "GPT2" else {}
    model = FirstOutput(getattr(library, f"{name}Model")(getattr(library, f"{name}Config")(**options))).eval()
    tokens = torch.randint(1000, (2, 8), generator=torch.Generator().manual_seed(1))
    report = prove(model, tokens, tmp_path / "model.onnx")
    assert {row.inputs for row in report.rows} >= {"sample", "random, batch 32", "random, batch 1"}
