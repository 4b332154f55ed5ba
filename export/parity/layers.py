"""Errors layer by layer: the file's activations against the module's, in float64 and in the file's dtype."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from lit_gelu.export.parity.criterion import limit, smallest_error
from lit_gelu.export.parity.differences import Differences
from lit_gelu.export.parity.references import References, as_array
from lit_gelu.export.parity.sessions import SessionSetup, run_file
from lit_gelu.export.parity.subgraph import SiteNodes, site_of

Place = tuple[str, int]  # a site, and the number of the call


@dataclass(frozen=True)
class LayerError:
    """The error of one activation's output.

    Args:
        site: The site's name.
        call: Number of the call, from 0.
        value: The value's name in the file.
        error: ``max|y - y64| / max|y64|``.
        own: The same of PyTorch in the file's dtype.
        limit: What the error may be.
    """

    site: str
    call: int
    value: str
    error: float
    own: float | None
    limit: float


@dataclass(frozen=True)
class Checkpoint:
    """A value of the file whose PyTorch counterparts are known.

    Args:
        place: The site and its call.
        value: The value's name in the file.
        float64: What it should be.
        own: What PyTorch gives in the file's dtype.
    """

    place: Place
    value: str
    float64: np.ndarray
    own: np.ndarray | None

    def judge(self, y: np.ndarray, dtype: torch.dtype, tolerance: float) -> LayerError:
        """Compare what the file computes.

        Args:
            y: The file's value.
            dtype: The file's dtype.
            tolerance: What float32 arithmetic may cost.

        Returns:
            The error; infinite where a value is not finite that PyTorch's is.
        """
        ignored = smallest_error(dtype)
        found, spread = Differences(dtype), Differences(dtype)
        found.add(y, self.float64, self.own)
        own = None
        if self.own is not None:
            spread.add(self.own, self.float64)
            own = spread.relative(found.scale, ignored)
        error = float("inf") if found.nonfinite else found.relative(found.scale, ignored)
        return LayerError(*self.place, self.value, error, own, limit(own, dtype, tolerance))


def captured(
    references: References, module: nn.Module, batch: Sequence[Tensor], dtype: torch.dtype
) -> dict[Place, Any]:
    """Run a copy of the module and keep every submodule's output that is one tensor.

    Args:
        references: Whose copy it is.
        module: The copy.
        batch: Inputs in the file's order.
        dtype: Of the copy.

    Returns:
        Arrays by site and call, in the order of the calls.
    """
    kept: dict[Place, Any] = {}
    calls: dict[str, int] = {}

    def keep(name: str, output: object) -> None:
        if isinstance(output, Tensor):
            kept[name, calls.get(name, 0)] = as_array(output.clone())  # what follows may overwrite it
        calls[name] = calls.get(name, 0) + 1

    hooks = [
        part.register_forward_hook(lambda _, __, output, name=name: keep(name, output))
        for name, part in module.named_modules()
        if not any(part.children())
    ]
    try:
        references.run(module, batch, dtype)
    finally:
        for hook in hooks:
            hook.remove()
    return kept


def checkpoints(
    model: onnx.ModelProto,
    found: Sequence[SiteNodes],
    expected: Mapping[str, int],
    references: References,
    batch: Sequence[Tensor],
) -> list[Checkpoint]:
    """Pair the outputs of the file's activations with those of the module's.

    Activations that are calls of functions in the module have no output of their own there, and are left out. A site
    whose nodes are gone from the file, because something fused them after the export, is looked for among the fused
    operators that no site claims.

    Args:
        model: The file.
        found: The calls of sites in the file.
        expected: How often the graph calls each site, as the file records it.
        references: Run the module.
        batch: Inputs in the file's order.

    Returns:
        One entry for each activation that both have, in the file's order.
    """
    if references.float64 is None:
        return []
    wide = captured(references, references.float64, batch, torch.float64)
    own = {} if references.own is None else captured(references, references.own, batch, references.dtype)
    values: dict[Place, str] = {(entry.site, entry.call): entry.y for entry in found}
    values.update(_relocated(model, [p for p in wide if p[1] < expected.get(p[0], 0) and p not in values]))
    order = {name: i for i, node in enumerate(model.graph.node) for name in node.output}
    places = sorted((p for p in values if p in wide), key=lambda p: order[values[p]])
    return [Checkpoint(p, values[p], wide[p], own.get(p)) for p in places]


def _relocated(model: onnx.ModelProto, missing: Sequence[Place]) -> dict[Place, str]:
    """Return the outputs of fused operators that no site claims, if there are as many as sites without nodes."""
    fused = [node for node in model.graph.node if "Gelu" in node.op_type and site_of(node) is None]
    if len(fused) != len(missing):
        return {}
    return {place: node.output[0] for place, node in zip(missing, fused, strict=True)}


def run_with_outputs(
    model: onnx.ModelProto, names: Sequence[str], batch: Sequence[Tensor], setup: SessionSetup
) -> dict[str, np.ndarray]:
    """Run a file with some of its inner values as outputs.

    Args:
        model: The file, with its weights.
        names: The values; outputs of the file are among them if they are wanted.
        batch: Inputs in the file's order.
        setup: How sessions are opened.

    Returns:
        The values.
    """
    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    del extended.graph.output[:]
    known = {value.name: value for value in (*model.graph.output, *model.graph.value_info)}
    extended.graph.output.extend(known.get(name, onnx.ValueInfoProto(name=name)) for name in names)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layers.onnx"
        onnx.save(extended, path)
        return dict(zip(names, run_file(setup.open(path), batch), strict=True))


def layer_errors(
    model: onnx.ModelProto,
    points: Sequence[Checkpoint],
    batch: Sequence[Tensor],
    setup: SessionSetup,
    dtype: torch.dtype,
    tolerance: float,
) -> list[LayerError]:
    """Compare all checkpoints in one run.

    Args:
        model: The file, with its weights.
        points: The checkpoints.
        batch: Inputs in the file's order.
        setup: How sessions are opened.
        dtype: The file's dtype.
        tolerance: What float32 arithmetic may cost.

    Returns:
        One entry a checkpoint.
    """
    names = list(dict.fromkeys(point.value for point in points))
    values = run_with_outputs(model, names, batch, setup) if names else {}
    return [point.judge(values[point.value], dtype, tolerance) for point in points]
