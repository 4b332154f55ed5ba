"""Exports of several threads at a time leave the process's streams and filters of warnings as they were."""

import sys
import threading
import warnings

import torch
from torch import nn

from lit_gelu.export import export_onnx


def test_streams_and_filters_are_as_before(tmp_path):
    before = sys.stdout, sys.stderr, list(warnings.filters)
    nets = [nn.Sequential(nn.Linear(4, 3), nn.GELU()).eval() for _ in range(3)]
    threads = [
        threading.Thread(target=export_onnx, args=(net, tmp_path / f"{number}.onnx", torch.randn(2, 4)))
        for number, net in enumerate(nets)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sys.stdout, sys.stderr) == before[:2]
    assert not [one for one in warnings.filters if one not in before[2] and one[0] == "ignore" and one[2] is Warning]
    assert len(list(tmp_path.glob("*.onnx"))) == 3
