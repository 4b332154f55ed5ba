"""Write ``docs/data/architectures.json``: which activation an architecture uses, read from the installed libraries.

transformers: the default of the configuration's field, and whether the model's source multiplies the activation of one
projection by another (a gated feed-forward block). timm: the activation modules of the model as built, on the meta
device, the most frequent first; gates are named too.
"""

import collections
import importlib
import inspect
import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from lit_gelu import activations
from lit_gelu.files import write_atomically

RECORD = Path(__file__).resolve().parent / "data" / "architectures.json"

# Architecture, configuration class, field.
TRANSFORMERS = (
    ("BERT", "BertConfig", "hidden_act"),
    ("RoBERTa", "RobertaConfig", "hidden_act"),
    ("ALBERT", "AlbertConfig", "hidden_act"),
    ("GPT-2", "GPT2Config", "activation_function"),
    ("GPT-J", "GPTJConfig", "activation_function"),
    ("GPT-NeoX", "GPTNeoXConfig", "hidden_act"),
    ("OPT", "OPTConfig", "activation_function"),
    ("BART", "BartConfig", "activation_function"),
    ("T5 1.0", "T5Config", "dense_act_fn"),
    ("mT5 (as T5 1.1)", "MT5Config", "dense_act_fn"),
    ("Falcon", "FalconConfig", "activation"),
    ("LLaMA", "LlamaConfig", "hidden_act"),
    ("Mistral", "MistralConfig", "hidden_act"),
    ("Mixtral", "MixtralConfig", "hidden_act"),
    ("Qwen3", "Qwen3Config", "hidden_act"),
    ("DeepSeek-V3", "DeepseekV3Config", "hidden_act"),
    ("Gemma 3", "Gemma3TextConfig", "hidden_activation"),
    ("Phi", "PhiConfig", "hidden_act"),
    ("Phi-3", "Phi3Config", "hidden_act"),
    ("StarCoder2", "Starcoder2Config", "hidden_act"),
    ("Nemotron", "NemotronConfig", "hidden_act"),
    ("Persimmon", "PersimmonConfig", "hidden_act"),
    ("Apertus", "ApertusConfig", "hidden_act"),
    ("CLIP (text)", "CLIPTextConfig", "hidden_act"),
    ("SigLIP (text)", "SiglipTextConfig", "hidden_act"),
    ("ViT", "ViTConfig", "hidden_act"),
    ("SegFormer", "SegformerConfig", "hidden_act"),
    ("Whisper", "WhisperConfig", "activation_function"),
    ("Wav2Vec2", "Wav2Vec2Config", "hidden_act"),
)
TIMM = (
    ("VGG-16", "vgg16"),
    ("ResNet-50", "resnet50"),
    ("DenseNet-121", "densenet121"),
    ("RegNetY-16GF", "regnety_160"),
    ("EfficientNet-B0", "efficientnet_b0"),
    ("MobileNetV2", "mobilenetv2_100"),
    ("MobileNetV3-Large", "mobilenetv3_large_100"),
    ("NFNet-F0", "nfnet_f0"),
    ("ConvNeXt-T", "convnext_tiny"),
    ("MLP-Mixer-B/16", "mixer_b16_224"),
    ("Swin-T", "swin_tiny_patch4_window7_224"),
    ("ViT-B/16", "vit_base_patch16_224"),
    ("ViT-B/16, OpenAI CLIP's image tower", "vit_base_patch16_clip_quickgelu_224"),
    ("EVA-02-B/14", "eva02_base_patch14_224"),
    ("CSPDarkNet-53", "cspdarknet53"),
)


_GATED = re.compile(r"act\w*\([^\n]*gate[^\n]*\) \*|\* self\.act\w*\(\w*gate\w*\)|hidden_gelu \* hidden_linear")


def _is_gated(config: Any) -> bool:
    """Return whether the feed-forward block of a model is gated: T5's configuration says so, else its source."""
    said = getattr(config, "is_gated_act", None)
    if said is not None:
        return bool(said)
    path = type(config).__module__.replace(".configuration_", ".modeling_")
    return _GATED.search(inspect.getsource(importlib.import_module(path))) is not None


def of_transformers() -> list[dict[str, Any]]:
    """Return the defaults of transformers' configurations."""
    library = importlib.import_module("transformers")
    rows = []
    for name, class_name, field in TRANSFORMERS:
        config = getattr(library, class_name)()
        rows.append({
            "architecture": name,
            "activations": [getattr(config, field)],
            "gated": _is_gated(config),
            "source": f"transformers {version('transformers')}, `{class_name}.{field}`",
        })
    return rows


def _found(model: torch.nn.Module, names: dict[type, str]) -> list[str]:
    """Return the activations of a model; timm's own classes have the names of timm's table."""
    counts: collections.Counter[str] = collections.Counter()
    for module in model.modules():
        spec = activations.spec_of(module)
        name = names.get(type(module)) if spec.opaque else spec.name
        if name is not None and name != "identity":
            counts[name] += 1
    return [name for name, _ in counts.most_common()]


def of_timm() -> list[dict[str, Any]]:
    """Return what is in timm's models."""
    library = importlib.import_module("timm")
    table = importlib.import_module("timm.layers.create_act")._ACT_LAYER_DEFAULT
    names = {layer: name for name, layer in table.items()}
    rows: list[dict[str, Any]] = []
    for name, model in TIMM:
        with torch.device("meta"):
            found = _found(library.create_model(model), names)
        source = f"timm {version('timm')}, modules of `{model}`"
        rows.append({"architecture": name, "activations": found, "gated": None, "source": source})
    return rows


def main() -> None:
    """Write the record."""
    versions = {name: version(name) for name in ("transformers", "timm")}
    content = {"versions": versions, "rows": [*of_transformers(), *of_timm()]}
    with write_atomically(RECORD) as path:
        path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"wrote {RECORD.name}")


if __name__ == "__main__":
    main()
