"""Checkpoints that commands are given: what a file holds does not decide how long a message is."""

import pytest
import torch

from lit_gelu.cli.loading import load_model
from lit_gelu.errors import CheckpointError
from lit_gelu.tasks import MNISTClassifier

LONG = "z" * 100_000


@pytest.mark.parametrize(
    ("entry", "value", "model"),
    [
        ("pytorch-lightning_version", LONG, None),
        ("pytorch-lightning_version", [["2.6.0"]] * 10_000, None),
        ("state_dict", dict.fromkeys(map(str, range(10_000)), torch.zeros(1)), "MNISTClassifier"),
        ("hyper_parameters", {"activation": LONG}, None),
    ],
    ids=["text", "lists", "tensors", "activation"],
)
def test_a_file_of_any_size_has_a_short_message(entry, value, model, tmp_path):
    checkpoint = {
        "state_dict": MNISTClassifier("gelu", hidden_layers=1).state_dict(),
        "hyper_parameters": {"activation": "gelu", "hidden_layers": 1},
        "pytorch-lightning_version": "2.6.0",
    }
    torch.save(checkpoint | {entry: value}, tmp_path / "long.ckpt")
    with pytest.raises(CheckpointError) as found:
        load_model(str(tmp_path / "long.ckpt"), model)
    assert len(str(found.value)) < 2500
