"""The kernel of dropout by key in Triton's interpreter; see `interpreted_harness`.

python interpreted_keyed_dropout.py OUT
"""

import torch
from interpreted_harness import main

from lit_gelu.tasks import keyed_dropout, keyed_noise
from lit_gelu.tasks.keyed_dropout import KeyedDropout
from lit_gelu.tasks.keyed_noise import DeviceKeys, KernelDropout, Key, dropout_factors, readings

CPU = torch.device("cpu")


def rows_of(keys, chances):
    """Return what the kernel reads."""
    seeds = torch.tensor([key.seed - 2**64 if key.seed >= 2**63 else key.seed for key in keys])
    return DeviceKeys(seeds, torch.tensor([key.step + 1 for key in keys]), *readings(chances, CPU))


def masks_are_numpys():
    keys = [Key(5, 6, 0, 1), Key(-3, 6, 7, 1), Key(2**64 - 2, 6, 2**40, 1), Key(2**62, 6, 1, 1)]
    chances = (0.5, 0.2, 0.999, 1.0)
    for shape in ((4, 2, 700), (4, 3), (4, 1024)):
        x = torch.randn(shape)
        y = keyed_noise.launch(x, rows_of(keys, chances), 6, 1)
        assert torch.equal(y, x * dropout_factors(shape, keys, chances))


def a_row_without_a_chance_is_kept():
    x = torch.randn(2, 33)
    y = keyed_noise.launch(x, rows_of([Key(1, 0, 0)] * 2, (0.0, 0.5)), 0, 0)
    assert torch.equal(y[0], x[0])
    assert (y[1] == 0).any()


def gradients_have_the_mask_of_their_own_step():
    keys, chances = [Key(1, 2, 3), Key(1, 2, 3)], (0.5, 0.25)
    x, gradient = torch.randn(2, 90, requires_grad=True), torch.randn(90, 2).t()
    y = KernelDropout.apply(x, rows_of(keys, chances), 2, 0)
    y.backward(gradient)
    assert torch.equal(x.grad, gradient * dropout_factors((2, 90), keys, chances))


def a_layer_has_the_masks_that_it_has_on_the_cpu():
    torch.manual_seed(4)
    layer, other, x = KeyedDropout(0.3, 1), KeyedDropout(0.3, 1), torch.randn(5, 40)
    expected = [other(x) for _ in range(2)]
    keyed_dropout.has_kernel = lambda _: True
    leaf = x.clone().requires_grad_()
    first = layer(leaf)
    second = layer(x)  # before the first one's backward pass
    first.sum().backward()
    assert torch.equal(first, expected[0])
    assert torch.equal(second, expected[1])
    assert torch.equal(leaf.grad, (first != 0) / torch.tensor(1 - 0.3))


def half_precision_keeps_the_masks():
    x = torch.ones(1, 64).half()
    y = keyed_noise.launch(x, rows_of([Key(0, 0, 0)], (0.5,)), 0, 0)
    assert y.dtype == torch.float16
    assert torch.equal(y.float(), dropout_factors((1, 64), [Key(0, 0, 0)], [0.5]))


def double_precision_keeps_its_digits():
    x = torch.randn(2, 64, dtype=torch.float64)
    keys, chances = [Key(0, 0, 0), Key(1, 0, 0)], (0.5, 0.3)
    y = keyed_noise.launch(x, rows_of(keys, chances), 0, 0)
    assert torch.equal(y, x * dropout_factors((2, 64), keys, chances).double())


CHECKS = (
    masks_are_numpys,
    a_row_without_a_chance_is_kept,
    gradients_have_the_mask_of_their_own_step,
    a_layer_has_the_masks_that_it_has_on_the_cpu,
    half_precision_keeps_the_masks,
    double_precision_keeps_its_digits,
)

if __name__ == "__main__":
    main(CHECKS)
