"""Which functions the tests of kernels try, on which inputs."""

import torch

#: What is computed, by the name of the file's entry: the function's name in `device` and its two parameters.
FUNCTIONS = {
    "gelu": ("gelu", 0.0, 0.0),
    "gelu_tanh": ("gelu_tanh", 0.0, 0.0),
    "gelu_sigmoid": ("swish", 1.702, 0.0),
    "silu": ("swish", 1.0, 0.0),
    "swish": ("swish", 0.5, 0.0),
    "mish": ("mish", 0.0, 0.0),
    "elu": ("elu", 1.0, 0.0),
    "elu_half": ("elu", 0.5, 0.0),
    "hard_swish": ("hard_swish", 0.0, 0.0),
    "gaussian_gelu": ("gaussian_gelu", -0.5, 2.0),
}
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def every_input(dtype: torch.dtype) -> torch.Tensor:
    """Return every value of a 16-bit dtype."""
    return torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)
