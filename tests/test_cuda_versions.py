"""Whether torch and onnxruntime have one major version of CUDA."""

import pytest

from lit_gelu.cuda_versions import mismatch


@pytest.mark.parametrize("pair", [("12.8", "12.2"), ("", "13.0"), (None, "13.0"), ("12.8", ""), (None, None)])
def test_pairs_that_can_work(pair):
    assert mismatch(*pair) is None


def test_two_major_versions():
    text, remedy = mismatch("12.8", "13.0")
    assert "torch is built for CUDA 12, onnxruntime for CUDA 13" in text
    assert "torch for CUDA 13, or a release of onnxruntime-gpu for CUDA 12" in remedy
