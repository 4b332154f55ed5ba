"""The stage ``parity``: exported modules on the provider: whether they open and agree, and who runs which node."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _gpu_record import Record, Settings
from torch import nn

from lit_gelu import activations, tasks
from lit_gelu.export import OnnxPredictor, check_parity, export_onnx
from lit_gelu.export.parity.report import ELEMENTWISE, ParityReport
from lit_gelu.export.runtime import CPU, CUDA
from lit_gelu.export.runtime.placement import without_shape_arithmetic

DTYPES = ("fp32", "fp16", "bf16")
TASKS = (
    "MNISTClassifier",
    "MNISTAutoencoder",
    "TweetTagger",
    "TIMITFrameClassifier",
    "CIFAR10ConvNet",
    "CIFAR100WideResNet",
)
QUICK = ("gelu", "mish", "MNISTClassifier", "TransformerEncoderLayer")
COPIES = ("MemcpyFromHost", "MemcpyToHost")


@dataclass(frozen=True)
class Case:
    """A module to export.

    Attributes:
        name: In the record.
        build: Makes module and sample; a sample of ``None`` is the module's own.
    """

    name: str
    build: Callable[[], tuple[nn.Module, torch.Tensor | None]]


def cases() -> list[Case]:
    """Return nets with arithmetic of sizes, tasks, and elementwise activations: what may go wrong first."""
    names = sorted({str(activations.resolve(name)) for name in activations.list_activations()})
    single = [Case(name, partial(_alone, name)) for name in names if activations.info(name).elementwise]
    nets = [Case("TransformerEncoderLayer", _encoder), Case("VisionTransformer", _vision_transformer)]
    return [*nets, *(Case(name, partial(_task, name)) for name in TASKS), *single]


def _alone(spec: str) -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(activations.create(spec)), torch.randn(2, 64)


def _task(name: str) -> tuple[nn.Module, None]:
    return getattr(tasks, name)(), None


def _encoder() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(64, 4, 128, activation="gelu", batch_first=True)
    return layer, torch.randn(2, 10, 64)


def _vision_transformer() -> tuple[nn.Module, torch.Tensor]:
    from torchvision.models import VisionTransformer

    net = VisionTransformer(32, 8, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=10)
    return net, torch.randn(2, 3, 32, 32)


def run(record: Record, settings: Settings) -> None:
    """Export, open and compare every case in every dtype."""
    cuda = settings.device == "cuda"
    if not cuda:
        record.leave_out("bf16", "a bf16 file runs on a GPU only")
    chosen = cases()
    if settings.quick:
        record.leave_out(f"{len(chosen) - len(QUICK)} of {len(chosen)} modules", f"--quick takes {', '.join(QUICK)}")
        chosen = [case for case in chosen if case.name in QUICK]
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(chosen):
            for dtype in DTYPES if cuda else DTYPES[:2]:
                path = Path(folder) / f"{number}_{dtype}.onnx"
                outcome = record.figure(f"{case.name}, {dtype}", partial(checked, case, dtype, path, cuda))
                if outcome is not None and not outcome["passed"]:
                    record.fail(f"{case.name}, {dtype}", f"parity: {'; '.join(outcome['reasons'])}")
                if outcome is not None and (outcome["refused"] or outcome["on_cpu"] or outcome["copies"]):
                    record.fail(f"{case.name}, {dtype}", f"placement: {placed(outcome)}")


def placed(outcome: dict[str, Any]) -> str:
    """Return in words what is wrong with who runs what."""
    parts = [
        outcome["refused"],
        ", ".join(outcome["on_cpu"]),
        ", ".join(f"{number} {name}" for name, number in outcome["copies"].items()),
    ]
    return "; ".join(part for part in parts if part)


def checked(case: Case, dtype: str, path: Path, cuda: bool) -> dict[str, Any]:
    """Export one module in one dtype, open the file and compare it."""
    torch.manual_seed(0)
    model, sample = case.build()
    model.eval()
    export_onnx(model, path, sample, dtype=dtype, target="ort-cuda" if cuda else "portable")
    providers = [CUDA, CPU] if cuda else [CPU]
    refused = _refusal(path, providers[:1])
    predictor = OnnxPredictor(path, providers)
    nodes = predictor.placement.outside(providers[0])
    report = check_parity(model, path, input_sample=sample, providers=providers, strict=False)
    return {
        "refused": refused,
        "placement": predictor.placement.counts,
        "shape_arithmetic": len(nodes) - len(without_shape_arithmetic(path, nodes)),
        "on_cpu": [f"{node.operator} {node.name}" for node in without_shape_arithmetic(path, nodes)],
        "copies": {name: report.optimized_census[name] for name in COPIES if name in report.optimized_census},
        **figures(report),
    }


def _refusal(path: Path, providers: list[str]) -> str:
    """Return why the default predictor, which has no CPU beside it, refuses the file; nothing if it opens."""
    try:
        OnnxPredictor(path, providers)
    except Exception as error:  # noqa: BLE001 - whatever a user would meet
        return f"{type(error).__name__}: {error}"
    return ""


def figures(report: ParityReport) -> dict[str, Any]:
    """Return what a report says, in short."""
    deciding = [row for row in report.rows if row.gating and not row.extreme]
    return {
        "passed": report.passed,
        "reasons": [*report.reasons, *map(str, report.failures)],
        "provider": report.provider,
        "error": max((row.error for row in deciding), default=None),
        "own_error": max((row.own for row in deciding if row.own is not None), default=None),
        "extremes": [
            {"inputs": row.inputs, "error": row.error, "own": row.own, "nonfinite": row.nonfinite, "passed": row.passed}
            for row in report.rows
            if row.extreme and row.gating
        ],
        "alone": {
            row.inputs: {
                "detail": row.detail,
                "error": row.error,
                "max_abs_near": row.max_abs_error,
                "pytorch_max_abs_near": row.spread,
                "nonfinite": row.nonfinite,
            }
            for row in report.rows
            if row.comparison == ELEMENTWISE
        },
        "operators": dict(report.optimized_census or report.census),
        "repeats": report.repeats,
        "notes": list(report.notes),
    }
