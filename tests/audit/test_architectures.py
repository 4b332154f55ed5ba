"""No false alarm: real architectures beside their plain export by torch."""

import pytest
import torch
from integration_models import CASES, randomised, timm_model

from lit_gelu.audit import audit

# By timm's name the size of the pictures.
TIMM = {
    "convnext_atto": 32,
    "deit_tiny_patch16_224": 224,
    "eca_resnet33ts": 64,
    "edgenext_xx_small": 64,
    "efficientnet_b0": 64,
    "fastvit_t8": 64,
    "gmlp_s16_224": 224,
    "hardcorenas_a": 64,
    "mixer_s32_224": 224,
    "mobilevit_xxs": 64,
    "poolformer_s12": 64,
    "regnety_002": 64,
    "repvit_m0_9": 64,
    "rexnet_100": 64,
    "tiny_vit_5m_224": 224,
    "vit_tiny_patch16_224": 224,
    "xception41": 96,
}
MODELS = {case.name: (case.model, case.sample) for case in CASES} | {
    name: (lambda name=name: randomised(timm_model(name)).eval(), lambda size=size: torch.randn(2, 3, size, size))
    for name, size in TIMM.items()
}


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_a_plain_export_computes_the_activations_of_its_model(name, tmp_path):
    build, sample = MODELS[name]
    torch.manual_seed(0)
    model, x = build(), sample()
    path = tmp_path / "model.onnx"
    torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)
    report = audit(model, path, input_sample=x, strict=False)
    assert report.passed, str(report)
    assert sum(row.calls for row in report.rows) > 0
