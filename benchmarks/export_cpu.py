"""Speed of exported activations on onnxruntime's CPU, as ratios to the plain export of ``torch.onnx.export``.

    python benchmarks/export_cpu.py                     every activation, 16 Mi float32 elements, one thread: minutes
    python benchmarks/export_cpu.py mish softplus       some of them
    python benchmarks/export_cpu.py --elements 65536    quicker

For each activation two files run side by side in one process: the one that ``torch.onnx.export(dynamo=True)`` writes,
and `lit_gelu.export.export_onnx`'s for ``target="ort-cpu"``. They take turns, on the same input and into the same
output, and each round gives one ratio of the thread's CPU time, plain over ours: above 1 ours is faster. Printed are
the median ratio and the interval that holds the true median with 95 % (from the binomial distribution of its rank). A
row goes on, up to ``--most`` rounds, until that interval lies on one side of its goal; if it never does, it says so.

The errors are the largest of ``|y - y64| / max(1, |y64|)`` on -40 to 40. Where the plain file's is beyond what this
package allows in float32, it computes something else, and being slower than that is listed apart. The last rows are
GELU at opset 18, where torch's own order of operands is not fused; the tanh form stands in front of a ReLU there,
because onnxruntime does not fuse it where its result is the graph's output.
"""

import argparse
import contextlib
import copy
import io
import logging
import math
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import onnxruntime
import torch
from torch import nn

from lit_gelu import activations
from lit_gelu.export import export_onnx
from lit_gelu.export.lowering.policy import FP32_ERROR

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
    """A session on one thread with its input and output bound, so that no run allocates either."""

    def __init__(self, path: Path, x: np.ndarray, y: np.ndarray) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.binding = self.session.io_binding()
        self.input, output = self.session.get_inputs()[0].name, self.session.get_outputs()[0].name
        for bind, name, array in ((self.binding.bind_input, self.input, x), (self.binding.bind_output, output, y)):
            bind(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)

    def seconds(self) -> float:
        """Return the CPU time of one run."""
        start = time.thread_time()
        self.session.run_with_iobinding(self.binding)
        return time.thread_time() - start

    def error(self, x: np.ndarray, exact: np.ndarray) -> float:
        """Return the largest error in units of max(1, |y|)."""
        (y,) = self.session.run(None, {self.input: x})
        with np.errstate(invalid="ignore"):
            errors = np.abs(y - exact) / np.maximum(1.0, np.abs(exact))
        return float(np.nan_to_num(errors, nan=np.inf, posinf=np.inf).max())


@dataclass(frozen=True)
class Row:
    """What was measured of one activation.

    Args:
        name: Of the row.
        times: Seconds of each round, plain and ours.
        errors: Of the plain file and of ours.
        operators: Of ours.
    """

    name: str
    times: list[tuple[float, float]]
    errors: tuple[float, float]
    operators: str

    @property
    def goal(self) -> float:
        """The least ratio."""
        return GOALS.get(self.name, LEAST)

    @property
    def ratio(self) -> tuple[float, float, float]:
        """The median ratio and the interval of its median."""
        ratios = [plain / ours for plain, ours in self.times]
        return statistics.median(ratios), *median_interval(ratios)

    @property
    def verdict(self) -> str:
        """Whether the goal is met, for all that the rounds can say."""
        _, low, high = self.ratio
        if low >= self.goal:
            return "met"
        if self.errors[0] > FP32_ERROR:
            return "plain is wrong"
        return "below" if high < self.goal else "undecided"

    def line(self, elements: int) -> str:
        """Return the row as text."""
        plain, ours = (1e3 * statistics.median(column) * 2**20 / elements for column in zip(*self.times, strict=True))
        middle, low, high = self.ratio
        verdict = "" if self.verdict == "met" else f"  {self.verdict} ({self.goal})"
        return (
            f"{self.name:38s} {plain:8.3f} {ours:8.3f} {middle:7.2f} x [{low:.2f}, {high:.2f}] {len(self.times):3d}  "
            f"{self.errors[0]:7.1e} {self.errors[1]:7.1e}  {self.operators}{verdict}"
        )


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval that holds the true median with at least 95 %; of fewer than six values, their range."""
    ordered, rank, tail = sorted(values), 0, 0.5 ** len(values)
    while tail <= 0.025:
        rank += 1
        tail += math.comb(len(values), rank) * 0.5 ** len(values)
    left = max(rank - 1, 0)
    return ordered[left], ordered[-1 - left]


def measure(name: str, model: nn.Module, x: np.ndarray, rounds: int, most: int, opset: int | None = None) -> Row:
    """Measure one activation."""
    with tempfile.TemporaryDirectory() as folder:
        ours, plain = Path(folder, "ours.onnx"), Path(folder, "plain.onnx")
        report = export_onnx(model, ours, torch.zeros(2, 8), target="ort-cpu", opset=opset)
        plain_export(model, plain, opset)
        y = np.empty_like(x)
        runs = Bound(plain, x, y), Bound(ours, x, y)
    few = np.linspace(-40, 40, 1 << 16, dtype=np.float32).reshape(-1, 8)
    with torch.no_grad():
        exact = copy.deepcopy(model).eval().double()(torch.from_numpy(few).double()).numpy()
    row = Row(name, [], (runs[0].error(few, exact), runs[1].error(few, exact)), " ".join(report.sites[0].operators))
    for run in runs * 3:
        run.seconds()  # memory for results in between is laid out in the first runs of a shape
    while len(row.times) < rounds or (row.verdict == "undecided" and len(row.times) < most):
        first, second = runs if len(row.times) % 2 else runs[::-1]
        seconds = {first: first.seconds(), second: second.seconds()}
        row.times.append((seconds[runs[0]], seconds[runs[1]]))
    return row


def cases(names: Sequence[str]) -> list[tuple[str, nn.Module, int | None]]:
    """Return the rows: a name, a module and an opset each."""
    rows: list[tuple[str, nn.Module, int | None]] = [
        (spec, nn.Sequential(activations.create(spec)), None) for spec in names or specs()
    ]
    if not names:
        rows.append(("gelu at opset 18", nn.Sequential(activations.create("gelu")), 18))
        rows.append(("gelu_tanh, ReLU at opset 18", nn.Sequential(activations.create("gelu_tanh"), nn.ReLU()), 18))
    return rows


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", help="activations; default: all")
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument("--rounds", type=int, default=9, help="of each row, at least")
    parser.add_argument("--most", type=int, default=99, help="of a row that the rounds have not decided")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    x = np.random.default_rng(0).normal(0, 2, arguments.elements // 8 * 8).astype(np.float32).reshape(-1, 8)
    print(
        f"onnxruntime {onnxruntime.__version__}, torch {torch.__version__}, {x.size} elements of N(0, 2^2), one thread"
    )
    print(f"{'activation':38s} plain ms  ours ms (a Mi elements)  ratio [95 %] rounds  errors plain, ours  operators")
    verdicts: dict[str, list[str]] = {"met": [], "below": [], "undecided": [], "plain is wrong": []}
    for name, model, opset in cases(arguments.specs):
        row = measure(name, model, x, arguments.rounds, arguments.most, opset)
        print(row.line(x.size), flush=True)
        verdicts[row.verdict].append(name)
    print(f"{sum(map(len, verdicts.values()))} rows; goals met: {len(verdicts.pop('met'))}")
    for verdict, names in verdicts.items():
        print(f"{verdict}: {', '.join(names) or 'none'}")


if __name__ == "__main__":
    main()
