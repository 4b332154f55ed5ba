"""Twenty rows of the table of architectures (docs/architectures.md), measured anew."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
TRANSFORMERS = ["bart", "bert", "clip", "convnext", "deberta-v2", "distilbert", "gpt2", "llama", "modernbert", "olmoe"]
TRANSFORMERS += ["segformer", "swinv2", "t5", "vit", "wav2vec2", "whisper"]
TIMM = ["test_convnext", "test_efficientnet", "test_mambaout", "test_vit"]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*(f"transformers.{n}" for n in TRANSFORMERS), *(f"timm.{n}" for n in TIMM)])
def test_an_architecture_is_seen_swapped_exported_and_proved(name, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    architectures = importlib.import_module("architectures")
    row = architectures.measure(name)
    assert row["seen"] == row["calls"] > 0
    assert row["moved"]
    assert row["undone"]
    assert row["unchanged"]
    assert architectures.is_right(row, "ours")
    assert row["parity"], row["reasons"]
