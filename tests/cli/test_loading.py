"""Checkpoints that commands are given: what a file holds does not decide how long a message is."""

import pytest
import torch

from lit_gelu.cli.loading import LoadingError, load_model
from lit_gelu.tasks import MNISTClassifier

LONG = "z" * 100_000


@pytest.mark.parametrize(
    ("entry", "value", "says"),
    [
        ("pytorch-lightning_version", LONG, r"Invalid version: 'zzz.* \[\d+ characters left out\] zzz"),
        ("pytorch-lightning_version", [["2.6.0"]] * 10_000, r"Invalid version: \[\['2\.6\.0'\]"),
        ("state_dict", dict.fromkeys(map(str, range(10_000)), torch.zeros(1)), "Missing key"),
        ("hyper_parameters", {"activation": LONG}, "which is not registered"),
    ],
    ids=["text", "lists", "tensors", "activation"],
)
def test_a_file_of_any_size_has_a_short_message(entry, value, says, tmp_path):
    model = MNISTClassifier("gelu", hidden_layers=1)
    checkpoint = {
        "state_dict": model.state_dict(),
        "hyper_parameters": {"activation": "gelu", "hidden_layers": 1},
        "pytorch-lightning_version": "2.6.0",
    }
    torch.save(checkpoint | {entry: value}, tmp_path / "long.ckpt")
    with pytest.raises(LoadingError, match=says) as found:
        load_model(str(tmp_path / "long.ckpt"))
    assert len(str(found.value)) < 2500
