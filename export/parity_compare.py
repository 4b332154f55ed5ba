"""The comparisons of `lit_gelu.export.check_parity`: on families of inputs, and of each activation alone."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from lit_gelu import surgery
from lit_gelu.activations import ActivationRegistry
from lit_gelu.export.comparison import Differences
from lit_gelu.export.copying import evaluation_copy
from lit_gelu.export.elementwise import sweep
from lit_gelu.export.exporter import approximate_
from lit_gelu.export.inputs import Call, FlatModule, named_outputs
from lit_gelu.export.lowering_table import LOWERINGS, Lowering
from lit_gelu.export.markers import BoundActivation, bind
from lit_gelu.export.metadata import FileMetadata, SiteRecord
from lit_gelu.export.parity_inputs import Family
from lit_gelu.export.parity_report import VS_FLOAT32, VS_FLOAT64, VS_TRAINED, ParityRow
from lit_gelu.export.runtime import OnnxPredictor, Provider


@dataclass
class _Outputs:
    """PyTorch's outputs for one batch."""

    float32: list[np.ndarray]
    float64: list[np.ndarray] | None
    trained: list[np.ndarray] | None


class References:
    """The module in float32 and float64 with the file's form of GELU, and as trained.

    Args:
        model: The module; it is copied.
        call: The sample call.
        approximate: The file's form of GELU.
        registry: Which registry names the activations.
        preprocessing: What the file does to its first input before it is the module's; ``None`` for nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        call: Call,
        approximate: str,
        registry: ActivationRegistry,
        preprocessing: nn.Module | None = None,
    ) -> None:
        self._call = call
        self._preprocessing = (
            {}
            if preprocessing is None
            else {dtype: evaluation_copy(preprocessing, dtype) for dtype in (torch.float32, torch.float64)}
        )
        self._trained = None if approximate == "as_trained" else evaluation_copy(model)
        self.float32 = self._copy(model, approximate, registry, torch.float32)
        self._float64: nn.Module | None = None
        self.notes: list[str] = []
        try:
            self._float64 = self._copy(model, approximate, registry, torch.float64)
            self._run(self._float64, call.tensors, torch.float64)
        except Exception as error:  # noqa: BLE001 - forward is the user's: whatever it raises is reported
            self._float64 = None
            self.notes.append(f"no float64 reference: forward fails in float64 ({error}).")

    def _copy(self, model: nn.Module, approximate: str, registry: ActivationRegistry, dtype: torch.dtype) -> nn.Module:
        """Return a copy with the file's form of GELU."""
        flat = FlatModule(evaluation_copy(model, dtype), self._call, self._preprocessing.get(dtype))
        approximate_(flat, approximate, registry, dtype)
        return flat.model

    @torch.no_grad()
    def outputs(self, batch: tuple[Tensor, ...]) -> _Outputs:
        """Run all references.

        Args:
            batch: Inputs in the order of the call's names.

        Returns:
            Their outputs.
        """
        return _Outputs(
            self._run(self.float32, batch, torch.float32),
            None if self._float64 is None else self._run(self._float64, batch, torch.float64),
            None if self._trained is None else self._run(self._trained, batch, torch.float32),
        )

    @torch.no_grad()
    def _run(self, module: nn.Module, batch: tuple[Tensor, ...], dtype: torch.dtype) -> list[np.ndarray]:
        """Run one module on one batch, in one dtype from the preprocessing on."""
        tensors = list(batch)
        if self._preprocessing:
            tensors[0] = self._preprocessing[dtype](tensors[0])
        args, kwargs = self._call.arguments([t.to(dtype) if t.is_floating_point() else t for t in tensors])
        return [tensor.numpy() for _, tensor in named_outputs(module(*args, **kwargs))]


def compare(family: Family, predictor: OnnxPredictor, references: References, tolerance: float) -> list[ParityRow]:
    """Compare on one family of inputs.

    Args:
        family: The inputs.
        predictor: Runs the file.
        references: Run the module.
        tolerance: The largest absolute error.

    Returns:
        The rows: against float32, against float64, and the approximation gap where it is asked for.
    """
    vs32, vs64, spread, gap = Differences(), Differences(), Differences(), Differences()
    for batch in family.batches:
        result = predictor(*[tensor.numpy() for tensor in batch])
        y = list(result) if isinstance(result, tuple) else [result]
        reference = references.outputs(batch)
        excused = reference.float32 if family.extreme else None
        vs32.add(y, reference.float32, excused)
        if reference.float64 is not None:
            vs64.add(y, reference.float64, excused)
            spread.add(reference.float32, reference.float64, excused)
        if reference.trained is not None and family.gap:
            gap.add(y, reference.trained)
    limit = tolerance * max(1.0, vs64.scale or vs32.scale) if family.extreme else tolerance
    own = spread.max_abs if vs64.count else None
    limit = max(limit, 2 * (own or 0.0))
    rows = [_row(VS_FLOAT32, family, vs32, own, limit)]
    if own is not None:
        rows.append(_row(VS_FLOAT64, family, vs64, own, limit))
    if gap.count:
        rows.append(_row(VS_TRAINED, family, gap, None, None))
    return rows


def _row(comparison: str, family: Family, found: Differences, spread: float | None, limit: float | None) -> ParityRow:
    """Return one row of the report."""
    return ParityRow(
        comparison=comparison,
        inputs=family.name,
        count=found.count,
        max_abs_error=found.max_abs,
        mean_abs_error=found.mean_abs,
        scale=found.scale,
        spread=spread,
        limit=limit,
        nonfinite=found.nonfinite,
        top1_agreement=found.top1_agreement,
        top1_flips=found.top1_flips,
        extreme=family.extreme,
    )


def mismatches(model: nn.Module, metadata: FileMetadata, registry: ActivationRegistry) -> list[str]:
    """Say which sites of the module have another activation than the file records: the likeliest cause of a failure.

    Args:
        model: The module with the file's form of GELU.
        metadata: What the file says of itself.
        registry: Which registry names the activations.

    Returns:
        One sentence for each pair of activations.
    """
    sites = {site.name: str(site.spec) for site in surgery.find_sites(model, registry=registry)}
    found: dict[tuple[str, str], list[str]] = {}
    for record in metadata.sites:
        spec = sites.get(record.site)
        if spec is not None and spec != record.spec:
            found.setdefault((spec, record.spec), []).append(record.site or "(the module itself)")
    return [
        f"{spec} in the module is {recorded} in the file: {', '.join(names)}."
        for (spec, recorded), names in found.items()
    ]


def sweeps(
    model: nn.Module, metadata: FileMetadata, tolerance: float, predictor: OnnxPredictor, registry: ActivationRegistry
) -> list[ParityRow]:
    """Run each distinct activation of the file alone.

    Args:
        model: The module with the file's form of GELU.
        metadata: What the file says of itself.
        tolerance: The largest error where outputs are at most 1.
        predictor: Says on which providers.
        registry: Which registry names the activations.

    Returns:
        One row for each activation with its arguments and lowering.
    """
    modules = dict(model.named_modules())
    providers: list[Provider] = list(predictor.session.get_providers())
    rows: dict[tuple[str, str, str], ParityRow] = {}
    for record in metadata.sites:
        found = _module_of(record, modules, registry) if record.row and record.calls else None
        if found is None:
            continue
        module, activation, lowering = found
        key = (activation.row, repr(sorted(activation.arguments.items())), lowering)
        if key not in rows:
            taken = any(row.inputs == record.spec for row in rows.values())  # equal specs, other learned parameters
            label = f"{record.spec} at {record.site}" if taken else record.spec
            rows[key] = sweep(
                module, activation, lowering, metadata.opset, label=label, tolerance=tolerance, providers=providers
            )
    return list(rows.values())


def _module_of(
    record: SiteRecord, modules: Mapping[str, nn.Module], registry: ActivationRegistry
) -> tuple[nn.Module, BoundActivation, Lowering] | None:
    """Return a site's module and activation: the module's own, or for a function call a new one from the spec."""
    lowering = next((name for name in LOWERINGS if name == record.lowering), None)
    for module in (modules.get(record.site), registry.create(record.spec)):
        activation = None if module is None else bind(module)
        if module is not None and activation is not None and activation.row == record.row and lowering is not None:
            return module, activation, lowering
    return None
