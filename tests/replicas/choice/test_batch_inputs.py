"""What a module takes is read from a batch where it does not say so: token ids, two inputs, calls of functions."""

import math

import onnxruntime
import pytest
import torch
from choice_nets import CPU
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from lit_gelu import activations
from lit_gelu.replicas import choose

MEASURED = {"seeds": 2, "max_epochs": 1, "trainer": CPU, "seconds": 0.01, "metric": "val_loss"}
TARGETS = torch.arange(32) % 3
IDS = torch.randint(50, (32, 6), generator=torch.Generator().manual_seed(0))
PAIRS = torch.randn(2, 32, 4, generator=torch.Generator().manual_seed(1))

pytestmark = pytest.mark.filterwarnings("ignore:.*(num_workers|number of training batches|pin_memory)")


class Plain(LightningModule):
    """A module without example_input_array."""

    def training_step(self, batch, index):
        return functional.cross_entropy(self(*batch[:-1]), batch[-1])

    def validation_step(self, batch, index):
        self.log("val_loss", self.training_step(batch, index))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)


class Tokens(Plain):
    """An encoder of torch over token ids."""

    def __init__(self, activation="relu"):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 8), nn.Linear(8, 3)
        layer = nn.TransformerEncoderLayer(8, 2, 16, activation=activation, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, ids):
        return self.head(self.encoder(self.embedding(ids)).mean(1))


class TwoInputs(Plain):
    """A net of two inputs, whose activation is a call."""

    def __init__(self, activation="relu"):
        super().__init__()
        self.first, self.head, self.name = nn.Linear(8, 8), nn.Linear(8, 3), activation

    def forward(self, left, right):
        x = self.first(torch.cat([left, right], dim=1))
        return self.head(functional.gelu(x) if self.name == "gelu" else functional.relu(x))


class Uncalled(Plain):
    """A net that never calls its activation."""

    def __init__(self, activation="relu"):
        super().__init__()
        self.act, self.head = activations.create(activation), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x)


class WithoutForward(Plain):
    """A net that only its steps call."""

    def __init__(self, activation="relu"):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), activations.create(activation), nn.Linear(4, 3))

    def training_step(self, batch, index):
        return functional.cross_entropy(self.net(batch[0]), batch[1])


def held(*inputs):
    sets = TensorDataset(*inputs, TARGETS)
    return LightningDataModule.from_datasets(sets, sets, batch_size=16)


@pytest.mark.parametrize(("build", "inputs"), [(Tokens, [IDS]), (TwoInputs, list(PAIRS))])
def test_every_figure_and_the_file_without_example_input_array(tmp_path, build, inputs):
    choice = choose(build, ["gelu", "relu"], held(*inputs), folder=tmp_path, **MEASURED)
    assert choice.notes == []
    for candidate in choice.candidates:
        assert 0 < candidate.latency_seconds < 10
        assert {"top_eigenvalue", "trace", "curvature", "share_saturated"} == candidate.bends.keys()
        assert all(map(math.isfinite, candidate.bends.values()))
    session = onnxruntime.InferenceSession(tmp_path / "best.onnx", providers=["CPUExecutionProvider"])
    rows = {port.name: value[:5].numpy() for port, value in zip(session.get_inputs(), inputs, strict=True)}
    with torch.no_grad():
        wanted = choice.module.eval()(*(value[:5] for value in inputs))
    torch.testing.assert_close(torch.from_numpy(session.run(None, rows)[0]), wanted, rtol=1e-4, atol=1e-5)


def test_an_activation_that_is_not_called_is_said_to_be_so():
    choice = choose(Uncalled, ["gelu", "relu"], held(PAIRS[0]), **MEASURED)
    (note,) = (note for note in choice.notes if note.startswith("The mean curvature"))
    assert note.startswith(
        "The mean curvature of gelu and relu is not known, because no activation was observed. act: "
    )
    assert "jumps" not in note


def test_curvature_needs_no_forward():
    choice = choose(WithoutForward, ["gelu", "relu"], held(PAIRS[0]), **MEASURED)
    assert all("curvature" in candidate.bends for candidate in choice.candidates)
