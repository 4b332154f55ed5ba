"""What a module takes is read from a batch where it does not say so: token ids, two inputs, calls of functions."""

import math
import re

import onnxruntime
import pytest
import torch
from choice_nets import CPU
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lit_gelu import activations
from lit_gelu.choose import choose

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
        return self.joined(left, right)

    def joined(self, left, right):
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


class InAList(TwoInputs):
    """Its batches hold the inputs in a list, and forward takes the list."""

    def forward(self, inputs):
        return self.joined(*inputs)


class InAMapping(TwoInputs):
    """Its batches are mappings, and forward takes them whole."""

    def forward(self, batch):
        return self.joined(batch["left"], batch["right"])

    def training_step(self, batch, index):
        return functional.cross_entropy(self(batch), batch["target"])


class Linear(Plain):
    """A net without activation, which says what it takes."""

    def __init__(self, activation="relu"):
        super().__init__()
        self.head, self.example_input_array = nn.Linear(4, 3), torch.zeros(2, 4)

    def forward(self, x):
        return self.head(x)


class OfOneSize(Linear):
    """A net that takes batches of sixteen rows alone."""

    def __init__(self, activation="relu"):
        super().__init__()
        self.example_input_array = None

    def forward(self, x):
        return functional.gelu(self.head(x.view(16, 4)))


class Changed(LightningDataModule):
    """Batches of two inputs and the target, in the form that a function gives them."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def train_dataloader(self):
        rows = list(zip(*PAIRS, TARGETS, strict=True))
        return DataLoader(rows, 16, collate_fn=lambda found: self.form(*map(torch.stack, zip(*found, strict=True))))

    val_dataloader = train_dataloader


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


@pytest.mark.parametrize(
    ("build", "form", "names"),
    [
        (InAList, lambda left, right, target: ([left, right], target), ["inputs_0", "inputs_1"]),
        (
            InAMapping,
            lambda left, right, target: {"left": left, "right": right, "target": target},
            ["batch_left", "batch_right"],
        ),
    ],
)
def test_inputs_in_a_list_or_a_mapping(tmp_path, build, form, names):
    choice = choose(build, ["gelu", "relu"], Changed(form), folder=tmp_path, **MEASURED)
    (note,) = choice.notes
    assert note.startswith("best.onnx is proven on a sample and on drawn inputs")
    assert all(0 < each.latency_seconds < 10 and "curvature" in each.bends for each in choice.candidates)
    session = onnxruntime.InferenceSession(tmp_path / "best.onnx", providers=["CPUExecutionProvider"])
    rows = dict(zip(names, (part[:5].numpy() for part in PAIRS), strict=True))
    rows |= {port.name: TARGETS[:5].numpy() for port in session.get_inputs() if port.name not in rows}
    with torch.no_grad():
        wanted = choice.module.eval().joined(*PAIRS[:, :5])
    torch.testing.assert_close(torch.from_numpy(session.run(None, rows)[0]), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (WithoutForward, "WithoutForward has no forward, which its file and latency need"),
        (
            OfOneSize,
            "OfOneSize.forward fails on the inputs of a training batch: .*Give the module an example_input_arr",
        ),
    ],
)
def test_why_there_is_no_file_and_no_latency(tmp_path, build, said):
    choice = choose(build, ["gelu", "relu"], held(PAIRS[0]), folder=tmp_path, **MEASURED)
    found = [note for note in choice.notes if re.search(said, note)]
    assert [note.partition(" could")[0] for note in found] == ["Latency", "The best module's file"]
    assert "input_sample" not in " ".join(choice.notes)
    assert "onnx" not in choice.files


def test_calls_are_found_with_a_sample_and_the_note_says_so_only_without_one():
    (note,) = choose(Linear, ["gelu", "relu"], held(PAIRS[0]), **MEASURED).notes
    assert note.endswith("is not known, because the module has no activation, and running it calls none.")
    notes = choose(OfOneSize, ["gelu", "relu"], held(PAIRS[0]), **MEASURED).notes
    (note,) = (note for note in notes if note.startswith("The mean curvature"))
    assert note.endswith("Give the module an example_input_array: calls are found by running its forward.")
    assert "input_sample" not in note
