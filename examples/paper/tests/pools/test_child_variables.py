"""Variables that new processes are born with, and that the one which starts them has as before afterwards."""

import contextlib
import os

import pytest

from gelu_paper.pools.child_variables import threads_limited, variables_set


@pytest.mark.parametrize("before", [None, "4,6"])
def test_variables_are_put_back_whatever_happens(monkeypatch, before):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if before is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    with contextlib.suppress(OSError), variables_set({"CUDA_VISIBLE_DEVICES": "6"}):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "6"
        raise OSError
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == before


def test_the_variables_of_threads_are_those_that_openmp_mkl_and_openblas_read():
    assert threads_limited(3) == {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "3"}
