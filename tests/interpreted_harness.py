"""Runs checks in Triton's interpreter, which it is told of where it is imported: in a process of their own.

Tensors lie on the CPU here, where activations are torch's own: the route is replaced by one that asks for all but the
device and the size. What is started is noted by its kernel's name.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch

from lit_gelu.activations.gpu import (
    autograd,
    gated,
    launch,
    launch_gated,
    launch_learned,
    learned,
    routes,
    zero_identity,
)

HALF = 2.0**-11  # float16's unit roundoff
started: list[str] = []
_start = launch.start


def half_normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return random numbers in float16, within 8."""
    return (2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).half()


def _route(x: torch.Tensor) -> routes.Route:
    why = routes._transformed(x) or "".join(routes._failure)
    return routes.Route("torch" if why else "kernel", why)


def _noting(kernel: str, on: torch.Tensor, grid: tuple[int, ...], *arguments: object, **constants: object) -> None:
    started.append(kernel)
    _start(kernel, on, grid, *arguments, **constants)


def start_by(start: Callable[..., None] = _noting) -> None:
    """Have kernels started by another function."""
    for module in (launch, launch_gated, launch_learned):
        module.start = start


def main(checks: Iterable[Callable[[], None]]) -> None:
    """Run checks; write a JSON object from a check's name to its traceback, "" if it passed, to the path given.

    All, those that the command line names behind the path, or all but these with "not" before them.
    """
    path, *names = sys.argv[1:]
    others = names[:1] == ["not"]
    for module in (autograd, gated, learned, zero_identity):
        module.route = _route
    routes.is_candidate = lambda _: True
    found = {}
    for check in checks:
        if names and (check.__name__ in names) == others:
            continue
        start_by()
        routes._failure.clear()
        started.clear()
        try:
            check()
            found[check.__name__] = ""
        except Exception:  # noqa: BLE001  the test shows it
            found[check.__name__] = traceback.format_exc()
    Path(path).write_text(json.dumps(found))
