"""Swapped calls in what models are used for: training, DDP, Lightning, export; and the parameters they bring."""

import functional_nets as nets
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from lit_gelu import surgery
from lit_gelu.errors import SwapError

SAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def test_channels_are_those_that_the_sample_shows():
    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 1)
            self.act = nn.ReLU()

        def forward(self, x):
            return self.act(F.relu(self.conv(x)).flatten(2).transpose(1, 2))

    model, x = Conv(), torch.zeros(2, 3, 5, 5)
    surgery.swap(model, {":relu": "swish(learnable=True, channels='infer')"}, x)
    assert model.relu_call.log_scale.shape == (8,)
    surgery.swap(model, {"act": "swish(learnable=True, channels='infer', channel_dim=1)"}, x)
    assert model.act.log_scale.shape == (25,)  # the layer before it has 8
    loop = nets.ReusedModule()
    with pytest.raises(SwapError):
        surgery.swap(loop, {"act": "swish(learnable=True, channels='infer')"}, SAMPLE)


def test_a_frozen_activation_stays_frozen():
    model = nn.Sequential(nn.PReLU(), nn.ReLU())
    model[0].requires_grad_(False)
    surgery.swap(model, {"0": "swish(learnable=True)", "1": "prelu"})
    assert [parameter.requires_grad for parameter in model.parameters()] == [False, True]


def test_new_parameters_are_frozen_where_the_weights_beside_them_are():
    model = nn.ModuleDict({"act": nn.ReLU(), "b": nets.Function(), "a": nn.Sequential(nn.ReLU(), nn.Linear(4, 4))})
    model["b"].requires_grad_(False)
    surgery.swap(model["b"], {"*": "prelu"}, SAMPLE)
    surgery.swap(model, {nn.ReLU: "prelu"})
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {"a.0.weight", "a.1.weight", "a.1.bias"}  # "act" stands beside "b"


def test_ddp_wraps_a_swapped_model(tmp_path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nets.Function()
        surgery.swap(model, {"*": "prelu"}, SAMPLE)
        wrapped = DistributedDataParallel(model)
        wrapped(SAMPLE).sum().backward()
        assert model.gelu_call.weight.grad is not None
        assert [site.name for site in surgery.find_sites(wrapped, SAMPLE)] == ["module.gelu_call"]
        net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.PReLU())
        for held in (DistributedDataParallel(net), fully_shard(net, mesh=init_device_mesh("cpu", (1,)))):
            for kind, activation in ((nn.ReLU, "prelu"), (nn.PReLU, "gelu")):  # one that comes, one that goes
                with pytest.raises(SwapError, match="Swap before that"):
                    surgery.swap(held, {kind: activation})
            assert len(surgery.swap(held, {nn.ReLU: "silu"}).rows) == 1
            assert held(SAMPLE).shape == (3, 4)
            surgery.swap(net, {nn.SiLU: "relu"})
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("cls", [nets.Function, nets.Held])
def test_onnx_export_of_a_swapped_model_has_parity(cls, tmp_path):
    from lit_gelu.export import check_parity, export_onnx

    model = cls().eval()
    surgery.swap(model, {"*": "gelu(approximate='tanh')"}, SAMPLE)
    path = tmp_path / "net.onnx"
    report = export_onnx(model, path, SAMPLE)
    (site,) = report.sites
    assert site.spec == "gelu(approximate='tanh')"
    assert check_parity(model, path, SAMPLE).passed
