"""`lit_gelu.kernels.fuse` with functions and classes of a user, whose kernels are generated."""

import copy
import pickle

import pytest
import torch
from torch import nn

from lit_gelu import kernels
from lit_gelu.activations import ActivationArgumentError, ActivationFacts, ActivationRegistry, registry
from lit_gelu.activations.modules import FunctionActivation

pytestmark = pytest.mark.usefixtures("without_code")


def bent(x):
    return (torch.sqrt(x**2 + 1) - 1) / 2 + x


@pytest.fixture
def own():
    return ActivationRegistry()


def test_a_registered_function(own, as_on_a_gpu, compilations):
    @own.register("bent")
    def scaled(x, scale=1.0):
        return scale * bent(x)

    model = nn.Sequential(*(own.create(spec) for spec in ("bent", "bent(scale=3.0)", "bent")))
    text = repr(model)
    assert kernels.fuse(model, own) is model
    assert repr(model) == text
    assert [str(own.spec_of(module)) for module in model] == ["bent", "bent(scale=3.0)", "bent"]
    x = torch.randn(5, 64).bfloat16()
    for module, scale in zip(model, (1, 3, 1), strict=True):
        assert torch.allclose(module(x).double(), scale * bent(x.double()), rtol=2.0**-8)
    assert len(compilations) == 2  # the same twice is one
    model[0].kwargs["scale"] = 2.0
    assert torch.allclose(model[0](x).double(), 2 * bent(x.double()), rtol=2.0**-8)
    assert [type(module) for module in kernels.unfuse(model)] == [type(own.create("bent"))] * 3


def test_what_a_row_says(own):
    own.register("off", kernel="off")(bent)
    own.register("swish_1", kernel=kernels.TritonKernel("swish", 1.0))(lambda x, beta=1.0: x * (beta * x).sigmoid())
    assert "kernel='off'" in kernels.explain(own.create("off"), torch.zeros(1), own).why
    assert kernels.fuse(own.create("swish_1"), own).kernel() == kernels.TritonKernel("swish", 1.0)
    assert "usual arguments" in kernels.explain(own.create("swish_1(beta=2.0)"), torch.zeros(1), own).why
    for wrong in ("on", None, 3):
        with pytest.raises(
            ActivationArgumentError, match=r"'auto', 'generated', 'off', or a lit_gelu\.kernels\.Kernel"
        ):
            own.register("wrong", kernel=wrong)(bent)


def test_a_class_has_a_kernel_if_its_row_says_so(own, as_on_a_gpu):
    class Cube(nn.Module):
        """x to the third."""

        def __init__(self, scale=1.0):
            super().__init__()
            self.scale = scale

        def forward(self, x):
            return self.scale * x**3

    own.register("silent")(Cube)
    assert "kernel='generated'" in kernels.explain(own.create("silent"), torch.zeros(1), own).why
    assert type(kernels.fuse(own.create("silent"), own)) is Cube
    own.register("cube", kernel="generated", override=True)(Cube)
    fused_cube, x = kernels.fuse(own.create("cube(scale=2.0)"), own), torch.randn(5, 64).bfloat16()
    assert isinstance(fused_cube, Cube)
    assert repr(fused_cube) == "Cube()"
    assert str(own.spec_of(fused_cube)) == "cube(scale=2.0)"
    y = fused_cube(x.requires_grad_())
    assert "Kernel" in type(y.grad_fn).__name__
    assert torch.allclose(y.double(), 2 * x.double() ** 3, rtol=2.0**-8)


def test_a_class_with_buffers_or_modules_has_none(own):
    class Held(nn.Module):
        def __init__(self, child=False):
            super().__init__()
            if child:
                self.child = nn.Tanh()
            else:
                self.register_buffer("scale", torch.ones(()))

        def forward(self, x):
            return x

    own.register("held", kernel="generated")(Held)
    for spec in ("held", "held(child=True)"):
        assert type(kernels.fuse(own.create(spec), own)) is Held
        assert "holds buffers or modules" in kernels.explain(own.create(spec), torch.zeros(1), own).why


def test_not_elementwise_and_random_rows_have_none(own):
    own.register("sorted", facts=ActivationFacts(elementwise=False))(lambda x: x.sort().values)
    own.register("noisy", facts=ActivationFacts(stochastic=True))(lambda x: x + torch.rand_like(x))
    for name in ("sorted", "noisy"):
        assert "no function of one number" in kernels.explain(own.create(name), torch.zeros(1), own).why


def test_copies_are_fused_and_pickles_hold_the_plain_modules():
    plain = [nn.Softplus(2.0), registry.create("clipped_gelu(max=3.0)"), FunctionActivation(torch.cos, "cosine")]
    model = kernels.fuse(nn.Sequential(*copy.deepcopy(plain)))
    copied, loaded = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    assert [type(module) for module in copied] == [type(module) for module in model]
    assert [type(module) for module in loaded] == [type(module) for module in plain]
    for again in (copied, loaded):
        assert [registry.spec_of(module) for module in again] == [registry.spec_of(module) for module in plain]
        assert torch.equal(again(torch.ones(3)), model(torch.ones(3)))


def test_the_exported_graph_is_the_plain_one():
    codes = [
        torch.export.export(model, (torch.zeros(3),)).graph_module.code
        for model in (nn.Softplus(), kernels.fuse(nn.Softplus()))
    ]
    assert codes[0] == codes[1]
    assert "aten.softplus" in codes[0]
