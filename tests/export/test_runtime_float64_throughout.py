"""What asks for float32 gets float64, and everything else is as it was."""

import numpy as np
import pytest
import torch

from lit_gelu.export.runtime.module_call import Float64Throughout

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


def test_bits_are_read_as_they_are_and_other_dtypes_stay():
    bits = torch.tensor([0x3F800000], dtype=torch.int32)
    with Float64Throughout():
        assert bits.view(torch.float32).item() == 1.0
        assert torch.ones(2, dtype=torch.float16).dtype == torch.float16
        assert INTEGERS.to(torch.int32).dtype == torch.int32


def test_the_default_is_put_back_after_an_error():
    with pytest.raises(ValueError, match="mine"), Float64Throughout():
        raise ValueError("mine")
    assert torch.get_default_dtype() == torch.float32
