"""Exported files beside PyTorch on the GPU: ``python benchmarks/export_gpu.py``.

The CIFAR-10 net at batch 256, WRN-40-4 at batch 256, the MNIST net at batch 1 and 128, and a feed-forward block of
8192 x (1024 - 4096 - 1024), in float16, each with the exact GELU and with its tanh form: onnxruntime with files of
``policy="strict"`` and ``"fast"`` beside torch eager, channels_last and torch.compile. All ways to compute one net take
turns in shuffled order, in one process.

Two times are taken: "alone" of a call to an idle device, which of a small net is the time to start it, and "in a row"
the mean of calls that follow each other without a wait, as in a server under load. Ratios are to the PyTorch that is
fastest by that time, medians of the rounds' ratios. The last column is the largest error of an output against the
module in float64, as a share of the largest output. Inputs lie on the GPU, times are between CUDA events; weights are
untrained.

``--device cpu --small`` measures the same in float32 at small sizes, to try the script where there is no GPU.
"""

import argparse
import copy
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.export import OnnxPredictor, export_onnx
from lit_gelu.export.runtime import CPU, CUDA
from lit_gelu.export.runtime.bench import (
    Variant,
    arrays_of,
    interleaved,
    ratio,
    relative_error,
    torch_variants,
)
from lit_gelu.tasks import CIFAR10ConvNet, CIFAR100WideResNet, MNISTClassifier

FORMS = {"exact": "gelu", "tanh": "gelu_tanh"}
POLICIES = ("strict", "fast")


@dataclass(frozen=True)
class Net:
    """One net.

    Args:
        build: Makes it with an activation.
        shape: Of one row of its input.
        batch_sizes: What to measure.
        small: The same with ``--small``.
    """

    build: Callable[[str], nn.Module]
    shape: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    small: tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """One way to compute one net.

    Args:
        variant: Which.
        alone: Median milliseconds of a call to an idle device.
        in_a_row: Median milliseconds of a call among calls without a wait between them.
        alone_ratio: Beside the PyTorch that is fastest alone.
        in_a_row_ratio: Beside the PyTorch that is fastest in a row.
        error: Against float64, as a share of the largest output.
    """

    variant: str
    alone: float
    in_a_row: float
    alone_ratio: float
    in_a_row_ratio: float
    error: float


def block(activation: str, width: int = 1024) -> nn.Module:
    """Return a feed-forward block.

    Args:
        activation: ``gelu`` or ``gelu_tanh``.
        width: Size of its input and output.

    Returns:
        The block.
    """
    gelu = nn.GELU(approximate="none" if activation == FORMS["exact"] else "tanh")
    return nn.Sequential(nn.Linear(width, 4 * width), gelu, nn.Linear(4 * width, width))


NETS = {
    "block": Net(block, (1024,), (8192,), (4,)),
    "mnist": Net(MNISTClassifier, (1, 28, 28), (1, 128), (1, 4)),
    "cifar10": Net(CIFAR10ConvNet, (3, 32, 32), (256,), (2,)),
    "wrn-40-4": Net(CIFAR100WideResNet, (3, 32, 32), (256,), (1,)),
}


@dataclass(frozen=True)
class Plan:
    """How to measure.

    Args:
        cuda: Whether on the GPU, in float16; else on the CPU in float32.
        seconds: For each measurement.
        compiled: Whether torch.compile runs too.
        calls: How many follow each other in a row.
    """

    cuda: bool
    seconds: float
    compiled: bool
    calls: int = 20

    @property
    def providers(self) -> list[str]:
        """Execution providers."""
        return [CUDA if self.cuda else CPU]


def measure(name: str, form: str, size: int, plan: Plan, folder: Path) -> dict[str, Any]:
    """Export a net under both policies, and measure the files beside PyTorch.

    Args:
        name: Of the net.
        form: Of GELU.
        size: Batch size.
        plan: How to measure.
        folder: For the files.

    Returns:
        ``operators`` by policy, and ``rows``.
    """
    torch.manual_seed(0)
    net = NETS[name]
    model = net.build(FORMS[form]).eval()
    figures: dict[str, Any] = {"net": name, "form": form, "batch_size": size, "operators": {}}
    sessions: dict[str, OnnxPredictor] = {}
    for policy in POLICIES:
        path = folder / f"{name}-{form}-{size}-{policy}.onnx"
        dtype, target = ("fp16", "ort-cuda") if plan.cuda else (None, "portable")
        report = export_onnx(model, path, torch.zeros(2, *net.shape), dtype=dtype, target=target, policy=policy)
        figures["operators"][policy] = dict(report.census)
        sessions[f"onnxruntime {policy}"] = OnnxPredictor(path, plan.providers)
    figures["rows"] = [asdict(row) for row in rows(model, sessions, torch.randn(size, *net.shape), plan)]
    return figures


def rows(model: nn.Module, sessions: Mapping[str, OnnxPredictor], inputs: Tensor, plan: Plan) -> list[Row]:
    """Time PyTorch and sessions on the same inputs, in turns.

    Args:
        model: The module.
        sessions: Of files of it, by name.
        inputs: Of a call, in float32 on the CPU.
        plan: How to measure.

    Returns:
        One row a way.
    """
    first = next(iter(sessions.values()))
    port = next(iter(first.ports.values()))
    values = {port.name: inputs.to(first.device, port.dtype)}
    variants = torch_variants(model, first, compiled=plan.compiled)
    if inputs.dim() == 4:
        nhwc: nn.Module = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        (eager,) = torch_variants(nhwc, first, compiled=False)
        variants.insert(1, Variant("torch channels_last", partial(_in_nhwc, eager)))
    ours = [variant.name for variant in variants]
    variants += [Variant(name, partial(_run, session)) for name, session in sessions.items()]
    with torch.inference_mode():
        twin = copy.deepcopy(model).eval().to(first.device).double()
        exact = arrays_of(twin(values[port.name].double()))
        errors = {each.name: relative_error(arrays_of(each.call(values)), exact) for each in variants}
        calls = {each.name: partial(each.call, values) for each in variants}
        repeated = {name: partial(_repeat, call, plan.calls) for name, call in calls.items()}
        alone = interleaved(calls, first.device, seconds=plan.seconds)
        together = interleaved(repeated, first.device, seconds=plan.seconds)
    in_a_row = {name: [seconds / plan.calls for seconds in samples] for name, samples in together.items()}
    quickest = [min(ours, key=lambda name: statistics.median(samples[name])) for samples in (alone, in_a_row)]
    return [
        Row(
            name,
            1000 * statistics.median(alone[name]),
            1000 * statistics.median(in_a_row[name]),
            ratio(alone, name, quickest[0]),
            ratio(in_a_row, name, quickest[1]),
            errors[name],
        )
        for name in calls
    ]


def _in_nhwc(eager: Variant, values: Mapping[str, Tensor]) -> Any:
    return eager.call({name: x.contiguous(memory_format=torch.channels_last) for name, x in values.items()})


def _run(session: OnnxPredictor, values: Mapping[str, Tensor]) -> Any:
    return session(*values.values())


def _repeat(call: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        call()


def print_rows(figures: Mapping[str, Any]) -> None:
    """Print one line a way.

    Args:
        figures: What `measure` returned.
    """
    for row in figures["rows"]:
        times = f"{row['alone']:>10.4f}{row['alone_ratio']:>8.3f}{row['in_a_row']:>10.4f}{row['in_a_row_ratio']:>8.3f}"
        head = f"{figures['net']:<10}{figures['form']:<7}{figures['batch_size']:>5}  {row['variant']:<19}"
        print(f"{head}{times}{row['error']:>10.1e}", flush=True)


def cases(only: list[str], small: bool) -> list[tuple[str, str, int]]:
    """Return net, form and batch size of every measurement.

    Args:
        only: Which nets.
        small: Whether at small sizes.

    Returns:
        The measurements.
    """
    return [
        (name, form, size)
        for name in only
        for form in FORMS
        for size in (NETS[name].small if small else NETS[name].batch_sizes)
    ]


def main() -> None:
    """Measure the nets and print one line a way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="small sizes")
    parser.add_argument("--only", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--seconds", type=float, default=10.0, help="for each measurement")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", type=Path, default=None, help="where to write the figures")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device: lit-gelu doctor says why; --device cpu --small tries the script")
    cuda = arguments.device == "cuda"
    plan = Plan(cuda, arguments.seconds, arguments.compile, calls=20 if cuda else 2)
    print(f"{'':<43}{'alone, ms':>10}{'/ best':>8}{'in a row':>10}{'/ best':>8}{'error':>10}")
    measurements = []
    with tempfile.TemporaryDirectory() as folder:
        for name, form, size in cases(arguments.only, arguments.small):
            measurements.append(measure(name, form, size, plan, Path(folder)))
            print_rows(measurements[-1])
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(measurements, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
