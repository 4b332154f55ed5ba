"""The stage ``activations``: the rows of ``activations.py``, bf16 and fp32 on CUDA."""

import argparse
from functools import partial
from typing import Any

import torch
from _gpu_record import Record, Settings
from activations import ROW_LENGTH, Clock, copy_bandwidth, keep_freed_memory, line, row, specs
from torch._functorch import config as functorch_config

ELEMENTS = {"bfloat16": 1 << 28, "float32": 1 << 27}
QUICK_ELEMENTS = 1 << 16
QUICK = ("gelu", "relu", "silu")
NAMES = ("relu", "gelu", "gelu_tanh", "silu", "mish", "elu")  # first, since others may be left out for want of time


def run(record: Record, settings: Settings) -> None:
    """Measure forward and backward of each activation beside ``clone``."""
    keep_freed_memory()
    functorch_config.donated_buffer = False  # the graph is kept for repeated backward passes
    cuda = settings.device == "cuda"
    if not cuda:
        record.leave_out("torch.compile, bfloat16", "compiling takes minutes on a CPU; 16 bit is of the GPU")
    first = specs(list(QUICK if settings.quick else NAMES))
    chosen = first if settings.quick else [*first, *(spec for spec in specs([]) if spec not in first)]
    for dtype in ELEMENTS if cuda else ("float32",):
        elements = QUICK_ELEMENTS if settings.quick else ELEMENTS[dtype]
        how = argparse.Namespace(rounds=2 if settings.quick else 5, repeats=10 if cuda else 1)
        clock = Clock(torch.device(settings.device), threads=1)
        torch.manual_seed(0)
        x = torch.randn(elements // ROW_LENGTH, ROW_LENGTH, device=settings.device)
        x = x.to(getattr(torch, dtype)).requires_grad_()
        record.figure(f"copy, {dtype}, GB/s", partial(_gigabytes, x, clock, how.repeats))
        for spec in chosen:
            measurement = record.figure(f"{spec}, {dtype}", partial(row, spec, x, clock, how, cuda))
            if measurement is not None:
                print(line(measurement), flush=True)


def _gigabytes(x: torch.Tensor, clock: Clock, repeats: int) -> Any:
    return round(copy_bandwidth(x, clock, repeats) / 1e9, 1)
