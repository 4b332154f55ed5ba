"""The data that `check_parity` takes, and the inputs it makes."""

import numpy as np
import pytest
import torch
from export_cases import gelu_net
from lightning.pytorch import LightningDataModule
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lit_gelu.export import ModelInputError, check_parity, export_onnx
from lit_gelu.export.inputs import take_apart
from lit_gelu.export.parity.input_families import families

SAMPLE = torch.zeros(2, 6)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    net, path = gelu_net(), tmp_path_factory.mktemp("parity") / "net.onnx"
    export_onnx(net, path, SAMPLE)
    return net, path


class Batches(LightningDataModule):
    def __init__(self, with_test=True):
        super().__init__()
        self.stages = []

    def setup(self, stage):
        self.stages.append(stage)
        generator = torch.Generator().manual_seed(0)
        self.data = TensorDataset(torch.randn(20, 6, generator=generator), torch.zeros(20, dtype=torch.int64))

    def test_dataloader(self):
        return DataLoader(self.data, batch_size=8)


class ValidationOnly(LightningDataModule):
    def setup(self, stage):
        assert stage == "validate"

    def val_dataloader(self):
        return DataLoader(torch.randn(5, 6), batch_size=2)


class Several(ValidationOnly):
    def __init__(self, put_together):
        super().__init__()
        self.put_together = put_together

    def val_dataloader(self):
        return self.put_together(super().val_dataloader(), DataLoader(torch.randn(4, 6), batch_size=3))


class ListOfBatches(ValidationOnly):
    def val_dataloader(self):
        return [torch.randn(5, 6), torch.randn(3, 6)]


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (Several(lambda *loaders: list(loaders)), 9),
        (Several(lambda one, other: {"one": one, "others": (other, [one])}), 14),
        (ListOfBatches(), 8),
        (torch.randn(7, 6), 7),
        (DataLoader(TensorDataset(torch.randn(9, 6), torch.zeros(9)), batch_size=4), 9),
        ([DataLoader(torch.randn(9, 6), batch_size=4), DataLoader(torch.randn(2, 6))], 11),
        ({"one": DataLoader(torch.randn(3, 6)), "others": (DataLoader(torch.randn(2, 6)),)}, 5),
        ({"input": torch.randn(4, 6), "label": torch.zeros(4)}, 4),
        (Batches(), 20),
        (ValidationOnly(), 5),
    ],
)
def test_data_come_as_tensor_loader_dict_or_data_module(exported, data, rows):
    net, path = exported
    counts = {row.count for row in check_parity(net, path, data).rows if row.inputs == "data"}
    assert counts == {rows}


class Once(IterableDataset):
    """Rows of a generator, as of a stream: they are there once."""

    def __init__(self, rows):
        self.rows = iter(rows)

    def __iter__(self):
        return self.rows


class OnceOpened:
    """Batches that can be read once, and say so."""

    def __init__(self, batches):
        self.batches, self.opened = batches, 0

    def __iter__(self):
        self.opened += 1
        assert self.opened == 1
        return iter(self.batches)


@pytest.fixture(scope="module")
def exported_sound(tmp_path_factory):
    """A net that takes no sample made up of two frames, and no other is known."""
    torch.manual_seed(0)
    net, path = nn.Sequential(nn.Conv1d(3, 4, 3), nn.GELU()), tmp_path_factory.mktemp("parity") / "net.onnx"
    export_onnx(net, path, torch.randn(2, 3, 12), dynamic_shapes={"input": {2: "time"}})
    return net, path


@pytest.mark.parametrize("made", ["made up", "of the data"])
@pytest.mark.parametrize(
    "once",
    [
        lambda rows: DataLoader(Once(rows), batch_size=5),
        lambda rows: OnceOpened(list(rows.split(5))),
        lambda rows: iter(rows.split(5)),
    ],
)
def test_data_that_are_there_once_are_compared_whole(exported, exported_sound, made, once):
    net, path = exported if made == "made up" else exported_sound
    rows = torch.randn(20, 6) if made == "made up" else torch.randn(20, 3, 12)
    assert check_parity(net, path, once(rows)).row("data").count == 20


def test_a_data_module_is_set_up_once(exported, exported_sound):
    class Sounds(Batches):
        def setup(self, stage):
            super().setup(stage)
            self.data = TensorDataset(torch.randn(20, 3, 12))

    for (net, path), data in ((exported, Batches()), (exported_sound, Sounds())):
        assert check_parity(net, path, data).row("data").count == 20
        assert data.stages == ["test"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.randn(7, 2, 6), r"torch\.float32 of shape \(7, 2, 6\)"),
        (torch.zeros(7, 6, dtype=torch.int64), r"torch\.int64 of shape"),
        ([], "hold no batch"),
        (3, "data=int holds no batches"),
        (DataLoader([{"wrong": torch.zeros(6)}]), "gives 0 input tensors"),
        ([np.zeros((3, 6), np.float32)], "gives 0 input tensors"),
        ([3], "gives 0 input tensors"),
    ],
)
def test_data_that_do_not_fit(exported, data, message):
    net, path = exported
    with pytest.raises(ModelInputError, match=message):
        check_parity(net, path, data)


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float32, 1e5), (torch.bfloat16, 1e5), (torch.float16, 1e3)])
def test_extremes_stay_in_the_range_of_the_dtype(dtype, largest):
    net = gelu_net()
    found = {f.name: next(iter(f.batches)) for f in families(take_apart(net, SAMPLE), None, net, 0, dtype=dtype)}
    assert {"zeros", "subnormal, 1e-40", "gaussian, batch 32"} <= set(found)
    assert max(float(batch[0].abs().max()) for batch in found.values()) < largest
    assert len(found["gaussian, batch 32"][0]) == 32
    assert torch.equal(found["gaussian, batch 2"][0], found["gaussian, batch 32"][0][:2])


def test_arrays_of_a_net_that_needs_their_first_rows(exported_sound):
    net, path = exported_sound
    with pytest.raises(ModelInputError, match="fails on the input sample"):
        check_parity(net, path, [np.zeros((3, 3, 12), np.float32)])
