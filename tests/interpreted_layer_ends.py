"""The kernels of layers' ends in Triton's interpreter, beside torch's own operations; see `interpreted_harness`.

python interpreted_layer_ends.py OUT
"""

import torch
from interpreted_harness import main
from torch import nn

from lit_gelu.replicas.device import layer_ends
from lit_gelu.replicas.device.layer_ends import launch_end, launch_end_backward, number_of
from lit_gelu.tasks.keyed_noise import DeviceKeys, Key, dropout_factors, readings

CPU = torch.device("cpu")
ACTIVATIONS = (nn.ReLU(), nn.GELU(), nn.GELU(approximate="tanh"), nn.ELU(alpha=0.7), nn.SiLU(), nn.ReLU())
KEYS = [Key(seed, 3, step) for seed, step in ((0, 0), (1, 7), (2, 2**33), (2**62, 1), (1, 7), (5, 2))]
CHANCES = (0.5, 0.2, 0.0, 0.5, 0.9, 0.0)
ULP = 2.0**-23


def case(rows, columns):
    """Return products and biases of a replica for each activation, wide enough for every branch, and a gradient."""
    generator = torch.Generator().manual_seed(rows * columns)
    product = 4 * torch.randn(len(ACTIVATIONS), rows, columns, generator=generator, dtype=torch.float32)
    bias = torch.randn(len(ACTIVATIONS), columns, generator=generator)
    return product, bias, torch.randn(product.shape, generator=generator)


def read():
    """Return what the kernels read of the activations."""
    kinds, alphas = zip(*map(number_of, ACTIVATIONS), strict=True)
    return torch.tensor(kinds, dtype=torch.int32), torch.tensor(alphas)


def keys():
    """Return what the kernels read of dropout."""
    seeds, steps = torch.tensor([key.seed for key in KEYS]), torch.tensor([key.step + 1 for key in KEYS])
    return DeviceKeys(seeds, steps, *readings(CHANCES, CPU))


def float64_of(product, bias, gradient, factors):
    """Return outputs, gradient of the products and of the biases, by autograd in float64."""
    product, bias = (tensor.double().requires_grad_() for tensor in (product, bias))
    outputs = (
        torch.stack([module(z + b) for module, z, b in zip(ACTIVATIONS, product, bias, strict=True)]) * factors.double()
    )
    outputs.backward(gradient.double())
    return outputs.detach(), product.grad, bias.grad


def close(found, expected, per_sum=1):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-6, atol=per_sum * 8 * ULP)


def values_and_gradients_are_torchs():
    for rows, columns in ((5, 24), (33, 40), (16, 128), (70, 136)):
        product, bias, gradient = case(rows, columns)
        factors = dropout_factors(product.shape, KEYS, CHANCES)
        for drawn, by in ((keys(), factors), (None, torch.ones_like(factors))):
            outputs, of_product, of_bias = float64_of(product, bias, gradient, by)
            close([launch_end(product, bias, read(), drawn, 3)], [outputs])
            found = launch_end_backward(gradient, product, bias, read(), drawn, 3)
            close(found[:1], [of_product])
            close(found[1:], [of_bias], rows)


def widths_without_dropout_are_free():
    product, bias, gradient = case(7, 30)
    outputs, of_product, of_bias = float64_of(product, bias, gradient, torch.ones(()))
    close([launch_end(product, bias, read(), None, 0)], [outputs])
    close(launch_end_backward(gradient, product, bias, read(), None, 0), [of_product, of_bias], 7)


def small_arguments_of_elu_keep_their_digits():
    product = -torch.logspace(-30, 1, 64).view(1, 1, 64)
    kinds = torch.tensor([3], dtype=torch.int32), torch.ones(1)
    found = launch_end(product, torch.zeros(1, 64), kinds, None, 0)
    torch.testing.assert_close(found.double(), torch.expm1(product.double()), rtol=1e-6, atol=0)


def what_is_no_number_stays():
    product = torch.full((len(ACTIVATIONS), 2, 8), torch.nan)
    assert launch_end(product, torch.zeros(len(ACTIVATIONS), 8), read(), None, 0).isnan().all()


CHECKS = (
    values_and_gradients_are_torchs,
    widths_without_dropout_are_free,
    small_arguments_of_elu_keep_their_digits,
    what_is_no_number_stays,
)

if __name__ == "__main__":
    layer_ends.has_kernel = lambda _: True
    main(CHECKS)
