"""A module called as its file is: arguments by name, the file's softmax, and in float64 what asks for float32."""

import numpy as np
import pytest
import torch
from torch import nn

from lit_gelu.export.runtime.module_call import Float64Throughout, answer, arguments_for, float64_answer

INTEGERS = torch.arange(0, 1000, 7)
MAKERS = {
    "float": lambda: INTEGERS.float(),
    "to": lambda: INTEGERS.to(torch.float32),
    "to with a device": lambda: INTEGERS.to("cpu", torch.float32),
    "type": lambda: INTEGERS.type(torch.float32),
    "keyword": lambda: torch.zeros(3, dtype=torch.float32),
    "default": lambda: torch.linspace(0, 1, 9),
    "a number of Python": lambda: INTEGERS * 0.1,
}


class Shifted(nn.Module):
    """A file may have the first argument and the last: in order, the shift would be the scale."""

    def forward(self, x, scale=None, *, shift=None):
        return x if shift is None else x + shift


class Gathering(nn.Module):
    def forward(self, x, *others, mask=None, **named):
        y = sum(others, x) * (1.0 if mask is None else mask)
        return y + sum(3.0 * named[name] for name in sorted(named))


@pytest.mark.parametrize(
    ("module", "names", "expected"),
    [
        (Shifted(), ["x", "shift"], ([], ["x", "shift"])),
        (Gathering(), ["x", "others_0", "others_1"], (["x", "others_0", "others_1"], [])),
        (Gathering(), ["x", "mask", "a"], ([], ["x", "mask", "a"])),
        (nn.Linear(2, 2), ["nested_x"], (["nested_x"], [])),
    ],
)
def test_arguments_are_given_as_forward_takes_them(module, names, expected):
    assert arguments_for(module, names) == expected


def test_a_softmax_is_the_files():
    x = torch.randn(2, 3)
    y = answer(Shifted(), {"x": x}, arguments=([], ["x"]), softmax=True)
    torch.testing.assert_close(y, x.softmax(-1))


def test_a_module_that_asks_for_float32_answers_in_float64():
    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(x.float() / 3)

    module, x = Asks(), torch.randn(4, 3)
    exact = x.double() / 3 @ module.layer.weight.double().T + module.layer.bias.double()
    torch.testing.assert_close(float64_answer(module, {"x": x}, softmax=False), exact.detach(), rtol=1e-14, atol=1e-14)
    assert module.layer.weight.dtype == torch.float32


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_is_made_in_float32_is_made_in_float64(make):
    with Float64Throughout():
        assert make().dtype == torch.float64
    assert make().dtype == torch.float32


def test_values_are_those_of_float64():
    with Float64Throughout():
        angles = INTEGERS.float()[:, None] * torch.exp(-torch.arange(8) * 0.5)
    exact = np.arange(0, 1000, 7)[:, None] * np.exp(-np.arange(8) * 0.5)
    np.testing.assert_allclose(angles.sin().numpy(), np.sin(exact), atol=1e-12)


def test_bits_are_read_as_they_are():
    bits = torch.tensor([0x3F800000], dtype=torch.int32)
    with Float64Throughout():
        assert bits.view(torch.float32).item() == 1.0
        assert torch.ones(2, dtype=torch.float16).dtype == torch.float16


def test_the_default_is_put_back_after_an_error():
    with pytest.raises(IndexError), Float64Throughout():
        torch.ones(2)[3]
    assert torch.get_default_dtype() == torch.float32
