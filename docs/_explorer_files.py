"""The explorer's ONNX files, and their list: f, f' and f'' are outputs of one graph, parameters are inputs.

The formulas are those of `lit_gelu.activations.functional`, in float32, exported by `lit_gelu.export.export_onnx`.
"""

import functools
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.activations import registry
from lit_gelu.activations.families import ENTRIES
from lit_gelu.activations.naming.entry import ActivationEntry
from lit_gelu.export import export_onnx
from lit_gelu.files import write_atomically

MANIFEST = "manifest.json"
OUTPUTS = ("value", "first", "second")

# Of sliders, by the name that a spec gives a parameter: least and largest value, and whether the slider is logarithmic.
Range = tuple[float, float, bool]
RANGES: dict[str, Range] = {
    "alpha": (0.1, 5.0, True),
    "alpha_n": (0.75, 4.0, True),
    "alpha_p": (0.1, 4.0, True),
    "beta": (0.1, 10.0, True),
    "init": (-1.0, 1.5, False),
    "max": (0.5, 10.0, False),
    "min": (-10.0, 0.25, False),
    "mu": (-3.0, 3.0, False),
    "negative_slope": (0.0, 1.0, False),
    "sigma": (0.1, 5.0, True),
}
# Where a parameter's range is narrower: xIELU's beta has to stay below its alpha_n.
OWN_RANGES: dict[tuple[str, str], Range] = {("xielu", "beta"): (0.05, 0.7, False)}


@dataclass(frozen=True)
class Parameter:
    """A number that a slider moves."""

    name: str  # in a spec
    argument: str  # of the function, and the input of the graph
    default: float
    low: float
    high: float
    logarithmic: bool


@dataclass(frozen=True)
class Explored:
    """One activation of the explorer.

    Args:
        name: Under which it is registered.
        entry: The row that has its functions.
        parameters: What sliders move.
        fixed: The arguments that they do not move.
    """

    name: str
    entry: ActivationEntry
    parameters: tuple[Parameter, ...]
    fixed: Mapping[str, Any]

    @property
    def file(self) -> str:
        """Name of its ONNX file; activations that are one function share it."""
        told = [f"{key}_{value:g}" if isinstance(value, float) else str(value) for key, value in self.fixed.items()]
        return "_".join([self.entry.name, *told]).replace("-", "m") + ".onnx"

    @property
    def sample(self) -> dict[str, Tensor]:
        """Inputs of the graph, with the parameters' defaults."""
        numbers = {parameter.argument: torch.tensor(parameter.default) for parameter in self.parameters}
        return {"x": torch.linspace(-3.0, 3.0, 7), **numbers}

    def spec(self, values: Mapping[str, float]) -> str:
        """Return the text that names it with these values of its parameters."""
        arguments = ", ".join(f"{key}={value!r}" for key, value in values.items())
        return f"{self.name}({arguments})" if arguments else self.name


class Curves(nn.Module):
    """``x`` and the parameters to f, f' and f''."""

    def __init__(self, explored: Explored) -> None:
        super().__init__()
        entry = explored.entry
        if entry.function is None or entry.derivative is None:
            raise ValueError(f"{entry.name} has no closed form of f or of its derivatives")
        self.function: Callable[..., Tensor] = functools.partial(entry.function, **explored.fixed)
        self.derivative: Callable[..., Tensor] = functools.partial(entry.derivative, **explored.fixed)

    def forward(self, x: Tensor, **parameters: Tensor) -> dict[str, Tensor]:
        """Compute the three."""
        derivatives = (self.derivative(x, order=order, **parameters) for order in (1, 2))
        return dict(zip(OUTPUTS, (self.function(x, **parameters), *derivatives), strict=True))


def explored() -> list[Explored]:
    """Return all activations of lit-gelu that are deterministic and elementwise, in the registry's order."""
    found = []
    for row in ENTRIES:
        spec = registry.resolve(row.name)
        entry = registry.entry(spec.name)
        facts = entry.facts_for(spec.arguments)
        if facts.elementwise and not facts.stochastic:
            found.append(_explored(row, entry))
    return found


def _explored(row: ActivationEntry, entry: ActivationEntry) -> Explored:
    """Sort the arguments of a row's function into those that sliders move and those that are fixed."""
    with torch.no_grad():
        live = entry.live_arguments(registry.create(row.name)) or {}
        given = {key: value if isinstance(value, str) else float(value) for key, value in live.items()}
    named = {key: _name_in_spec(row, key, value) for key, value in given.items() if isinstance(value, float)}
    moved = {key: name for key, name in named.items() if name is not None}
    parameters = tuple(
        Parameter(name, key, round(given[key], 6), *_range(row.name, name)) for key, name in moved.items()
    )
    return Explored(row.name, entry, parameters, {key: given[key] for key in given if key not in moved})


def _range(activation: str, parameter: str) -> Range:
    """Return the range of a slider."""
    found = OWN_RANGES.get((activation, parameter), RANGES.get(parameter))
    if found is None:
        raise ValueError(f"{activation}: nothing says how far a slider moves {parameter!r}; add it to RANGES")
    return found


def _name_in_spec(row: ActivationEntry, argument: str, value: float) -> str | None:
    """Return what a spec calls a function's argument; ``None`` if the row fixes it."""
    if argument in row.parameters:
        return argument
    numbers = [name for name, known in row.parameters.items() if isinstance(known.default, float)]
    return next((name for name in numbers if row.parameters[name].default == value), None)


def manifest() -> dict[str, Any]:
    """Return what the page has to know of every activation."""
    return {"outputs": OUTPUTS, "activations": [_described(each) for each in explored()]}


def _described(each: Explored) -> dict[str, Any]:
    facts = each.entry.facts_for({**each.fixed, **{p.name: p.default for p in each.parameters}})
    return {
        "name": each.name,
        "file": each.file,
        "formula": facts.formula,
        "reference": facts.reference,
        "parameters": [vars(parameter) for parameter in each.parameters],
        "kinks": _kinks(each),
    }


def _kinks(each: Explored) -> list[float]:
    """Return where f' jumps at the defaults or at an end of a parameter's range."""
    ends = [(parameter.default, parameter.low, parameter.high) for parameter in each.parameters]
    names = [parameter.name for parameter in each.parameters]
    places: set[float] = set()
    for values in itertools.product(*ends):
        facts = each.entry.facts_for({**each.fixed, **dict(zip(names, values, strict=True))})
        places |= {round(place, 9) for place, _ in facts.kinks}
    return sorted(places)


def write_models(folder: Path) -> None:
    """Export every file and write the manifest.

    Args:
        folder: Where they go; files of activations that are no longer there are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    by_file = {each.file: each for each in explored()}
    for name, each in by_file.items():
        export_onnx(Curves(each).eval(), folder / name, each.sample)
    for path in folder.glob("*.onnx"):
        if path.name not in by_file:
            path.unlink()
    with write_atomically(folder / MANIFEST) as path:
        path.write_text(json.dumps(manifest(), indent=1) + "\n")
