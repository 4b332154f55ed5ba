"""Small transformers, timm and Conv1d models with random weights: a file takes any batch, length and image size."""

import importlib
import warnings

import pytest
import torch
from integration_models import randomised
from torch import nn

from lit_gelu.export import ExportError, OnnxPredictor, check_parity, export_onnx
from lit_gelu.export.inputs import named_outputs

pytestmark = [pytest.mark.full, pytest.mark.timeout(1200)]
BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
WHISPER = {"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24, "num_mel_bins": 8}


class LastState(nn.Module):
    """A language model's last hidden state."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class ShorterAudio(nn.Module):
    """Whisper's encoder with as many of its places as the audio has; its own forward takes 30 seconds and no other."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, input_features):
        encoder = self.encoder
        x = nn.functional.gelu(encoder.conv1(input_features))
        x = nn.functional.gelu(encoder.conv2(x)).permute(0, 2, 1)
        x = x + encoder.embed_positions.weight[: x.shape[1]]
        for layer in encoder.layers:
            x = layer(x, None)
            x = x[0] if isinstance(x, tuple) else x
        return encoder.layer_norm(x)


def whisper():
    library = importlib.import_module("transformers.models.whisper.modeling_whisper")
    config = importlib.import_module("transformers").WhisperConfig(max_source_positions=32, **WHISPER)
    return library.WhisperEncoder(config)


def language_model(name, **options):
    library = importlib.import_module("transformers")
    return LastState(getattr(library, f"{name}Model")(getattr(library, f"{name}Config")(vocab_size=20, **options)))


def tokens():
    ids = torch.randint(20, (2, 8), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def vit(**options):
    size = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
    return importlib.import_module("timm").create_model("vit_tiny_patch16_224", pretrained=False, **size, **options)


def conv1d():
    return nn.Sequential(
        nn.Conv1d(4, 8, 5, stride=2), nn.GELU(), nn.Conv1d(8, 8, 3), nn.GELU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()
    )


MODELS = {
    "BERT": (lambda: language_model("Bert", **BERT), tokens, "sequence"),
    "GPT-2": (lambda: language_model("GPT2", n_embd=16, n_layer=2, n_head=2, use_cache=False), tokens, "sequence"),
    "ViT": (lambda: vit(dynamic_img_size=True), lambda: torch.randn(2, 3, 32, 16), "image-size"),
    "Whisper": (lambda: ShorterAudio(whisper()), lambda: torch.randn(2, 8, 24), {"input_features": {2: "frames"}}),
    "Conv1d": (conv1d, lambda: torch.randn(2, 4, 20), {"input": {2: "time"}}),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_file_agrees_at_five_sizes_and_in_every_batch(name, tmp_path):
    torch.manual_seed(0)
    make, sample, dynamic_shapes = MODELS[name]
    model, sample, path = randomised(make()).eval(), sample(), tmp_path / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter and of the libraries, on the way to the graph
        export_onnx(model, path, sample, dynamic_shapes=dynamic_shapes)
    report = check_parity(model, path, input_sample=sample)
    tried = {row.inputs for row in report.rows if "[" in row.inputs}
    assert len(tried) == 4, report.notes  # beside the sample's
    assert all("were not tried" in note for note in report.notes)
    assert "random, batch 1" in {r.inputs for r in report.rows} or "gaussian, batch 1" in {
        r.inputs for r in report.rows
    }
    agree_beyond_parity(model, path, sample)


def agree_beyond_parity(model, path, sample):
    """Compare at sizes of this test's own, with padding at the end of each row."""
    tensors = list(sample.values()) if isinstance(sample, dict) else [sample]
    file = OnnxPredictor(path)
    for rows, times in ((1, 1), (3, 2), (5, 1)):
        inputs = [torch.cat([t[:1].expand(rows, *t.shape[1:])] * times, -1) for t in tensors]
        if isinstance(sample, dict):
            lengths = 1 + torch.arange(rows)
            inputs[1] = (torch.arange(inputs[1].shape[1]) < lengths[:, None]).long()
        with torch.no_grad():
            expected = [tensor for _, tensor in named_outputs(model(*inputs))]
        y = file(*inputs)
        for a, b in zip(y if isinstance(y, tuple) else (y,), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "sample", "dynamic_shapes"),
    [
        (whisper, torch.zeros(2, 8, 64), {"input_features": {2: "frames"}}),
        (vit, torch.zeros(2, 3, 32, 32), "image-size"),
    ],
)
def test_what_a_model_fixes_is_refused(make, sample, dynamic_shapes, tmp_path):
    with pytest.raises(ExportError, match=r"dynamic_shapes= .*(is fixed at the sample's|leave out those)"):
        export_onnx(make().eval(), tmp_path / "net.onnx", sample, dynamic_shapes=dynamic_shapes)
