"""Checkpoints that commands are given: what a file holds does not decide how long a message is."""

import pytest
import torch

from lit_gelu.cli.loading import LoadingError, load_model
from lit_gelu.tasks import MNISTClassifier

LONG = "z" * 100_000


@pytest.mark.parametrize(
    ("entry", "value", "model", "says"),
    [
        ("pytorch-lightning_version", LONG, None, r"Invalid version: 'zzz.* \[\d+ characters left out\] zzz"),
        ("pytorch-lightning_version", [["2.6.0"]] * 10_000, None, r"Invalid version: \[\['2\.6\.0'\]"),
        ("state_dict", dict.fromkeys(map(str, range(10_000)), torch.zeros(1)), "MNISTClassifier", "Missing key"),
        ("hyper_parameters", {"activation": LONG}, None, "which is not registered"),
    ],
    ids=["text", "lists", "tensors", "activation"],
)
def test_a_file_of_any_size_has_a_short_message(entry, value, model, says, tmp_path):
    checkpoint = {
        "state_dict": MNISTClassifier("gelu", hidden_layers=1).state_dict(),
        "hyper_parameters": {"activation": "gelu", "hidden_layers": 1},
        "pytorch-lightning_version": "2.6.0",
    }
    torch.save(checkpoint | {entry: value}, tmp_path / "long.ckpt")
    with pytest.raises(LoadingError, match=says) as found:
        load_model(str(tmp_path / "long.ckpt"), model)
    assert len(str(found.value)) < 2500


def test_a_checkpoint_of_another_class_asks_for_it_in_one_line(tmp_path):
    torch.save({"state_dict": {"weight": torch.zeros(1)}, "pytorch-lightning_version": "2.6.0"}, tmp_path / "own.ckpt")
    with pytest.raises(
        LoadingError, match=r"does not say of which class it is.*--model package\.module\.Class"
    ) as found:
        load_model(str(tmp_path / "own.ckpt"))
    assert "\n" not in str(found.value)
    assert "key" not in str(found.value)
