"""Which functions the tests of kernels try."""

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
}
