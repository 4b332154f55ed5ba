"""``benchmarks/predictor.py``: a line for each net and batch size, with two ratios. What they are is not asserted."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "predictor.py"


@pytest.mark.full
def test_a_line_for_each_net_and_batch_size():
    arguments = ["--seconds", "0.01", "--nets", "8-16-4", "mnist", "--batches", "1", "8"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["net", "batch", "onnxruntime", "arrays", "tensors"]
    assert [line.split()[:2] for line in lines] == [["8-16-4", "1"], ["8-16-4", "8"], ["mnist", "1"], ["mnist", "8"]]
    assert all(re.search(r"\d+\.\d us +\d+\.\d\d +\d+\.\d\d$", line) for line in lines)
