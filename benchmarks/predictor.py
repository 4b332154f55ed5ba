"""What `OnnxPredictor` costs beside onnxruntime itself, on the CPU.

    python benchmarks/predictor.py                  every net, batches of 1, 8 and 128: half a minute
    python benchmarks/predictor.py --seconds 0.2    quicker

Each call of a round is timed once, in shuffled order: ``session.run`` on a numpy array, and the predictor on that array
and on a torch tensor. Printed are the median of the first in microseconds, and the medians of the rounds' ratios to it.
Goals at batch 1: 1.02 for arrays and 1.3 for tensors. Repeated small calls of files with one input and one output go
through memory that onnxruntime knows; what a predictor adds to other calls, the checks of names, types and shapes, is
some microseconds at any size.
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn

from lit_gelu.export import OnnxPredictor, export_onnx
from lit_gelu.export.runtime import CPU
from lit_gelu.export.runtime.bench import interleaved, ratio
from lit_gelu.tasks import CIFAR10ConvNet, MNISTClassifier


def nets() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Return nets of several sizes, each with one row of input."""
    return {
        "8-16-4": (nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), torch.randn(1, 8)),
        "mnist": (MNISTClassifier(), torch.randn(1, 1, 28, 28)),
        "784-1024-1024-10": (
            nn.Sequential(nn.Linear(784, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10)),
            torch.randn(1, 784),
        ),
        "cifar10": (CIFAR10ConvNet(), torch.randn(1, 3, 32, 32)),
    }


def measured(predictor: OnnxPredictor, x: torch.Tensor, seconds: float) -> tuple[float, float, float]:
    """Return microseconds of onnxruntime, and the ratios to it of arrays and of tensors."""
    session, array, (name,) = predictor.session, x.numpy(), predictor.input_names
    calls = {
        "onnxruntime": lambda: session.run(None, {name: array}),
        "arrays": lambda: predictor(array),
        "tensors": lambda: predictor(x),
    }
    samples = interleaved(calls, torch.device("cpu"), seconds=seconds, rounds=(5, 100_000))
    plain = statistics.median(samples["onnxruntime"]) * 1e6
    return plain, ratio(samples, "arrays", "onnxruntime"), ratio(samples, "tensors", "onnxruntime")


def main() -> None:
    """Print one line for each net and batch size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to measure each line")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 128], help="batch sizes")
    parser.add_argument("--nets", nargs="+", choices=list(nets()), default=list(nets()), help="which nets")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(f"{'net':18s} {'batch':>5s} {'onnxruntime':>14s} {'arrays':>8s} {'tensors':>8s}")
    with tempfile.TemporaryDirectory() as folder:
        for net in arguments.nets:
            model, row = nets()[net]
            path = Path(folder) / f"{net}.onnx"
            export_onnx(model.eval(), path, row.repeat(2, *[1] * (row.dim() - 1)), target="ort-cpu")
            predictor = OnnxPredictor(path, [CPU])
            for batch in arguments.batches:
                x = row.repeat(batch, *[1] * (row.dim() - 1))
                plain, arrays, tensors = measured(predictor, x, arguments.seconds)
                print(f"{net:18s} {batch:5d} {plain:11.1f} us {arrays:8.2f} {tensors:8.2f}", flush=True)


if __name__ == "__main__":
    main()
