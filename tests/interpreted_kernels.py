"""Runs kernels in Triton's interpreter, in a process of its own: Triton reads TRITON_INTERPRET where it is imported.

    python interpreted_kernels.py OUT    writes f and f' of every function, for all 65,536 inputs of both 16-bit dtypes

The kernels write float32, which torch rounds here: the interpreter cuts off where a GPU rounds.
"""

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent))  # with python -P it is not there

import numpy as np
import torch
from kernel_cases import DTYPES, FUNCTIONS, every_input

from lit_gelu.activations.gpu import templates

_BLOCK = 16384


def main() -> None:
    """Write values and slopes as float64 numbers of what a 16-bit tensor holds."""
    found = {}
    for label, dtype in DTYPES.items():
        x = every_input(dtype)
        ones, grid = torch.ones_like(x), (x.numel() // _BLOCK,)
        for key, (name, p0, p1) in FUNCTIONS.items():
            y, d = torch.empty(x.shape), torch.empty(x.shape)
            templates.unary_forward[grid](x, y, x.numel(), p0, p1, ACT=name, BLOCK=_BLOCK)
            templates.unary_backward[grid](ones, x, d, x.numel(), p0, p1, ACT=name, BLOCK=_BLOCK)
            found[f"{key} {label} value"] = y.to(dtype).double().numpy()
            found[f"{key} {label} slope"] = d.to(dtype).double().numpy()
    np.savez(sys.argv[1], **found)


if __name__ == "__main__":
    main()
