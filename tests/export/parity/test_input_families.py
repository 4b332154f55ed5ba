"""The data that `check_parity` takes, and the inputs it makes."""

import pytest
import torch
from export_cases import gelu_net
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, TensorDataset

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


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (torch.randn(7, 6), 7),
        (DataLoader(TensorDataset(torch.randn(9, 6), torch.zeros(9)), batch_size=4), 9),
        ({"input": torch.randn(4, 6), "label": torch.zeros(4)}, 4),
        (Batches(), 20),
        (ValidationOnly(), 5),
    ],
)
def test_data_come_as_tensor_loader_dict_or_data_module(exported, data, rows):
    net, path = exported
    counts = {row.count for row in check_parity(net, path, data).rows if row.inputs == "data"}
    assert counts == {rows}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.randn(7, 2, 6), r"torch\.float32 of shape \(7, 2, 6\)"),
        (torch.zeros(7, 6, dtype=torch.int64), r"torch\.int64 of shape"),
        ([], "hold no batch"),
        (3, "data=int holds no batches"),
        (DataLoader([{"wrong": torch.zeros(6)}]), "gives 0 input tensors"),
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
