"""`fuse` changes what computes an activation, and nothing else that can be seen of a model."""

import copy
import io
import subprocess
import sys

import pytest
import torch
from torch import nn

from lit_gelu import kernels, surgery
from lit_gelu.activations import registry
from lit_gelu.activations.gpu import autograd, routes
from lit_gelu.export import export_onnx

ACTIVATIONS = [nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.ELU(0.5), nn.Hardswish(), nn.SiLU(inplace=True)]


def net():
    torch.manual_seed(0)
    layers = [layer for each in ACTIVATIONS for layer in (nn.Linear(8, 8), copy.deepcopy(each))]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("module", ACTIVATIONS, ids=repr)
def test_one_activation(module):
    fused = kernels.fuse(copy.deepcopy(module))
    assert type(fused) is not type(module)
    assert isinstance(fused, type(module))
    assert repr(fused) == repr(module)
    assert registry.spec_of(fused) == registry.spec_of(module)
    x = torch.linspace(-4, 4, 50)
    assert torch.equal(fused(x.clone()), module(x.clone()))
    assert type(kernels.unfuse(fused)) is type(module)


def test_the_model_stays_itself():
    model = net()
    before, text, seen = model.state_dict(), repr(model), []
    handle = model[1].register_forward_hook(lambda *_: seen.append(1))
    modules = list(model.modules())
    assert kernels.fuse(model) is model
    assert all(a is b for a, b in zip(modules, model.modules(), strict=True))
    assert repr(model) == text
    assert list(model.state_dict()) == list(before)
    model(torch.zeros(1, 8))
    assert seen == [1]
    handle.remove()


def test_what_has_no_kernel_is_left_alone():
    model = kernels.fuse(nn.Sequential(nn.ReLU(), nn.Tanh(), nn.Linear(2, 2)))
    assert [type(module) for module in model] == [nn.ReLU, nn.Tanh, nn.Linear]


def test_subclasses_may_compute_something_else():
    class Mine(nn.GELU):
        def forward(self, x):
            return x

    assert type(kernels.fuse(Mine())) is Mine


def test_twice_is_once():
    model = kernels.fuse(kernels.fuse(net()))
    assert [type(module) for module in kernels.unfuse(model)] == [type(module) for module in net()]


def test_copies_are_fused_and_pickles_hold_torchs_modules():
    model = kernels.fuse(net())
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert [type(module) for module in loaded] == [type(module) for module in net()]
    copied = copy.deepcopy(model)
    assert [type(module) for module in copied] == [type(module) for module in model]
    x = torch.randn(4, 8)
    for again in (copied, loaded):
        assert torch.equal(again(x), model(x))


def test_the_exported_file_is_the_same_byte_for_byte(tmp_path):
    x = torch.zeros(2, 8)
    for name, model in (("plain", net()), ("fused", kernels.fuse(net()))):
        export_onnx(model.eval(), tmp_path / f"{name}.onnx", x)
    assert (tmp_path / "plain.onnx").read_bytes() == (tmp_path / "fused.onnx").read_bytes()


def test_torch_export_shows_torchs_operators():
    x = (torch.zeros(2, 8),)
    codes = [torch.export.export(model.eval(), x).graph_module.code for model in (net(), kernels.fuse(net()))]
    assert codes[0] == codes[1]
    assert "aten.gelu" in codes[0]


def test_training_on_a_cpu_is_bitwise_the_same():
    found = []
    for model in (net(), kernels.fuse(net())):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        found.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(*found)


def test_activations_are_found_and_swapped_as_before():
    models = net(), kernels.fuse(net())
    plain, fused = (surgery.find_sites(model, torch.zeros(1, 8)) for model in models)
    assert [(site.name, str(site.spec)) for site in fused] == [(site.name, str(site.spec)) for site in plain]
    for model in models:
        surgery.swap(model, {nn.GELU: "relu"}, torch.zeros(1, 8))
    assert repr(models[0]) == repr(models[1])
    assert type(models[1][1]) is nn.ReLU


def test_what_overwrites_its_input_still_does(monkeypatch):
    monkeypatch.setattr(routes, "is_candidate", lambda _: True)
    monkeypatch.setattr(autograd, "route", lambda _: pytest.fail("an activation in place has no kernel"))
    x = torch.ones(3)
    assert kernels.fuse(nn.SiLU(inplace=True))(x) is x


def test_what_runs_is_explained(monkeypatch):
    x = torch.zeros(3)
    assert kernels.explain(kernels.fuse(nn.GELU()), x) == routes.route(x)
    assert "inplace" in kernels.explain(kernels.fuse(nn.SiLU(inplace=True)), x).why
    assert "nothing" not in kernels.explain(nn.ReLU(), x).why
    assert kernels.explain(nn.GELU(), x).code == "torch"


def test_without_triton_the_package_imports_and_computes():
    code = """
import sys
sys.modules["triton"] = None
import torch
from lit_gelu.kernels import fuse
assert torch.equal(fuse(torch.nn.GELU())(torch.ones(3)), torch.nn.functional.gelu(torch.ones(3)))
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


def test_the_kernels_are_imported_when_one_is_launched():
    code = """
import sys
import lit_gelu.kernels
assert "lit_gelu.activations.gpu.launch" not in sys.modules
assert "lit_gelu.activations.gpu.templates" not in sys.modules
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
