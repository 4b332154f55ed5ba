"""`CoverageReport`: which activations of a model ran, by site, and what ran outside any site."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.surgery.activation_site import Role
from lit_gelu.surgery.selectors import ActivationSelector


@dataclass(frozen=True)
class CoveredSite:
    """What ran at one site.

    Args:
        name: The site's name.
        spec: What it computes.
        role: ``"activation"`` or ``"gate"``.
        kind: ``"module"``, ``"attribute"`` or ``"call"``.
        calls: How often it was called.
        where: File and line of the calls.
        kernels: The activations among torch's operators that ran in it, with how often.
        training_only: Whether it did not run, but does in training mode.
    """

    name: str
    spec: ActivationSpec
    role: Role
    kind: str
    calls: int
    where: tuple[str, ...]
    kernels: tuple[tuple[str, int], ...]
    training_only: bool = False

    def __str__(self) -> str:
        idle = "runs in training alone" if self.training_only else "never ran"
        ran = f"{self.calls} call{'s' * (self.calls != 1)}" if self.calls else idle
        return f"{self.name or '(the model itself)'}: {self.spec}, {ran}{' (gate)' * (self.role == 'gate')}"


@dataclass(frozen=True)
class OutsideActivation:
    """An activation that ran where there is no site.

    Args:
        module: The module whose method ran.
        spec: What was computed; ``None`` for the gates within a recurrent kernel.
        kernel: The operator of torch.
        role: ``"activation"`` or ``"gate"``.
        calls: How often.
        where: File and line.
    """

    module: str
    spec: ActivationSpec | None
    kernel: str
    role: Role
    calls: int
    where: str

    def __str__(self) -> str:
        what = str(self.spec) if self.spec is not None else "its own gates"
        fused = "" if self.spec is not None and self.spec.name == self.kernel else f" in the kernel aten::{self.kernel}"
        times = f"{self.calls} time{'s' * (self.calls != 1)}"
        gate = " (gate)" * (self.role == "gate")
        return f"{self.module or '(the model itself)'}, {self.where}: {what}{fused}, {times}{gate}"


@dataclass(frozen=True)
class CoverageReport:
    """Which activations of a model ran in one pass.

    Args:
        sites: Every site, those that never ran among them.
        outside: What ran outside any site: in fused kernels, in TorchScript, in functions that hide it.
        registry: Where activations are looked up.
        notes: What could not be found out, in sentences.
    """

    sites: tuple[CoveredSite, ...]
    outside: tuple[OutsideActivation, ...]
    registry: ActivationRegistry
    notes: tuple[str, ...] = ()

    @property
    def _rows(self) -> "list[CoveredSite | OutsideActivation]":
        return [*self.sites, *self.outside]

    def remaining(self, activation: Any) -> int:
        """Count the calls of an activation, wherever they ran.

        Args:
            activation: Any spec; ``"gelu"`` counts all its forms, ``"gelu(approximate='none')"`` the exact one alone.

        Returns:
            The number of calls.
        """
        selector = ActivationSelector(activation)
        rows = [(row.spec, row.calls) for row in self._rows if row.spec is not None]
        return sum(calls for spec, calls in rows if selector.matches_spec(spec, self.registry))

    @property
    def never_ran(self) -> tuple[CoveredSite, ...]:
        """The sites that were not called, nor are in training: replacing what stands there changes nothing.

        Of a report of training mode, those that were not called there.
        """
        return tuple(row for row in self.sites if not row.calls and not row.training_only)

    def counts(self) -> dict[str, int]:
        """Return the number of calls of every activation, gates left out.

        Returns:
            From the text of a spec to the number.
        """
        rows = [row for row in self._rows if row.role == "activation" and row.calls]
        totals: Counter[str] = Counter()
        for row in rows:
            totals[str(row.spec)] += row.calls
        return dict(totals)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON or a logger.

        Returns:
            ``{"sites": [...], "outside": [...], "notes": [...]}``: the rows' fields, specs as text.
        """
        return {
            "sites": [
                {**vars(row), "spec": str(row.spec), "where": list(row.where), "kernels": dict(row.kernels)}
                for row in self.sites
            ],
            "outside": [{**vars(row), "spec": None if row.spec is None else str(row.spec)} for row in self.outside],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [*map(str, self.sites)]
        if self.outside:
            lines += ["Ran outside any known site:", *(f"  {row}" for row in self.outside)]
        totals = ", ".join(f"{spec} {calls}" for spec, calls in self.counts().items())
        return "\n".join([*lines, *self.notes, f"Calls of activations: {totals or 'none'}."])
