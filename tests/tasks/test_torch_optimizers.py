"""Torch's optimizers with a fused kernel: the same steps, kept over checkpoints, refused where there is none."""

import pytest
import torch
from dispatched import Operations
from small_task import SmallData, quiet_trainer
from torch import nn

from lit_gelu.tasks import (
    MNISTClassifier,
    TaskArgumentError,
)
from lit_gelu.tasks.optimizers import adam, sgd


def small_net(dtype):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.PReLU(), nn.Linear(4, 3)).to(dtype)


def gradients(step, parameters):
    generator = torch.Generator().manual_seed(step)
    return [10.0 ** (step % 3 - 2) * torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]


def kingma_and_ba(parameters, steps, learning_rate, beta1, eps):
    """Kingma and Ba 2015, algorithm 1, in float64."""
    weights = [parameter.detach().double().clone() for parameter in parameters]
    moments = [(torch.zeros_like(weight), torch.zeros_like(weight)) for weight in weights]
    for step in range(1, steps + 1):
        for weight, gradient, (m, v) in zip(weights, gradients(step, weights), moments, strict=True):
            m.mul_(beta1).add_((1 - beta1) * gradient)
            v.mul_(0.999).add_(0.001 * gradient**2)
            weight -= learning_rate * (m / (1 - beta1**step)) / ((v / (1 - 0.999**step)).sqrt() + eps)
    return weights


def nesterov(parameters, steps, learning_rate, momentum):
    """Sutskever et al. 2013 as torch's documentation words it, in float64."""
    weights = [parameter.detach().double().clone() for parameter in parameters]
    velocities = [torch.zeros_like(weight) for weight in weights]
    for step in range(1, steps + 1):
        for weight, gradient, velocity in zip(weights, gradients(step, weights), velocities, strict=True):
            velocity.mul_(momentum).add_(gradient)
            weight -= learning_rate * (gradient + momentum * velocity)
    return weights


def make_steps(optimizer, parameters, steps):
    for step in range(1, steps + 1):
        for parameter, gradient in zip(parameters, gradients(step, parameters), strict=True):
            parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize(("beta1", "eps"), [(0.9, 1e-8), (0.0, 1e-4)])
def test_steps_of_adam(fused, dtype, tolerance, beta1, eps):
    parameters = list(small_net(dtype).parameters())
    wanted = kingma_and_ba(parameters, 7, 1e-2, beta1, eps)
    with Operations() as seen:
        make_steps(adam(parameters, 1e-2, beta1=beta1, eps=eps, fused=fused), parameters, 7)
    assert ("_fused_adam_" in seen.names) is fused
    for found, weight in zip(parameters, wanted, strict=True):
        torch.testing.assert_close(found.detach().double(), weight, rtol=0, atol=tolerance)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_steps_of_gradient_descent(fused, momentum):
    parameters = list(small_net(torch.float64).parameters())
    wanted = nesterov(parameters, 7, 1e-2, momentum)
    with Operations() as seen:
        make_steps(sgd([{"params": parameters}], 1e-2, momentum, fused=fused), parameters, 7)
    assert ("_fused_sgd_" in seen.names) is fused
    for found, weight in zip(parameters, wanted, strict=True):
        torch.testing.assert_close(found.detach(), weight, rtol=0, atol=1e-13)


def test_devices_without_it_are_refused():
    model = MNISTClassifier(hidden_layers=1, fused_optimizer=True).to("meta")
    with pytest.raises(TaskArgumentError):
        model.configure_optimizers()
    assert MNISTClassifier(hidden_layers=1).to("meta").configure_optimizers()


def fitted(epochs, fused, start=None):
    torch.manual_seed(0)
    model = MNISTClassifier(hidden_layers=2, fused_optimizer=fused)
    trainer = quiet_trainer(max_epochs=epochs)
    trainer.fit(model, datamodule=SmallData(), ckpt_path=start)
    return model, trainer


@pytest.fixture
def checkpoint(tmp_path):
    def of(fused):
        fitted(1, fused)[1].save_checkpoint(tmp_path / "one.ckpt")
        return tmp_path / "one.ckpt"

    return of


def test_a_run_is_the_same_but_for_rounding():
    one, other = (fitted(2, fused)[0] for fused in (True, False))
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("fused", [True, False])
def test_a_resumed_run_computes_as_its_model_says(checkpoint, fused):
    path = checkpoint(not fused)
    with Operations() as seen:
        _, trainer = fitted(2, fused, start=path)
    assert trainer.optimizers[0].param_groups[0]["fused"] is (True if fused else None)
    assert ("_fused_adam_" in seen.names) is fused
    assert {float(state["step"]) for state in trainer.optimizers[0].state.values()} == {6.0}
