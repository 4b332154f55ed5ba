"""The stage ``kernels``: the tables of ``kernels.py``: values on the device, shares of copy speed, sweep, memory."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _gpu_record import Record, Settings
from _kernel_memory import NETS, WAYS, lacking, needed
from _kernel_speed import DTYPES, LARGEST, SMALLEST, SPECS, example, share_line, shares, sweep_line, swept, threshold
from activations import Clock, keep_freed_memory
from torch._functorch import config as functorch_config

TESTS = Path(__file__).resolve().parents[1] / "tests"
Row = dict[str, Any]
ELEMENTS, QUICK_ELEMENTS = 1 << 28, 1 << 12
QUICK_SPECS, QUICK_SIZES = 2, 2
NEEDS = 15.0  # seconds: torch.compile takes most of it


def run(record: Record, settings: Settings) -> None:
    """Compare values with float64, then measure."""
    cuda = settings.device == "cuda"
    torch.manual_seed(0)
    keep_freed_memory()
    functorch_config.donated_buffer = False  # the graph is kept for repeated backward passes
    if cuda:
        record.figure("errors", errors_on_device, NEEDS)
    else:
        record.leave_out("errors", "kernels run on a GPU; tests/activations/gpu has their values in the interpreter")
        record.leave_out("torch.compile", "compiling takes minutes on a CPU; 16 bit is of the GPU")
    clock = Clock(torch.device(settings.device), threads=1)
    _speed(record, settings, clock)
    _sweep(record, settings, clock)
    for net in NETS:
        for way in WAYS:
            if why := lacking(way):
                record.leave_out(f"memory, {net}, {way}", why)
            else:
                record.figure(
                    f"memory, {net}, {way}", partial(needed, net, way, settings.device, settings.quick), NEEDS
                )


def errors_on_device() -> list[Row]:
    """Compare values and slopes that the device computes for all inputs with float64."""
    sys.path.insert(0, str(TESTS))
    from _kernel_proofs import compared  # needs scipy, which a machine with a GPU may lack
    from kernel_cases import DTYPES as BY_NAME
    from kernel_cases import FUNCTIONS, every_input

    from lit_gelu.activations.gpu import launch

    found = {}
    for label, dtype in BY_NAME.items():
        x = every_input(dtype).cuda()
        for key, (name, p0, p1) in FUNCTIONS.items():
            slope = launch.unary_backward(torch.ones_like(x), x, name, p0, p1)
            found[f"{key} {label} value"] = launch.unary_forward(x, name, p0, p1).double().cpu().numpy()
            found[f"{key} {label} slope"] = slope.double().cpu().numpy()
    return compared({"device": found}, partial(print, flush=True))


def _speed(record: Record, settings: Settings, clock: Clock) -> None:
    """Measure shares of copy speed: the first dtype of all activations, then the other."""
    cuda = settings.device == "cuda"
    rounds, repeats = (2, 1) if settings.quick else (5, 10)
    for dtype in DTYPES:
        x = example(QUICK_ELEMENTS if settings.quick else ELEMENTS, dtype, settings.device)
        for spec in SPECS[: QUICK_SPECS if settings.quick else None]:
            measured = partial(shares, spec, x, clock, rounds, repeats, cuda)
            record.figure(f"speed, {spec}, {dtype}", _shown(measured, share_line), 0.0 if settings.quick else NEEDS)


def _sweep(record: Record, settings: Settings, clock: Clock) -> None:
    """Time sizes of one dtype."""
    rounds, repeats = (2, 2) if settings.quick else (7, 50)
    sizes = range(SMALLEST, SMALLEST + QUICK_SIZES if settings.quick else LARGEST + 1)
    dtype = DTYPES[0]
    rows = []
    for power in sizes:
        timed = partial(swept, 1 << power, dtype, settings.device, clock, rounds, repeats)
        rows.append(record.figure(f"sweep, {1 << power} elements", _shown(timed, sweep_line)))
    if all(rows):
        record.figure("threshold", partial(threshold, rows))


def _shown(measure: Callable[[], Row], line: Callable[[Row], str]) -> Callable[[], Any]:
    def call() -> Row:
        found = measure()
        print(line(found), flush=True)
        return found

    return call
