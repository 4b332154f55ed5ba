"""Swish and GELU(mu, sigma) with parameters per channel, and at the ends of their range."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from lit_gelu import activations
from lit_gelu.activations import ActivationArgumentError, functional


@pytest.mark.parametrize("channel_dim", [1, -1, 0, 2])
@pytest.mark.parametrize("spec", ["swish(beta=0.8, {})", "gaussian_gelu(mu=-0.3, sigma=1.2, {})"])
def test_each_channel_is_the_scalar_function(spec, channel_dim):
    x = torch.randn(3, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    module = activations.create(spec.format(f"learnable=True, channels=3, channel_dim={channel_dim}")).double()
    values = torch.tensor([-0.4, 0.0, 0.6], dtype=torch.float64)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(values)
    for channel in range(3):
        alone = activations.create(spec.format("learnable=True")).double()
        with torch.no_grad():
            for parameter in alone.parameters():
                parameter.fill_(values[channel])
        part = x.select(channel_dim, channel)
        torch.testing.assert_close(module(x).select(channel_dim, channel), alone(part), rtol=1e-12, atol=1e-14)
    assert activations.spec_of(activations.create(str(activations.spec_of(module)))) == activations.spec_of(module)
    y = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(module(y).sum(), y)
    torch.testing.assert_close(functional.derivative(module, x, 1).detach(), slope)
    names = [name for name, _ in module.named_parameters()]

    def forward(x, *values):
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(
        forward, (y, *(parameter.detach().requires_grad_() for parameter in module.parameters()))
    )


def test_a_fixed_value_is_one_number():
    for spec in (
        "swish(beta=(1.0, 2.0))",
        "gaussian_gelu(sigma=(1.0, 2.0))",
        "swish(channels=3)",
        "swish(channels='infer')",
    ):
        with pytest.raises(ActivationArgumentError):
            activations.create(spec)


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
