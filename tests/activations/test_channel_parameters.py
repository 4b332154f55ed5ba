"""Swish and GELU(mu, sigma) with parameters per channel, and at the ends of their range."""

import copy
import math

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from lit_gelu import activations
from lit_gelu.activations import functional


@pytest.mark.parametrize("channel_dim", [1, -1, 0, 2])
@pytest.mark.parametrize("learnable", [False, True])
def test_each_channel_is_the_scalar_function(channel_dim, learnable):
    x = torch.randn(3, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    betas, mus, sigmas = (0.5, 1.0, 3.0), (-0.3, 0.0, 1.2), (0.2, 1.0, 2.5)
    options = {"learnable": learnable, "channel_dim": channel_dim}
    swish = activations.create("swish", beta=betas, **options).double()
    gaussian = activations.create("gaussian_gelu", mu=mus, sigma=sigmas, **options).double()
    for channel in range(3):
        part = x.select(channel_dim, channel)
        torch.testing.assert_close(
            swish(x).select(channel_dim, channel), functional.swish(part, betas[channel]), rtol=1e-7, atol=1e-7
        )
        torch.testing.assert_close(
            gaussian(x).select(channel_dim, channel),
            functional.gaussian_gelu(part, mus[channel], sigmas[channel]),
            rtol=1e-6,
            atol=1e-6,
        )
    for module in (swish, gaussian):
        assert activations.spec_of(activations.create(str(activations.spec_of(module)))) == activations.spec_of(module)
        y = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(module(y).sum(), y)
        torch.testing.assert_close(functional.derivative(module, x, 1).detach(), slope)


@pytest.mark.parametrize("spec", ["swish(learnable=True, channels=3)", "gaussian_gelu(learnable=True, channels=3)"])
def test_gradients_per_channel(spec):
    module = activations.create(spec).double()
    x = torch.randn(4, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    names = [name for name, _ in module.named_parameters()]

    def forward(x, *values):
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))

    values = [torch.tensor([-0.4, 0.0, 0.6], dtype=torch.float64).requires_grad_() for _ in names]
    assert torch.autograd.gradcheck(forward, (x.requires_grad_(), *values))


@pytest.mark.parametrize("channels", [None, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("name", "to_relu"), [("swish", 1e4), ("gaussian_gelu", -1e4), ("swish", -1e4), ("gaussian_gelu", 1e4)]
)
def test_scales_that_underflow_or_overflow_give_no_nan(name, to_relu, dtype, channels):
    """sigma -> 0 and beta -> inf are ReLU; the other ends are x / 2."""
    module = activations.create(name, learnable=True, channels=channels).to(dtype)
    with torch.no_grad():
        module.log_scale.fill_(to_relu)
    x = torch.tensor([-3.0, 0.0, 2.0], dtype=dtype).expand(2, 3).clone().requires_grad_()
    y = module(x)
    gradients = torch.autograd.grad(y.sum(), (x, *module.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)
    relu = (name == "swish") == (to_relu > 0)
    torch.testing.assert_close(y, x.relu() if relu else x / 2, rtol=1e-3, atol=1e-3)
    if relu:
        assert gradients[0][0].tolist() == [0.0, 0.5, 1.0]


def test_fixed_values_are_rounded_once():
    betas, x = (0.3, 0.1), torch.tensor([-3.0, 2.0], dtype=torch.float64)
    module = activations.create("swish", beta=betas, channel_dim=-1)
    expected = torch.stack([functional.swish(x[i], betas[i]) for i in range(2)])
    for wide in (module.half().double(), copy.deepcopy(module).bfloat16().double(), copy.deepcopy(module).double()):
        torch.testing.assert_close(wide(x), expected, rtol=1e-15, atol=0)
    assert torch.equal(module.half().float().beta, torch.tensor(betas))
    one, per_channel = activations.gain("swish(beta=0.3)"), activations.gain("swish(beta=(0.3,))")
    assert math.isclose(one, per_channel, rel_tol=1e-14)


@pytest.mark.parametrize("learnable", [False, True])
def test_fixed_values_outlast_uninitialised_memory(learnable):
    """`torch.nn.Module.to_empty` after the meta device, and what transformers does with a buffer that no file holds."""
    arguments = {"mu": (-0.3, 1.2), "sigma": (0.2, 2.5), "learnable": learnable}
    expected = activations.create("gaussian_gelu", **arguments)
    with torch.device("meta"):
        module = activations.create("gaussian_gelu", **arguments)
    module = module.to_empty(device="cpu")
    module.load_state_dict(expected.state_dict())
    assert torch.equal(module.mu, expected.mu)
    assert torch.equal(module.sigma, expected.sigma)
    for name, buffer in list(module.named_buffers()):
        setattr(module, name, torch.full_like(buffer, math.nan, dtype=torch.float64))
    assert torch.equal(module.double().mu, torch.tensor((-0.3, 1.2), dtype=torch.float64))


LEARNED = ("swish(learnable=True{})", "gaussian_gelu(learnable=True{})")


@pytest.fixture
def mesh(tmp_path):
    dist.init_process_group("gloo", init_method=(tmp_path / "store").as_uri(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("spec", [*LEARNED, "xielu"])
def test_fsdp_shards_one_value_that_has_a_dimension(spec, mesh):
    """The gradients of the sharded parameters are those of the module that FSDP refuses."""
    x = torch.randn(4, 8)
    module = torch.nn.Sequential(activations.create(spec.format(", channels=1")))
    fully_shard(module, mesh=mesh)
    module(x).square().sum().backward()
    plain = activations.create(spec.format(""))
    plain(x).square().sum().backward()
    for sharded, expected in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(sharded.grad.full_tensor().reshape(()), expected.grad.reshape(()))


@pytest.mark.parametrize("spec", LEARNED)
def test_what_was_saved_with_either_shape_is_loaded_with_the_other(spec):
    scalar, vector = (activations.create(spec.format(channels)) for channels in ("", ", channels=1"))
    saved = {name: torch.tensor(0.3) for name in scalar.state_dict()}
    vector.load_state_dict(saved)
    assert all(torch.equal(value, torch.tensor([0.3])) for value in vector.state_dict().values())
    assert all(value.shape == () for value in saved.values())
    scalar.load_state_dict(vector.state_dict())
    assert all(torch.equal(value, torch.tensor(0.3)) for value in scalar.state_dict().values())
