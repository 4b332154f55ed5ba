"""``benchmarks/replica_tiles.py``: what it tries, and that it refuses a machine without a GPU."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"
KEYS = [("forward", 128, 128, 784), ("backward", 16, 256, 25), ("parameters", 256, 150, 16), ("output", 16, 25, 256)]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key[0])
def test_the_packages_own_tiles_are_tried_among_others(monkeypatch, key):
    pytest.importorskip("triton", reason="Triton has no build for this system")
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("replica_tiles")
    found = module.candidates(key)
    assert found[0] == module.kernel_tiles.tiles_of(*key)
    assert len(set(found)) == len(found) > 1
    assert all(number & (number - 1) == 0 for tiles in found for number in tiles[:3])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    pytest.importorskip("triton", reason="Triton has no build for this system")
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "argv", ["replica_tiles.py"])
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module("replica_tiles").main()
    assert "torch sees no CUDA device" in capsys.readouterr().err
