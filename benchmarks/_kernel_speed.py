"""Speed of activations as torch has them, compiled and fused, taking turns in one process."""

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from _formulas import FORMULAS
from activations import ROW_LENGTH, WARM_UP, Clock, Function, measure
from torch import Tensor, nn

from lit_gelu import activations
from lit_gelu.activations.gpu import routes
from lit_gelu.kernels import explain, fuse

SPECS = (
    "gelu",
    "gelu(approximate='tanh')",
    "silu",
    "mish",
    "elu",
    "hard_swish",
    "swish(beta=1.5)",
    "gelu(approximate='sigmoid')",
    "gaussian_gelu(mu=0.5, sigma=2.0)",
    "gaussian_gelu(mu=0.5, sigma=2.0, learnable=True)",
    "swish(beta=1.5, learnable=True)",
    "zero_identity_map",
    "glu",
    "geglu",
    "swiglu",
    "cauchy_linear",
    "relu2",
)
WAYS = ("eager", "compile", "fused", "fused, compile")
DTYPES = ("bfloat16", "float16")
SMALLEST, LARGEST = 12, 28  # powers of two that a sweep goes through
SWEEP = "gelu"


def example(elements: int, dtype: str, device: str) -> Tensor:
    """Return a leaf of normal numbers."""
    x = torch.randn(elements // ROW_LENGTH or 1, min(elements, ROW_LENGTH), device=device)
    return x.to(getattr(torch, dtype)).requires_grad_()


def without_kernels(module: nn.Module) -> nn.Module:
    """Return one of this package's own activations as it is where kernels are not used."""
    if hasattr(module, "kernels"):
        module.kernels = "off"
    return module


def candidates(spec: str, x: Tensor, may_compile: bool) -> dict[str, Function]:
    """Return the ways to compute an activation that work here.

    Args:
        spec: Its spec.
        x: Its input.
        may_compile: Whether torch.compile is tried.

    Returns:
        By names of `WAYS`.
    """
    plain = without_kernels(activations.create(spec).to(x.device, x.dtype).train())
    fused = fuse(activations.create(spec).to(x.device, x.dtype).train())
    formulas = {str(activations.resolve(name)): formula for name, formula in FORMULAS.items()}
    learned = any(True for _ in plain.parameters())  # the formulas have numbers in their place
    eager: Function = plain if learned else formulas.get(str(activations.resolve(spec)), plain)
    found: dict[str, Function] = {"eager": eager, "fused": fused}
    if may_compile:
        torch.compiler.reset()
        for way, function in (("compile", eager), ("fused, compile", fused)):
            if (fast := _compiled(function, x)) is not None:
                found[way] = fast
    return {way: found[way] for way in WAYS if way in found}


def _compiled(function: Function, x: Tensor) -> Function | None:
    """Return ``torch.compile`` of a function, tried in both directions; ``None`` where the compiler fails."""
    result: Function = torch.compile(function, fullgraph=True, dynamic=False)
    try:
        y = result(x)
        torch.autograd.grad(y, x, torch.ones_like(y))
    except Exception as error:  # noqa: BLE001 - whatever the compiler raises, the other figures are still wanted
        print(f"  torch.compile failed: {type(error).__name__}")
        return None
    return result


def shares(spec: str, x: Tensor, clock: Clock, rounds: int, repeats: int, may_compile: bool) -> dict[str, Any]:
    """Measure one activation.

    Args:
        spec: Its spec.
        x: Its input.
        clock: Of the device.
        rounds: Of which the median is taken.
        repeats: Calls timed together.
        may_compile: Whether torch.compile is measured too.

    Returns:
        Shares of copy speed, ``"WAY forward"`` and ``"WAY backward"``; which code the fused module ran, and why.
    """
    ways = candidates(spec, x, may_compile)
    found: dict[str, Any] = {"spec": spec, **measure(ways, x, clock, rounds, repeats)}
    fused = ways["fused"]
    found["route"] = list(explain(fused, x)) if isinstance(fused, nn.Module) else None
    return found


def share_line(found: dict[str, Any]) -> str:
    """Return one line of the table."""
    keys = [f"{way} {direction}" for direction in ("forward", "backward") for way in WAYS]
    cells = "".join(f"{found[key]:>9.2f}" if key in found else f"{'-':>9}" for key in keys)
    return f"{found['spec']:<50}{cells}  {found['route'][0]}"


def share_head() -> str:
    """Return the heads of the table."""
    heads = "".join(f"{head:>9}" for head in ("eager", "compile", "fused", "f.+comp.") * 2)
    return f"{'share of copy speed':<50}{'forward':^36}{'backward':^36}\n{'activation':<50}{heads}  fused ran"


def swept(elements: int, dtype: str, device: str, clock: Clock, rounds: int, repeats: int) -> dict[str, Any]:
    """Time GELU of one size, eager and by its kernel whatever the threshold says; calls follow each other.

    Args:
        elements: Of the tensor.
        dtype: Of the tensor.
        device: Where it lies.
        clock: Of the device.
        rounds: Of which the median is taken.
        repeats: Calls timed together.

    Returns:
        Microseconds a call of both ways and passes, and the ratios of the rounds.
    """
    x = example(elements, dtype, device)
    grad = torch.ones_like(x)
    with patch.object(routes, "THRESHOLD", 0):
        modules = {"eager": activations.create(SWEEP), "fused": fuse(activations.create(SWEEP))}
        taken: dict[str, list[float]] = {f"{way} {k}": [] for way in modules for k in ("forward", "backward")}
        for turn in range(-WARM_UP, rounds):
            for way in sorted(modules, reverse=bool(turn % 2)):
                for direction, call in _calls(modules[way], x, grad).items():
                    seconds = clock.seconds(call, repeats)
                    if turn >= 0:
                        taken[f"{way} {direction}"].append(seconds)
        code = explain(modules["fused"], x).code
    found: dict[str, Any] = {"elements": elements, "code": code}
    for direction in ("forward", "backward"):
        pairs = zip(taken[f"fused {direction}"], taken[f"eager {direction}"], strict=True)
        found[f"{direction} ratio"] = round(statistics.median(fused / eager for fused, eager in pairs), 3)
    return found | {key: round(statistics.median(times) * 1e6, 2) for key, times in taken.items()}


def _calls(module: nn.Module, x: Tensor, grad: Tensor) -> dict[str, Callable[[], object]]:
    y = module(x)
    return {
        "forward": partial(module, x),
        "backward": partial(torch.autograd.grad, y, x, grad, retain_graph=True),
    }


def sweep_line(found: dict[str, Any]) -> str:
    """Return one line of the table."""
    ratios = "".join(f"{found[f'{direction} {what}']:>9.2f}" for direction, what in _COLUMNS)
    times = "".join(f"{found[key]:>12.1f}" for key in ("eager forward", "fused forward"))
    return f"{found['elements']:>12,}{ratios}{times}  {found['code']}"


_COLUMNS = (("forward", "ratio"), ("backward", "ratio"))


def threshold(rows: list[dict[str, Any]]) -> int | None:
    """Return the smallest number of elements from which on the kernel is never slower; ``None`` if it always is."""
    least = None
    for row in sorted(rows, key=lambda row: -row["elements"]):
        if max(row["forward ratio"], row["backward ratio"]) > 1.0 or row["code"] != "kernel":
            break
        least = row["elements"]
    return least
