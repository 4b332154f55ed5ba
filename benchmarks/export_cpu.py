"""Speed of exported activations on onnxruntime's CPU, as ratios to the plain export of ``torch.onnx.export``.

    python benchmarks/export_cpu.py                     every activation, 16 Mi float32 elements, one thread: minutes
    python benchmarks/export_cpu.py mish softplus       some of them
    python benchmarks/export_cpu.py --elements 65536    quicker

For each activation two files run side by side in one process: the one that ``torch.onnx.export(dynamo=True)`` writes,
and `lit_gelu.export.export_onnx`'s for ``target="ort-cpu"``. Runs alternate; the ratio is of the medians of the
thread's CPU time, plain over ours, so above 1 ours is faster. The last lines are GELU at opset 18, where torch's own
order of operands is not fused. Outputs are bound once, so no run allocates.
"""

import argparse
import contextlib
import io
import logging
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import onnxruntime
import torch
from torch import nn

from lit_gelu import activations
from lit_gelu.export import export_onnx

SKIPPED = {"identity", "glu", "reglu", "geglu", "swiglu"}  # nothing to lower, or not elementwise
GOALS = {"mish": 5.0, "softplus": 3.0, "gelu at opset 18": 2.0}
LEAST = 0.97


def specs() -> list[str]:
    """Return every distinct activation of the package."""
    registry = activations.ActivationRegistry()
    names = {str(registry.resolve(name)) for name in registry.list_activations()}
    return sorted(name for name in names if name not in SKIPPED)


def plain_export(model: nn.Module, path: Path, opset: int | None) -> None:
    """Write what ``torch.onnx.export`` writes by itself."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.eval(), (torch.zeros(2, 8),), path, dynamo=True, opset_version=opset, verbose=False,
            external_data=False, dynamic_shapes=({0: torch.export.Dim("batch")},),
        )  # fmt: skip
    logging.disable(logging.NOTSET)


class Bound:
    """A session on one thread with its input and output bound."""

    def __init__(self, path: Path, x: np.ndarray) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.binding = self.session.io_binding()
        self.y = np.empty_like(x)
        given, made = self.session.get_inputs()[0].name, self.session.get_outputs()[0].name
        for bind, name, array in ((self.binding.bind_input, given, x), (self.binding.bind_output, made, self.y)):
            bind(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)

    def seconds(self) -> float:
        """Return the CPU time of one run."""
        start = time.thread_time()
        self.session.run_with_iobinding(self.binding)
        return time.thread_time() - start


def compare(ours: Path, plain: Path, x: np.ndarray, rounds: int) -> tuple[float, float, float]:
    """Return the medians in seconds, plain and ours, and the largest difference of their outputs."""
    runs = Bound(plain, x), Bound(ours, x)
    for run in runs:
        run.seconds()
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(rounds):
        for j in (0, 1) if i % 2 else (1, 0):
            times[j].append(runs[j].seconds())
    with np.errstate(invalid="ignore"):
        gap = float(np.nanmax(np.abs(runs[0].y - runs[1].y)))
    return statistics.median(times[0]), statistics.median(times[1]), gap


def measure(name: str, spec: str, x: np.ndarray, rounds: int, opset: int | None = None) -> tuple[str, float]:
    """Measure one activation and return its line and ratio."""
    with tempfile.TemporaryDirectory() as folder:
        ours, plain = Path(folder, "ours.onnx"), Path(folder, "plain.onnx")
        model = nn.Sequential(activations.create(spec))
        report = export_onnx(model, ours, torch.zeros(2, 8), target="ort-cpu", opset=opset)
        plain_export(model, plain, opset)
        slow, fast, gap = compare(ours, plain, x, rounds)
    ratio = slow / fast
    verdict = "" if ratio >= GOALS.get(name, LEAST) else f"  below {GOALS.get(name, LEAST)}"
    per = 1e3 * (1 << 20) / x.size
    operators = " ".join(report.sites[0].operators)
    line = f"{name:36s} {slow * per:8.3f} {fast * per:8.3f} {ratio:7.2f} x  {gap:8.1e}  {operators}{verdict}"
    return line, ratio


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", help="activations; default: all")
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    x = np.random.default_rng(0).normal(0, 2, arguments.elements // 8 * 8).astype(np.float32).reshape(-1, 8)
    print(
        f"onnxruntime {onnxruntime.__version__}, torch {torch.__version__}, {x.size} elements of N(0, 2^2), one thread"
    )
    print(f"{'activation':36s} plain ms  ours ms (a Mi elements)   ratio  largest difference  operators")
    below = []
    cases = [(spec, spec, None) for spec in arguments.specs or specs()]
    if not arguments.specs:
        cases += [("gelu at opset 18", "gelu", 18), ("gelu(approximate='tanh') at opset 18", "gelu_tanh", 18)]
    for name, spec, opset in cases:
        line, ratio = measure(name, spec, x, arguments.rounds, opset)
        print(line, flush=True)
        if ratio < GOALS.get(name, LEAST):
            below.append(name)
    print(f"{len(cases)} activations; below their goal: {', '.join(below) or 'none'}")


if __name__ == "__main__":
    main()
