"""The stage ``export``: the nets of ``export_gpu.py``, a figure for each net, form of GELU and batch size."""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from _gpu_record import Record, Settings
from export_gpu import NETS, Plan, cases, measure, print_rows

SECONDS = 3.0
NEEDS = {"block": 40.0, "mnist": 40.0, "cifar10": 80.0, "wrn-40-4": 150.0}  # torch.compile takes most of it
QUICK = ("mnist",)


def run(record: Record, settings: Settings) -> None:
    """Measure; small nets come first."""
    cuda = settings.device == "cuda"
    plan = Plan(cuda, 0.0 if settings.quick else SECONDS, compiled=cuda, calls=20 if cuda else 2)
    nets = list(QUICK if settings.quick else NETS)
    if settings.quick:
        record.leave_out(", ".join(sorted(set(NETS) - set(nets))), f"--quick takes {', '.join(nets)}")
    if not cuda:
        record.leave_out("torch.compile", "compiling takes minutes on a CPU")
    with tempfile.TemporaryDirectory() as folder:
        for name, form, size in cases(nets, settings.quick):
            key, needs = f"{name}, {form}, batch {size}", 0.0 if settings.quick else NEEDS[name]
            record.figure(key, partial(_shown, name, form, size, plan, Path(folder)), needs)


def _shown(name: str, form: str, size: int, plan: Plan, folder: Path) -> dict[str, Any]:
    figures = measure(name, form, size, plan, folder)
    print_rows(figures)
    return figures
