"""Exported files beside PyTorch on the GPU: ``python benchmarks/export_gpu.py``.

The CIFAR-10 net at batch 256, WRN-40-4 at batch 256, the MNIST net at batch 1 and 128, and a feed-forward block of
8192 x (1024 - 4096 - 1024), in float16: onnxruntime as `tune` sets it and as it is by default, beside torch eager,
channels_last and torch.compile. All ways to compute one net take turns in shuffled order, in one process. A line gives
the median time, the ratio to the fastest PyTorch, and the largest error of an output against the module in float64, as
a share of the largest output. Inputs lie on the GPU, times are between CUDA events; weights are untrained.

``--device cpu --small`` measures the same in float32 at small sizes, to try the script where there is no GPU.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from lit_gelu.export import export_onnx
from lit_gelu.export.runtime.bench import BenchReport, bench
from lit_gelu.export.runtime.tuning import tune
from lit_gelu.tasks import CIFAR10ConvNet, CIFAR100WideResNet, MNISTClassifier


@dataclass(frozen=True)
class Net:
    """One net.

    Args:
        build: Makes it.
        shape: Of one row of its input.
        batch_sizes: What to measure.
        small: The same with ``--small``.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    small: tuple[int, ...]


def block(width: int = 1024) -> nn.Module:
    """Return a feed-forward block.

    Args:
        width: Size of its input and output.

    Returns:
        The block.
    """
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


NETS = {
    "cifar10": Net(CIFAR10ConvNet, (3, 32, 32), (256,), (2,)),
    "wrn-40-4": Net(CIFAR100WideResNet, (3, 32, 32), (256,), (1,)),
    "mnist": Net(MNISTClassifier, (1, 28, 28), (1, 128), (1, 4)),
    "block": Net(block, (1024,), (8192,), (4,)),
}


def measure(
    name: str, folder: Path, arguments: argparse.Namespace, providers: list[str], dtype: str | None
) -> list[BenchReport]:
    """Export a net, tune it for each batch size, and measure.

    Args:
        name: Of the net.
        folder: For its file.
        arguments: Of the command line.
        providers: Execution providers.
        dtype: Of the file.

    Returns:
        One report a batch size.
    """
    torch.manual_seed(0)
    net = NETS[name]
    model = net.build().eval()
    path = folder / f"{name}.onnx"
    target = "ort-cuda" if arguments.device == "cuda" else "portable"
    export_onnx(model, path, torch.zeros(2, *net.shape), dtype=dtype, target=target)
    reports = []
    for size in net.small if arguments.small else net.batch_sizes:
        tuned = tune(path, providers=providers, batch_size=size, seconds=arguments.seconds, allow_tf32=False)
        print(f"{name}: {tuned.choice}", flush=True)
        report = bench(
            path,
            model,
            batch_sizes=[size],
            providers=providers,
            seconds=arguments.seconds,
            compiled=arguments.compile,
            channels_last=len(net.shape) == 3,
        )
        print_rows(name, report)
        reports.append(report)
    return reports


def print_rows(name: str, report: BenchReport) -> None:
    """Print one line a variant.

    Args:
        name: Of the net.
        report: What was measured.
    """
    best = min(row.latency.p50 for row in report.rows if row.variant.startswith("torch"))
    for row in report.rows:
        times = f"{1000 * row.latency.p50:>10.4f}{row.latency.p50 / best:>15.3f}{row.error:>10.1e}"
        print(f"{name:<10}{row.batch_size:>6}  {row.variant:<24}{times}", flush=True)


def main() -> None:
    """Measure the nets and print one line a variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="small sizes")
    parser.add_argument("--only", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--seconds", type=float, default=10.0, help="for each measurement, and for tuning each file")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", type=Path, default=None, help="where to write the reports")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device: lit-gelu doctor says why; --device cpu --small tries the script")
    providers = ["CUDAExecutionProvider" if arguments.device == "cuda" else "CPUExecutionProvider"]
    dtype = "fp16" if arguments.device == "cuda" else None
    print(f"{'net':<10}{'batch':>6}  {'variant':<24}{'p50 ms':>10}{'/ best torch':>15}{'error':>10}")
    reports = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only:
            reports[name] = measure(name, Path(folder), arguments, providers, dtype)
    if arguments.json is not None:
        content = {name: [asdict(report) for report in made] for name, made in reports.items()}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
