"""Real architectures with random weights: the file agrees with the module, on extremes too."""

import importlib
import warnings

import pytest
import torch
from integration_models import CASES, randomised, torchvision_model

from lit_gelu.export import OnnxPredictor, check_parity, export_onnx
from lit_gelu.export.inputs import named_outputs
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
    assert report.repeats
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


LAYERS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
T5 = {"vocab_size": 20, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
WHISPER = {"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24, "num_mel_bins": 8}
SEGFORMER = {"depths": [1] * 4, "hidden_sizes": [8, 8, 16, 16], "num_attention_heads": [1, 1, 2, 2], "num_labels": 3}
FAMILIES = {
    "BertModel": ("BertConfig", {"vocab_size": 20, "output_hidden_states": True, **LAYERS}, "tokens"),
    "ViTModel": ("ViTConfig", {"image_size": 8, "patch_size": 4, **LAYERS}, "pixel_values"),
    "SegformerForSemanticSegmentation": ("SegformerConfig", SEGFORMER, "pixel_values"),
    "T5EncoderModel": ("T5Config", T5, "tokens"),
    "models.whisper.modeling_whisper.WhisperEncoder": (
        "WhisperConfig", {**WHISPER, "max_source_positions": 6}, "input_features"
    ),
    "LlamaModel": ("LlamaConfig", {"vocab_size": 20, "use_cache": False, "num_key_value_heads": 1, **LAYERS}, "tokens"),
}  # fmt: skip


def sample_for(kind):
    generator = torch.Generator().manual_seed(1)
    if kind == "tokens":
        ones = torch.ones(2, 8, dtype=torch.int64)
        return {"input_ids": torch.randint(20, (2, 8), generator=generator), "attention_mask": ones}
    shape = (2, 3, 64, 64) if kind == "pixel_values" else (2, 8, 12)
    return {kind: torch.randn(shape, generator=generator)}


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", FAMILIES)
def test_fresh_and_used_the_file_has_the_modules_outputs_and_tokens_and_masks_are_proved(name, tmp_path):
    library = importlib.import_module("transformers")
    configuration, options, kind = FAMILIES[name]
    sample, model = sample_for(kind), library
    for part in name.split("."):
        model = getattr(model, part)
    if name == "ViTModel":
        sample = {kind: sample[kind][..., :8, :8]}
    torch.manual_seed(0)
    model = model(getattr(library, configuration)(**options)).eval()
    path = tmp_path / "model.onnx"
    for used in (False, True):
        if used:
            model(**sample)
        report = prove(model, sample, path)
        assert not report.notes
        with torch.no_grad():
            expected = dict(named_outputs(model(**sample)))
        file = OnnxPredictor(path)
        assert file.output_names == list(expected)
        y = file(*sample.values())
        for a, b in zip(y if isinstance(y, tuple) else (y,), expected.values(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        if kind == "tokens":
            assert "random, batch 32" in {row.inputs for row in report.rows}
