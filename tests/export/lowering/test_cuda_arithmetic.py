"""Why strict 16-bit files have Sigmoid and HardSwish in float32 on CUDA: its kernels' own arithmetic, transcribed."""

import numpy as np
import pytest

from lit_gelu.export.lowering import policy
from lit_gelu.export.lowering.lowering_table import TABLE
from lit_gelu.export.lowering.policy import Target


def sigmoid(x):
    """onnxruntime 1.31's `OP_Sigmoid` in cuda/activation/activations_impl.cu, in float16."""
    one = np.float16(1)
    inverse = one / (one + np.exp(-np.abs(x.astype(np.float64))).astype(np.float16))
    return np.where(x > 0, inverse, one - inverse)


def hard_swish(x):
    """Its `OP_HardSigmoid` there, and a product, in float16."""
    return x * np.clip(np.float16(1 / 6) * x + np.float16(0.5), np.float16(0), np.float16(1))


EXACT = {
    "sigmoid": (sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "hard_swish": (hard_swish, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
}


@pytest.mark.parametrize("name", EXACT)
def test_cuda_computes_further_off_in_float16_than_strict_allows(name):
    by_cuda, exact_of = EXACT[name]
    x = np.arange(-(2**15), 2**15).astype(np.int16).view(np.float16)
    x = x[np.abs(x) <= 8]
    exact = exact_of(x.astype(np.float64))
    choice = policy.choose(TABLE[name], Target("ort-cuda", "fp16"), 20)
    place = np.spacing(np.abs(exact).astype(np.float16)).astype(np.float64)
    allowed = policy.ulp_bound(choice) * place + policy.absolute_error(TABLE[name], choice)
    errors = np.abs(by_cuda(x).astype(np.float64) - exact)
    assert (errors > allowed).sum() > 100
    assert choice.in_fp32
